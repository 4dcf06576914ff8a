"""The pages that `--help` shows. They read conf/, and import nothing that takes time."""

from __future__ import annotations

from experiments.cli.choices import choices, conf
from experiments.cli.own_packages import check

PAGE = """\
Solve the problems of a data set with a search, and keep every result.

  python -m experiments.run [GROUP=CHOICE ...] [GROUP.SETTING=VALUE ...]

Examples
  python -m experiments.run
      100 sums with the default model, search and verifier
  python -m experiments.run search=best_of_n search.n=8 dataset=gsm8k dataset.limit=20
      another search with a setting of its own, on the first 20 problems of GSM8K
  python -m experiments.run model=hf model.name=Qwen/Qwen3-0.6B dataset=file dataset.path=mine.jsonl
      another model (a hub id, a folder or a .gguf file) on your own questions and answers
  python -m experiments.run backend=openai backend.base_url=http://localhost:8000/v1 model.name=Qwen/Qwen3-0.6B
      a model that a server runs (vLLM, SGLang, llama.cpp's); model.name says whose tokenizer it is
  python -m experiments.run -m search=greedy,best_of_n,beam_search run.seed=0,1
      a sweep over six settings; a table of all of them at the end
  python -m experiments.run --cfg job search=beam_search
      every setting with its value, and nothing is run

Groups and their choices
{groups}
What the model's generation_config asks for beside a search's own temperature, top_k, top_p and min_p
  model.generation_settings=false  do not apply it: a repetition penalty, banned words, a least length, ... (true)

Settings of a run
  run.name=NAME            the folder for the results; the same name goes on where it stopped
  run.output_dir=FOLDER    where those folders are made (outputs)
  run.seed=N               fixes every sampled token (0)
  run.batch=N              the most problems under way at once (what there is room for)
  run.max_tokens=N         budget for each problem: generated and verifier tokens
  run.max_generated_tokens=N  the same, without the verifier's
  run.max_calls=N          budget for each problem: expansions
  run.max_wall_s=X         budget for each problem: seconds
  run.retry_failed=true    solve problems again that failed before
  run.shard=I/N            solve part I of N, for N processes; python -m experiments.merge puts them together
  run.threads=N            threads of this process (its share of the cores)
  run.record_tokens=true   keep token ids and log-probabilities of the whole tree
  run.show_questions=true  print each question with its answer
  run.show_example=true    print one solved problem at the end
  run.dry=true             print the settings and three prompts, and stop
  dataset.reader=PATH, dataset.extract=PATH, dataset.grader=PATH
                           functions of your own, module.function: of a row, of a text, of gold answer and answer

A run writes config.yaml, records.jsonl (one problem a line) and summary.json to its folder. Whatever stops it, the
same command goes on where it was. The exit code is 0 when at least one problem could be solved, 1 after an error or
when every problem failed, 130 after Ctrl-C. The class behind a choice documents its settings: for search=beam_search
see search.BeamSearch.
"""

CALIBRATE = """\
Find settings for approximate verification on held-out problems, and keep them in a file.

  python -m experiments.calibrate calibrate.file=FILE [GROUP=CHOICE ...] [GROUP.SETTING=VALUE ...]

Examples
  python -m experiments.calibrate calibrate.file=gate.json dataset.offset=1000 dataset.limit=200
      thresholds of verifier=confidence_gated
  python -m experiments.calibrate calibrate.file=exit.json calibrate.level=2 verifier=self search=best_of_n
      the early exit of verifier=self +verifier/exit=calibrated

Settings
  calibrate.file=FILE            where the calibration goes
  calibrate.level=1|2            the confidence gate (1) or the early exit (2)
  calibrate.max_disagreement=X   the share of problems that may end with another answer; null for RKSC's rules
  calibrate.eps=X                of RKSC's rule for level 2, in nats

Groups and their choices are those of `python -m experiments.run --help`. The problems must be others than those of
the runs that will use the file: choose them by dataset.offset, dataset.limit, dataset.split or dataset.seed.
"""


SERVE = """\
Serve a model and its searches to clients of OpenAI's protocol, on this machine unless told otherwise.

  ttc-serve [serve.SETTING=VALUE ...] [GROUP=CHOICE ...] [GROUP.SETTING=VALUE ...]

Examples
  ttc-serve
      the default model at http://127.0.0.1:8000/v1; smollm2-135m+beam_search is a search on it
  ttc-serve model=hf model.name=Qwen/Qwen3-0.6B serve.port=9000 search=best_of_n search.n=8
      another model and port; the name MODEL+best_of_n means 8 samples
  TTC_API_KEY=... ttc-serve serve.host=0.0.0.0
      for other machines, with a key

Settings
  serve.host=ADDRESS, serve.port=N   where it listens (127.0.0.1, 8000; port 0 takes a free one)
  serve.name=NAME           what clients call the model (its own name)
  serve.key_env=NAME        the environment variable with the key that callers must send (TTC_API_KEY)
  serve.open=true           serve other machines without a key
  serve.max_body_bytes=N    of a request (1048576)
  serve.max_prompt_tokens=N of a prompt (what the model's context holds)
  serve.max_tokens=N        of an answer (1024)
  serve.max_width=N         samples, beams and other whole numbers that a request gives a search (64)
  serve.max_problems=N      waiting or under way; more get status 429 (256)
  serve.shutdown_s=N        how long requests under way may take to end after Ctrl-C (30)
  run.max_generated_tokens=N, run.max_tokens=N, run.max_calls=N, run.max_wall_s=X
                            what one request's search may cost (32768 generated tokens)
  run.batch=N               the most problems under way at once (what there is room for)
  dataset.answer_kind=NAME  how answers are read by searches that compare them (number)
  model.thinking_marks=X    what tells thoughts from answers (what the model names); false for nothing
  model.generation_settings=false
                            do not apply the model's generation_config: a repetition penalty, banned words, ... (true)
  +dataset.chat_options.NAME=VALUE  what else the chat template takes

All searches that rate use the verifier that is set. Groups and their choices are those of
`python -m experiments.run --help`; of the data set only the two settings above are used.
"""

PLAN = """\
Say which placement of a model and which memory policy run a search fastest on this machine. No weights are read.

  python -m experiments.plan [memory.SETTING=VALUE ...] [GROUP=CHOICE ...] [GROUP.SETTING=VALUE ...]

Examples
  python -m experiments.profile
      measure this machine first, once: writes profile.json
  python -m experiments.plan model=hf model.name=Qwen/Qwen3-8B search=best_of_n memory.budget_gib=8
      what would run fastest on a device with 8 GiB
  python -m experiments.run model=hf model.name=Qwen/Qwen3-8B search=best_of_n memory=auto memory.budget_gib=8
      run it so

Settings
  memory.profile=FILE       from python -m experiments.profile (profile.json)
  memory.budget_gib=X       of the device, for weights and KV together (what is free on CUDA, else no limit)
  memory.host_budget_gib=X  of the host (all of its memory)
  memory.link_gbps=X        on a CPU, slow the link down to so many 1e9 bytes a second
  memory.prompt_tokens=N    of the prompt that the branches share (512)
  memory.branches=N, memory.output_tokens=N, memory.step_tokens=N
                            branches, tokens of each, and of a step (what the search asks for)
  run.batch=N               how many problems are under way at once (as many as the run begins by itself)
  placement=NAME            choose among the memory policies with this placement alone

Groups and their choices are those of `python -m experiments.run --help`.
"""

TRAIN_VERIFIER = """\
Train a verifier on the model's own solutions: a value head on its last hidden state, which rates every step.

  python -m experiments.train_verifier [train.SETTING=VALUE ...] [GROUP=CHOICE ...] [GROUP.SETTING=VALUE ...]

Examples
  python -m experiments.train_verifier
      a head for the default model on sums, in outputs/value_head-sums
  python -m experiments.run verifier=value_head verifier.model=outputs/value_head-sums
      a run with it
  python -m experiments.train_verifier dataset=gsm8k train.problems=200 train.step_tokens=64 train.max_steps=8
      another data set; its train split is trained on, the first 200 problems of its test split are tested
  python -m experiments.train_verifier dataset=file dataset.path=test.jsonl +train.data.path=train.jsonl
      your own problems

The data set as it is set is the test set. Problems to train on whose questions are in it are left out.

Settings
  train.folder=FOLDER       where the head, its card and the data go (outputs/value_head-DATASET)
  +train.data.KEY=VALUE    how the settings of the data set differ for the problems to train on; by default another
                            seed for generated problems, and for the hub the split that solved examples come from
  train.problems=N          problems to train on (400); dataset.limit says how many to test on (200)
  train.validation=X        the share of them that the strength of regularisation is chosen on (0.2)
  train.rollouts=N          solutions of each problem (8)
  train.continuations=N     continuations from the end of each step, which say what the step is worth (4)
  train.labels=NAME         soft: the share of right continuations; hard: whether any is right; outcome: whether the
                            solution itself is right (soft)
  train.temperature=X       of solutions, continuations and samples (0.8)
  train.step_tokens=N       tokens of a step at most (32)
  train.max_steps=N         steps of a solution at most (8)
  train.separator=TEXT      what ends a step (a line break)
  train.prompt=TEXT         what the head reads before a solution, {question} in it; null for the model's own prompt
  train.samples=N           best-of-n on the problems to test (16)
  train.record=FILE         also write the figures there

The head is compared with confidence, with `verifier` and with a majority, in best-of-n and in `search`.
Groups and their choices are those of `python -m experiments.run --help`.
"""


def page() -> str:
    check()
    defaults = _defaults()
    lines = []
    groups = ("model", "dataset", "search", "verifier", "memory", "placement", "cache", "sharing", "gate", "backend")
    for group in groups:
        names = [f"{name}*" if name == defaults[group] else name for name in choices(group)]
        lines += _wrapped(f"  {group:<10}", names)
    lines += _wrapped("  +experiment=", choices("experiment"))
    return PAGE.format(groups="\n".join([*lines, "  (* the default)", ""]))


def _wrapped(head: str, words: list[str], width: int = 80) -> list[str]:
    lines = [head]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(" " * len(head))
        lines[-1] += " " + word
    return lines


def _defaults() -> dict[str, str]:
    """The choice of each group in conf/config.yaml."""
    import yaml

    entries = yaml.safe_load((conf() / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}

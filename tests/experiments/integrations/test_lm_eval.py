"""lm-evaluation-harness over searches: equal to its own `hf` with greedy search, seeds, its cache,
its command."""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tomllib
from functools import partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

pytest.importorskip(
    "lm_eval", reason="lm-evaluation-harness is not installed: pip install -e '.[eval]'"
)

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from experiments.integrations.lm import SearchLM
from experiments.integrations.lm_eval import evaluate, own_settings, register
from experiments.integrations.solver import Solver, configuration
from search import Greedy, SelfConsistency
from tests.helpers.thinking import OPENING, Thinking, thinker
from ttc import Engine, InvalidInput
from ttc.model.loading.load import load

TASKS = Path(__file__).parent / "harness_tasks"
NAMES = ("sums_generate", "sums_choices", "sums_text")
CONTEXT = 160


def tokenizer(bos: bool = False) -> PreTrainedTokenizerFast:
    """A token for each byte, and one that ends a sequence. bos: another one begins it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("</s>"), AddedToken("<s>")])
    if bos:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 257)]
        )
    names = {"eos_token": "</s>", "pad_token": "</s>"} | ({"bos_token": "<s>"} if bos else {})
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.4,
        eos_token_id=256,
        bos_token_id=None,
        pad_token_id=256,
    )
    return LlamaForCausalLM(config).eval()


def task(name: str, **changes: Any) -> dict[str, Any]:
    """A task of the folder, its data by their full path."""
    found: dict[str, Any] = yaml.safe_load((TASKS / f"{name}.yaml").read_text())
    return found | {"dataset_kwargs": {"data_files": str(TASKS / "sums.jsonl")}} | changes


def samples(model: Any, *tasks: dict[str, Any]) -> dict[str, list[tuple[Any, ...]]]:
    """What a model has answered in each task, and what the harness made of it."""
    results = simple_evaluate(
        model,
        tasks=list(tasks),
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),
    )
    return {
        name: [(s["doc_id"], s["filter"], s["resps"], s["filtered_resps"]) for s in found]
        for name, found in results["samples"].items()
    }


def search_lm(model: Any = None, words: Any = None, search: Any = None, **options: Any) -> SearchLM:
    engine = Engine(tiny() if model is None else model, words or tokenizer())
    return SearchLM(
        Solver(engine, search or Greedy(), settings=options.pop("settings", {})), **options
    )


def assert_equal(own: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert own["sums_generate"] == theirs["sums_generate"]
    for name in ("sums_choices", "sums_text"):
        for (*about, mine, _), (*same, other, _) in zip(own[name], theirs[name], strict=True):
            assert about == same
            flat, wanted = ([resp for (resp,) in rows] for rows in (mine, other))
            for a, b in zip(flat, wanted, strict=True):
                if isinstance(b, tuple | list):
                    assert a[0] == pytest.approx(b[0], abs=2e-4, rel=1e-5) and a[1] == b[1]
                else:
                    assert a == pytest.approx(b, abs=2e-4, rel=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize(("bos", "penalty"), [(False, None), (True, None), (False, 1.5)])
def test_greedy_search_answers_and_scores_as_the_harness_s_own_model(
    bos: bool, penalty: float | None
) -> None:
    """penalty: one that the model's generation_config sets, which both follow."""
    words, plain = tokenizer(bos), tiny()
    plain.generation_config.repetition_penalty = penalty
    reference = HFLM(
        pretrained=copy.deepcopy(plain),
        tokenizer=words,
        backend="causal",
        batch_size=3,
        device="cpu",
    )
    tasks = [task(name) for name in NAMES]
    theirs = samples(reference, *tasks)
    lm = search_lm(plain, words)
    assert_equal(samples(lm, *tasks), theirs)
    texts = {resp for _, _, ((resp,),), _ in theirs["sums_generate"]}
    assert len(texts) > 1 and any(texts)  # the model says something, and not the same to all
    lengths = [
        len(words.encode(row["question"])) for row in map(json.loads, (TASKS / "sums.jsonl").open())
    ]
    assert 2 * sum(lengths) / 5 + max(lengths) > CONTEXT - 24  # so that prompts are cut on the left
    assert lm.solver.backend.kv_bytes() == 0


@pytest.mark.parametrize("bos", [False, True])
def test_scores_of_edges_equal_the_harness_s_own_model(bos: bool) -> None:
    words, plain = tokenizer(bos), tiny()
    lm = search_lm(copy.deepcopy(plain), words)
    reference = HFLM(
        pretrained=plain, tokenizer=words, backend="causal", batch_size=2, device="cpu"
    )
    contexts = [f"{n} + {n} =" for n in range(30)]
    asked = [_request("generate_until", context, {"max_gen_toks": 3}) for context in contexts]
    written = zip(contexts, reference.generate_until(asked), strict=True)
    context, likely = next(
        (context, text) for context, text in written if len(text) == 3 and text.isascii()
    )
    pairs = [
        ("", "begins with nothing"),
        (context, likely),  # what greedy decoding writes
        (context, likely[:1]),
        ("ends with blanks  ", "x"),
        ("c" * (CONTEXT - 1), "d"),
        ("c" * CONTEXT, "d"),
        ("c" * (CONTEXT + 7), "de"),
        ("c", "d" * (CONTEXT - 2)),
        ("long", "d" * CONTEXT),
    ]
    requests = [_request("loglikelihood", *pair) for pair in pairs]
    own, theirs = lm.loglikelihood(requests), reference.loglikelihood(requests)
    assert [greedy for _, greedy in own] == [greedy for _, greedy in theirs]
    assert [score for score, _ in own] == pytest.approx(
        [score for score, _ in theirs], abs=2e-4, rel=1e-5
    )
    assert own[1][1] and own[2][1] and not own[0][1]
    with pytest.raises(
        InvalidInput, match=f"{CONTEXT + 1} tokens to score are more than the model's context"
    ):
        lm.loglikelihood([_request("loglikelihood", "a", "d" * (CONTEXT + 1))])


def _request(kind: str, *arguments: Any, doc: int = 0) -> Instance:
    return Instance(kind, {}, arguments, 0, ("edges", doc, 1))


def test_a_context_is_computed_once_for_its_choices() -> None:
    lm = search_lm()
    context = "Question: which of these is it?\nAnswer:"
    lm.loglikelihood(
        [
            _request("loglikelihood", context, choice)
            for choice in (" one", " two", " three", " four")
        ]
    )
    fed = lm.usage.prompt_tokens + lm.usage.verifier_tokens
    assert fed <= len(context) + len(" one two three four")
    before = fed
    lm.loglikelihood([_request("loglikelihood", context + more, " x") for more in ("", " a", " b")])
    assert lm.usage.prompt_tokens + lm.usage.verifier_tokens - before <= len(context) + 2 * 2 + 3


@pytest.mark.slow
def test_repetitions_are_different_samples_and_the_same_in_every_run() -> None:
    kwargs = {"until": ["\n\n"], "do_sample": True, "temperature": 1.0, "max_gen_toks": 12}
    sampled = task("sums_generate", repeats=4, generation_kwargs=kwargs)
    del sampled["filter_list"]
    found = []
    for batch in (1, 5):
        lm = search_lm(search=SelfConsistency(n=1))
        lm.solver.batch = batch
        found.append({doc: resps for doc, _, (resps,), _ in samples(lm, sampled)["sums_generate"]})
    assert found[0] == found[1]
    assert all(len(set(resps)) > 1 for resps in found[0].values())


def test_a_task_that_samples_is_refused_by_a_search_that_does_not() -> None:
    options = {"do_sample": True, "temperature": 0.7, "max_gen_toks": 8}
    with pytest.raises(
        InvalidInput, match=r"the task asks for .*0\.7.*greedy search takes the most likely token"
    ):
        search_lm().generate_until([_request("generate_until", "1 + 1 =", options)])
    with pytest.raises(InvalidInput, match="num_beams means nothing to a search"):
        search_lm().generate_until(
            [_request("generate_until", "1 + 1 =", {"num_beams": 4, "max_gen_toks": 8})]
        )
    with pytest.raises(InvalidInput, match="max_gen_toks=500 leaves no room for a prompt"):
        search_lm().generate_until([_request("generate_until", "1 + 1 =", {"max_gen_toks": 500})])


def test_what_the_search_sets_itself_goes_before_the_task() -> None:
    sampled = {"do_sample": True, "temperature": 0.2, "max_gen_toks": 9}
    given = {"search.max_tokens": 5, "search.temperature": 1.5}
    own = SelfConsistency(n=2, max_tokens=5, temperature=1.5)
    for settings, expected in (({}, (9, 0.2)), (given, (5, 1.5))):
        lm = search_lm(search=own, settings=settings)
        _, asked = lm.read_options(sampled)
        search = lm.solver.check(asked)
        assert (search.max_tokens, search.temperature, search.n) == (*expected, 2)


@pytest.mark.slow
def test_kept_answers_are_found_again_by_the_same_configuration_alone(tmp_path: Path) -> None:
    file = str(tmp_path / "answers" / "kept.db")
    tasks = [task(name) for name in NAMES]

    def made(**identity: Any) -> SearchLM:
        lm = search_lm()
        lm.solver.identity = identity
        return SearchLM(lm.solver, cache=file)

    first = made(n=1)
    expected = samples(first, *tasks)
    assert first.answers.reused == 0 and first.solved == 5
    again = made(n=1)
    assert samples(again, *tasks) == expected
    assert again.solved == 0 and again.answers.reused == 5 + 14 + 5
    other = made(n=2)
    samples(other, *tasks)
    assert other.answers.reused == 0 and other.solved == 5


def test_the_harness_s_own_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="give cache_file=FILE among model_args"):
        simple_evaluate(search_lm(), tasks=[task("sums_choices")], use_cache=str(tmp_path / "db"))
    arguments = argparse.Namespace(
        model="ttc", model_args={"search": "greedy"}, use_cache="db", device="cpu"
    )
    changed = own_settings(arguments)
    assert changed.model_args == {"search": "greedy", "cache_file": "db", "device": "cpu"}
    assert changed.use_cache is None
    untouched = argparse.Namespace(model="hf", model_args=None, use_cache="db", device=None)
    assert own_settings(untouched).use_cache == "db"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "gsm8k"}, "dataset is no setting of a search"),
        ({"run.name": "x"}, "run.name is no setting of a search"),
        ({"search": "best_of"}, "search=best_of is unknown; is it best_of_n"),
        ({"search.n": 3}, "search.n is no setting of search.Greedy"),
        ({"backend": "openai", "dtype": "float32"}, "the server decides about model.dtype=float32"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        configuration(
            {{"dtype": "model.dtype"}.get(name, name): value for name, value in settings.items()}
        )


def test_the_command_runs_a_search_and_writes_the_harness_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sums.yaml").write_text(yaml.safe_dump(task("sums_generate")))
    settings = (
        "search=best_of_n,search.n=2,search.max_tokens=4,verifier=confidence,"
        "dtype=float32,run.seed=3"
    )
    words = [
        "--model_args",
        f"pretrained={tmp_path / 'model'},{settings}",
        "--tasks",
        "sums_generate",
        "--limit",
        "2",
    ]
    words += [
        "--include_path",
        str(tmp_path / "tasks"),
        "--output_path",
        str(tmp_path / "out"),
        "--log_samples",
    ]
    # reading all others takes long
    of_the_folder = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", of_the_folder)
    monkeypatch.setattr(sys, "argv", ["lm_eval", "run", "--model", "ttc", *words])
    evaluate()
    (file,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(file.read_text())
    assert "exact_match,flexible-extract" in found["results"]["sums_generate"]
    about = found["config"]
    assert (
        about["ttc"]["search"]["n"] == 2
        and about["ttc"]["run"]["seed"] == 3
        and about["ttc_searches"] == 2
    )
    assert about["ttc_usage"]["generated_tokens"] <= 2 * 2 * 4 and about["ttc"]["weights"]
    (kept,) = (tmp_path / "out").rglob("samples_*.jsonl")
    assert {json.loads(line)["doc_id"] for line in kept.open()} == {0, 1}


def test_newer_releases_find_the_model_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["lm_eval.models"]["ttc"].partition(":")
    assert getattr(import_module(module), name) is SearchLM
    register()
    register()  # twice is no error
    from lm_eval.api.registry import get_model

    assert get_model("ttc") is SearchLM


@pytest.mark.parametrize(
    ("text", "own", "with_token"),
    [
        (
            "The answer is 3.\n\nQ</think>\n\nThe answer is 4.Q5",
            "The answer is 4.",
            "The answer is 4.",
        ),
        # what ends no thought is all text to `think_end_token`
        ("The answer is 3.", "", "The answer is 3."),
        ("</think>4", "4", "4"),
    ],
)
def test_thoughts_are_cut_off_before_stop_strings_are_looked_for(
    text: str, own: str, with_token: str
) -> None:
    words = thinker(OPENING, plain=("<think>", "</think>"))
    chat = "<turn>user\nq<eos><turn>assistant\n<think>\n"
    for options, answer in (({}, own), ({"think_end_token": "</think>"}, with_token)):
        solver: Any = Solver(Thinking([text], words), SelfConsistency(n=1))
        lm = SearchLM(solver, **options)
        asked = _request("generate_until", chat, {"max_gen_toks": 90, "until": ["Q"]})
        assert lm.generate_until([asked], disable_tqdm=True) == [answer]


@pytest.mark.slow
def test_greedy_search_equals_the_harness_s_own_model_on_smollm2() -> None:
    plain, words = load("smollm2-135m", dtype=torch.float32)
    reference = HFLM(
        pretrained=copy.deepcopy(plain),
        tokenizer=words,
        backend="causal",
        batch_size=1,
        device="cpu",
    )
    tasks = [task(name) for name in NAMES]
    theirs = samples(reference, *tasks)
    assert_equal(samples(search_lm(plain, words), *tasks), theirs)

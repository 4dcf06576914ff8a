"""Every search at equal token budgets: accuracy, tokens and time, and which differences are more
than chance.

Each row of the record, one search at one budget, is written as soon as it is measured, so that the
command can be stopped; when it is given again, it measures what is missing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

from omegaconf import DictConfig

from experiments.lab.bench.budgets import (
    CODE_SEARCHES,
    LEAST,
    SEARCHES,
    Allowance,
    Figures,
    Part,
    default_task,
    gsm8k,
    programs,
    word_problems,
)
from experiments.lab.bench.dtypes import default_dtype
from experiments.lab.bench.options import RESULTS, Model
from experiments.lab.records import save
from experiments.runs.build import make_engine, make_template, make_verifier
from experiments.runs.data import LoadedTask, graded, load_task
from experiments.runs.fingerprint import data_fingerprint, model_fingerprint
from experiments.runs.grading import AnswerReading
from experiments.runs.provenance import commit, machine, provenance
from experiments.runs.stats import holm, mcnemar, wilson
from experiments.runs.summary import failed
from search import BestOfN, Search, SelfConsistency, solve
from ttc.errors import InvalidInput
from ttc.results import Problem, Result

IN_FLIGHT = 64
"""Problems that are solved at once."""

BASELINES = ("best_of_n", "self_consistency")
"""What each search is compared with."""


def run(  # noqa: PLR0913 - what is measured, each by its name
    *,
    problems: Annotated[int, "of the default task"] = 200,
    budgets: Annotated[Sequence[int], "tokens a problem"] = (40, 120, 360),
    data: Annotated[Path | None, "a file with GSM8K's rows, which are solved too"] = None,
    data_problems: Annotated[int, "of that file"] = 60,
    data_budgets: Sequence[int] = (768,),
    searches: Annotated[Sequence[str], "names with commas; default: all"] = list(
        SEARCHES | CODE_SEARCHES
    ),
    model: Model = "smollm2-135m",
    out: Path = RESULTS / "searches.json",
    word_budgets: Annotated[Sequence[int], "word problems of two steps too"] = (),
    merge: Annotated[Path | None, "a record whose rows are taken into this one"] = None,
    code_budgets: Annotated[Sequence[int], "ten functions to write too"] = (),
) -> None:
    """Measure what the record lacks, the cheapest budgets first, and write it after each search.

    budgets: tokens of a problem, on `problems` problems of the default task. data: a file with
    GSM8K's rows, whose first `data_problems` are solved within `data_budgets`. word_budgets: the
    same on as many word problems of two steps. code_budgets: the same on ten functions to write.
    merge: another record, whose rows take the places of this one's.
    """
    check(searches, [*budgets, *word_budgets, *data_budgets, *code_budgets])
    settings = [default_task(problems, budgets)]
    command = f"searches --problems {problems} --budgets {','.join(map(str, budgets))}"
    if data is not None:
        settings.append(gsm8k(data, data_problems, data_budgets))
        command += f" --data {data.name} --data-problems {data_problems}"
        command += f" --data-budgets {','.join(map(str, data_budgets))}"
    with TemporaryDirectory() as folder:
        if word_budgets:
            settings.append(word_problems(Path(folder) / "words.jsonl", problems, word_budgets))
            command += f" --word-budgets {','.join(map(str, word_budgets))}"
        if code_budgets:
            settings.append(programs(code_budgets))
            command += f" --code-budgets {','.join(map(str, code_budgets))}"
        tasks = {
            s.name: load_task(s.config("greedy", s.budgets[0], model).dataset) for s in settings
        }
    rows = _rows(out) if out.exists() else []
    if merge is not None:
        for row in _rows(merge):
            rows = _replaced(rows, row)
        write(rows, command, model, out)
    jobs = [(setting, tokens) for setting in settings for tokens in setting.budgets]
    jobs.sort(key=lambda job: job[1] * len(tasks[job[0].name].problems))
    warm = False
    for setting, tokens in jobs:
        task = tasks[setting.name]
        for name in (name for name in setting.searches if name in searches):
            config = setting.config(name, tokens, model)
            parts = setting.parts(name, tokens, model, task.problems, rows)
            place = {"task": setting.name, "budget": tokens, "search": name}
            known = place | {"fingerprint": fingerprint(config, parts)}
            if any(known.items() <= row.items() for row in rows):
                continue
            if not warm:  # first-use set-up is not counted
                solved(config, SelfConsistency(n=2, max_tokens=4), task.problems[:1], tokens)
                warm = True
            about = {
                "settings": [str(search) for search, _ in parts],
                "commit": commit(),
                "machine": machine(),
            }
            row = known | about | measure(config, parts, task, setting.allowance(tokens))
            rows = _replaced(rows, row)
            write(rows, command, model, out)
            print(
                f"{setting.name}, {tokens} tokens, {name}: {row['accuracy']:.1%}, "
                f"{row['seconds']:.0f} s",
                flush=True,
            )


def check(searches: Sequence[str], budgets: Sequence[int]) -> None:
    """Raise InvalidInput for a name that is unknown, and for a budget that is too small."""
    known_searches = SEARCHES | CODE_SEARCHES
    if unknown := [name for name in searches if name not in known_searches]:
        raise InvalidInput(
            f"the search {unknown[0]!r} is unknown; use some of {','.join(known_searches)}"
        )
    if few := [t for t in budgets if t < LEAST]:
        raise InvalidInput(
            f"a budget of {few[0]} tokens has no room for an answer; give {LEAST} or more"
        )


def _rows(record: Path) -> list[Figures]:
    rows: list[Figures] = json.loads(record.read_text(encoding="utf-8"))["rows"]
    return rows


def _replaced(rows: Sequence[Figures], row: Figures) -> list[Figures]:
    """The rows with this one in the place of that with the same task, budget and search."""
    place = {key: row[key] for key in ("task", "budget", "search")}
    return [other for other in rows if not place.items() <= other.items()] + [row]


def fingerprint(config: DictConfig, parts: Sequence[Part]) -> str:
    """A short hash of what a row depends on: searches, verifier, seed, prompt, problems and
    model."""
    searches = [(search, data_fingerprint(problems, [])) for search, problems in parts]
    known = [
        searches,
        config.verifier,
        config.run.seed,
        config.dataset.instruction,
        config.dataset.examples,
    ]
    known.append(model_fingerprint(config.model.name))
    return hashlib.sha256(str(known).encode()).hexdigest()[:16]


def solved(
    config: DictConfig, search: Search, problems: Sequence[Problem], tokens: int
) -> list[Result]:
    """The problems' results, each within a budget of so many generated and verifier tokens."""
    return solve(
        search,
        problem=list(problems),
        engine=make_engine(config),
        verifier=make_verifier(config) if search.needs_verifier else None,
        seed=config.run.seed,
        template=make_template(config),
        **AnswerReading.of(config.dataset).options(),
        end=tuple(config.dataset.end),
        max_tokens=tokens,
        concurrency=IN_FLIGHT,
    )


def measure(
    config: DictConfig, parts: Sequence[Part], task: LoadedTask, allowance: Allowance
) -> Figures:
    """One search within one budget on all problems; tokens are means over them.

    outcomes: for each problem in its order 1 where it was solved, else 0. first_scores: the mean
    score of the first samples of each, where the search rates whole samples.
    """
    start = time.perf_counter()
    found = {r.problem.id: r for part in parts for r in solved(config, *part, allowance.tokens)}
    seconds = time.perf_counter() - start
    results = [found[problem.id] for problem in task.problems]
    usages = [result.usage for result in results]
    errors = [failed({"error": result.error}) for result in results]
    right = [
        graded(task, r)["correct"] and not error for r, error in zip(results, errors, strict=True)
    ]
    return {
        "verifier": config.verifier._target_ if parts[0][0].needs_verifier else None,
        "problems": len(results),
        "accuracy": fmean(right),
        "accuracy_95": wilson(sum(right), len(right)),
        "generated_tokens": fmean(usage.generated_tokens for usage in usages),
        "verifier_tokens": fmean(usage.verifier_tokens for usage in usages),
        "prompt_tokens": fmean(usage.prompt_tokens for usage in usages),
        "ended_by_the_budget": sum(result.stopped is not None for result in results),
        "failures": sum(errors),
        "seconds": seconds,
        "outcomes": "".join("01"[one] for one in right),
        **(
            {"first_scores": [_ease(r, allowance.first) for r in results]}
            if isinstance(parts[0][0], BestOfN)
            else {}
        ),
    }


def _ease(result: Result, first: int) -> float:
    """The mean score of the first samples; 0 for a problem that failed."""
    scores = [
        branch.score for branch in sorted(result.branches, key=lambda branch: branch.path)[:first]
    ]
    return fmean(score or 0.0 for score in scores) if scores else 0.0


# ---------------------------------------------------------------- the record


def write(rows: Sequence[Figures], command: str, model: str, out: Path) -> None:
    """The record: the rows, and each search compared with the baselines at its budget; a kill
    leaves the old one."""
    record = provenance(
        f"python -m experiments.bench {command}",
        model=f"{model}, {default_dtype()}, its real weights",
    )
    record |= {"rows": rows, "comparisons": comparisons(rows)}
    save(record, out)


def comparisons(rows: Sequence[Figures]) -> list[Figures]:
    """Each row against each baseline's with the same problems and budget, by McNemar's test.

    gained, lost: the problems that only the search solves, and only the baseline. p_holm: corrected
    for all comparisons of the task with that baseline, over all budgets.
    """
    found: list[Figures] = []
    for baseline in BASELINES:
        base = {
            (row["task"], row["budget"]): row["outcomes"]
            for row in rows
            if row["search"] == baseline
        }
        for task in dict.fromkeys(row["task"] for row in rows):
            family = [row for row in rows if row["task"] == task and row["search"] != baseline]
            family = [
                row for row in family if len(base.get((task, row["budget"]), "")) == row["problems"]
            ]
            tests = [_test(row["outcomes"], base[task, row["budget"]]) for row in family]
            corrected = holm([test["p"] for test in tests])
            for row, test, p in zip(family, tests, corrected, strict=True):
                place = {key: row[key] for key in ("task", "budget", "search")}
                found.append(place | {"baseline": baseline} | test | {"p_holm": p})
    return found


def _test(own: str, base: str) -> Figures:
    pairs = list(zip(own, base, strict=True))
    gained, lost = pairs.count(("1", "0")), pairs.count(("0", "1"))
    return {
        "difference": (gained - lost) / len(pairs),
        "gained": gained,
        "lost": lost,
        "p": mcnemar(gained, lost),
    }

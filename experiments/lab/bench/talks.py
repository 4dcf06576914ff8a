"""Conversations whose last question needs a number of an earlier turn: each search's accuracy, what
a verifier is worth that reads the last message alone, and whether the server sends and draws the
same as Python."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import httpx2

import experiments.runs.problem_loop  # noqa: F401  the record names the code that a run uses
from experiments.eval.compare.figures import row_figures
from experiments.eval.compare.rows import ComparedRow
from experiments.lab.bench.best_searches import made_runs
from experiments.lab.bench.options import RESULTS
from experiments.lab.bench.serve import NAME, Server, started
from experiments.lab.records import save
from experiments.runs.finished import FinishedRun
from experiments.runs.provenance import provenance
from search import Greedy, Search, SelfConsistency, solve
from ttc import Engine, Problem
from ttc.text.conversation import Talk
from verifiers import ArithmeticVerifier

SAMPLED = "search.n=8 search.max_tokens=48"
SEARCHES = {
    "greedy": "search=greedy search.max_tokens=48",
    "self_consistency": f"search=self_consistency {SAMPLED}",
    "arithmetic": f"search=best_of_n verifier=arithmetic {SAMPLED}",
    "last message alone": "search=greedy search.max_tokens=48 dataset.fields.question=alone",
}
"""For each row what its command sets."""

KEPT = ("row", "accuracy", "accuracy_95", "generated_tokens", "verifier_tokens")


def talks(count: int) -> list[dict[str, Any]]:
    """Rows of a data set: the first sum is answered, the second goes on from it."""
    dice = random.Random(0)
    rows = []
    for _ in range(count):
        has, more, last = dice.randint(6, 20), dice.randint(2, 20), dice.randint(2, 7)
        after, (word, now) = has + more, dice.choice((("buys", 1), ("eats", -1)))
        alone = f"Then he {word} {last} apples. How many apples has he now?"
        rows.append(
            {
                "question": [
                    {
                        "role": "user",
                        "content": f"Tom has {has} apples and buys {more} apples. How many apples "
                        "has he?",
                    },
                    {
                        "role": "assistant",
                        "content": f"{has} + {more} = {after}\nThe answer is {after}.",
                    },
                    {"role": "user", "content": alone},
                ],
                "alone": alone,
                "answer": str(after + now * last),
            }
        )
    return rows


def run(
    *,
    problems: int = 30,
    seeds: Sequence[int] = (0,),
    served: Annotated[int, "conversations that are sent to a server too"] = 3,
    runs: Annotated[Path, "the folder of the runs"] = Path("outputs/talks"),
    out: Path = RESULTS / "talks.json",
) -> None:
    """Make the runs that are missing, ask a server, print the table and write the figures."""
    rows, file = talks(problems), runs / f"talks{problems}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    data = ["dataset=file", f"dataset.path={file.resolve()}", "dataset.instruction='{question}'"]
    common = [*data, "model.dtype=float32"]
    made = {
        name: made_runs(name.replace(" ", "_"), [*common, *words.split()], seeds, runs)
        for name, words in SEARCHES.items()
    }
    same = same_on_a_server([row["question"] for row in rows[:served]])
    words = f"--problems {problems} --seeds {','.join(map(str, seeds))} --served {served}"
    record = provenance(
        f"python -m experiments.bench talks {words}",
        model="smollm2-135m, float32, its real weights",
    )
    figures = [row_figures(ComparedRow(name, its)) for name, its in made.items()]
    record["rows"] = [
        {key: row[key] for key in KEPT} | {"settings": SEARCHES[row["row"]]} for row in figures
    ]
    chats = {f"file-{place}": row["question"] for place, row in enumerate(rows)}
    record["arithmetic_by_what_it_reads"] = {
        what: chosen_right(made["arithmetic"], {name: read(chat) for name, chat in chats.items()})
        for what, read in (("the conversation", Talk.of), ("its last message", _last))
    }
    record["same_text_on_a_server"] = same
    save(record, out)
    print(table(record))


def _last(chat: Sequence[dict[str, str]]) -> str:
    return chat[-1]["content"]


def chosen_right(runs: Sequence[FinishedRun], questions: dict[str, str]) -> float:
    """How often the branch that the rules rate best is right, where they read these questions."""
    rules, right = ArithmeticVerifier(), list[bool]()
    for record in (record for run in runs for record in run.records.values()):
        ended = [(b, b["finish_reason"] is not None) for b in record["branches"]]
        question = questions[record["id"]]
        scores = [rules.rate_text([b["text"]], question, end)[-1] for b, end in ended]
        paths = [b["path"] for b, _ in ended]
        best = min(range(len(ended)), key=lambda place: (-scores[place], paths[place]))
        right.append(ended[best][0]["correct"])
    return sum(right) / len(right)


def same_on_a_server(chats: Sequence[list[dict[str, str]]]) -> dict[str, str]:
    """For a greedy answer and a vote of eight: how many texts are those of Python."""
    command = [sys.executable, "-m", "experiments.serve", "--model", "smollm2-135m"]
    server = Server([*command, "model.dtype=float32", f"serve.name={NAME}", "--port"], {}, True)
    engine = Engine.from_pretrained("smollm2-135m", dtype="float32")
    vote = {"n": 8, "max_tokens": 48}
    ways: dict[str, tuple[dict[str, Any], Search]] = {
        "greedy": ({"model": NAME, "temperature": 0, "max_tokens": 48}, Greedy(max_tokens=48)),
        "self_consistency": (
            {"model": f"{NAME}+self_consistency", "search": vote, "answer_kind": "number"},
            SelfConsistency(n=8, max_tokens=48),
        ),
    }
    found = {}
    with started(server) as (url, _):
        for name, (asked, search) in ways.items():
            alike = 0
            for chat in chats:
                body = {**asked, "messages": chat, "seed": 0}
                reply = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=300)
                text = reply.raise_for_status().json()["choices"][0]["message"]["content"]
                result = solve(search, problem=Problem.of_chat(chat), engine=engine, seed=0)
                alike += result.best is not None and text.strip() == result.best.text.strip()
            found[name] = f"{alike} of {len(chats)}"
    return found


def table(record: dict[str, Any]) -> str:
    lines = ["| search | accuracy | 95% interval | generated | verifier |", "|---" * 5 + "|"]
    for row in record["rows"]:
        low, high = row["accuracy_95"]
        lines.append(
            f"| {row['row']} | {row['accuracy']:.1%} | {low:.1%} to {high:.1%} "
            f"| {row['generated_tokens']:.0f} | {row['verifier_tokens']:.0f} |"
        )
    what = ("arithmetic_by_what_it_reads", "same_text_on_a_server")
    return "\n".join([*lines, "", *(f"{name}: {record[name]}" for name in what)])

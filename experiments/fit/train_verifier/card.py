"""What is known of a head, as tables and as the model card of its folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig


def tables(record: dict[str, Any]) -> str:
    """How well right is told from wrong, and what that is worth in a search, as Markdown tables."""
    return f"{told_apart_table(record)}\n\n{searches_table(record)}\n\n{gains_table(record)}"


def told_apart_table(record: dict[str, Any]) -> str:
    """AUC of the scores of whole solutions and of steps."""
    rows = [(f"solutions, {name}", found) for name, found in record["solutions"].items()]
    rows.append(("steps before the last, value head", record["steps"]))
    lines = ["| scores of | AUC, all | AUC, within problems |", "|---|---|---|"]
    lines += [f"| {name} | {_interval(found['all'])} | {_interval(found['within'])} |" for name, found in rows]
    return "\n".join(lines)


def searches_table(record: dict[str, Any]) -> str:
    """Accuracy of each search by what chooses."""
    lines = ["| search | chosen by | accuracy | 95% interval |", "|---|---|---|---|"]
    for row in record["searches"]:
        low, high = row["accuracy_95"]
        lines.append(f"| {row['search']} | {row['chooser']} | {row['accuracy']:.1%} | {low:.1%} to {high:.1%} |")
    return "\n".join(lines)


def gains_table(record: dict[str, Any]) -> str:
    """What the head gains over others on the same problems, in points of accuracy."""
    lines = ["| search with the value head | over | gain in points | 95% interval | p |", "|---|---|---|---|---|"]
    for row in record["gains"]:
        value, low, high = (100 * x for x in row["gain"])
        lines.append(f"| {row['search']} | {row['over']} | {value:+.1f} | {low:+.1f} to {high:+.1f} | {row['p']:.2g} |")
    return "\n".join(lines)


def _interval(found: Sequence[float] | None) -> str:
    if found is None:
        return "-"
    value, low, high = found
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


LABELS = {
    "soft": "the share of its continuations that end right",
    "hard": "whether any of its continuations ends right",
    "outcome": "whether its solution ends right",
}


def card(record: dict[str, Any], config: DictConfig) -> str:
    """The README of the folder."""
    data, fit, seconds, machine = record["data"], record["fit"], record["seconds"], record["machine"]
    best = min(fit["validation_loss"].values())
    counts = "\n".join(
        f"| {name} | {part['problems']} | {part['solutions']} | {part['right']} | {part['steps']} |"
        for name, part in ((name, data[name]) for name in ("train", "validation", "test"))
    )
    use = f"model.name={config.model.name} dataset={config.dataset.name} verifier=value_head"
    return f"""\
# A value head for {config.model.name} on {data["dataset"]}

Two linear outputs on the model's last hidden state at the end of each step. Their softmax is the chance that the step
is right. It was trained for {record["model"]}; other weights need another head.

```
python -m experiments.run {use} verifier.model={config.train.folder}
```

## Data

The model's own solutions, {data["rollouts"]} for each problem at temperature {data["temperature"]}, and from the end of
each step but the last {data["continuations"]} continuations. A step's label is {LABELS[data["labels"]]};
that of a last step is whether its solution is right. The problems to train on differ from those of the test by
{data["source"]}. Of them {data["dropped"]} were left out, since their questions are in the test set or come twice.
Train and validation are parts of the other problems.

| part | problems | solutions | right solutions | steps |
|---|---|---|---|---|
{counts}

`train.jsonl`, `validation.jsonl` and `test.jsonl` hold these in the format of TRL's PRMTrainer (prompt, completions,
labels), and beside that each step's value and the problem's id. A private data set leaves no such files.

## Training

Logistic regression on scaled features. The strength of regularisation, {fit["strength"]:g}, was chosen on the
validation problems; the head was then fitted to both parts. Mean loss in nats: {fit["loss_before"]:.4f} for a constant,
{fit["loss"]:.4f} for the head; on the validation problems, fitted without them, {fit["validation_loss_before"]:.4f} and
{best:.4f}. It took {seconds["training"]:.0f} s with the solutions, and {seconds["all"]:.0f} s with the test
({machine["cpu"]}, threads: {machine["threads"]}).

## Test

On {data["test"]["problems"]} problems that nothing was trained or chosen on. Intervals are 95%, over problems; p is
McNemar's, of each comparison alone.

{tables(record)}

Code: commit {record["commit"]}. Command: `{record["command"]}`
"""

"""What is known of a head, as tables and as the model card of its folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from experiments.cli.tables import Table, percent, points


def tables(record: dict[str, Any]) -> str:
    """How well right is told from wrong, and what that is worth in a search, as Markdown tables."""
    told_apart = [[f"solutions, {name}", *_cells(row)] for name, row in record["solutions"].items()]
    name = record.get("verifier", "value head")
    told_apart.append([f"steps before the last, {name}", *_cells(record["steps"])])
    searches = [
        [
            row["search"],
            row["chooser"],
            percent(row["accuracy"]),
            " to ".join(map(percent, row["accuracy_95"])),
        ]
        for row in record["searches"]
    ]
    gains = [
        [
            row["search"],
            row["over"],
            points(gain),
            f"{points(low)} to {points(high)}",
            f"{row['p']:.2g}",
        ]
        for row in record["gains"]
        for gain, low, high in [row["gain"]]
    ]
    tables = (
        Table("", ("scores of", "AUC, all", "AUC, within problems"), told_apart),
        Table("", ("search", "chosen by", "accuracy", "95% interval"), searches),
        Table(
            "", (f"search with the {name}", "over", "gain in points", "95% interval", "p"), gains
        ),
    )
    return "\n\n".join(table.markdown() for table in tables)


def _cells(figures: dict[str, Any]) -> list[str]:
    return [_interval(figures[scope]) for scope in ("all", "within")]


def _interval(figure: Sequence[float] | None) -> str:
    if figure is None:
        return "-"
    value, low, high = figure
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _states(fit: dict[str, Any]) -> str:
    if "lora" not in fit:
        return "the model's last hidden state"
    return f"the last hidden state of the model with LoRA adapters of rank {fit['lora']['rank']}"


def _way(fit: dict[str, Any]) -> str:
    """How it was trained."""
    if "lora" not in fit:
        return f"""\
Logistic regression on scaled features. The strength of regularisation, {fit["strength"]:g}, was
chosen on the validation problems, fitted without them; the head was then fitted to both parts."""
    lora = fit["lora"]
    return f"""\
Adapters on all linear layers and the head together, by AdamW with a learning rate up to
{lora["learning_rate"]:g}, {lora["batch"]} solutions at once, {lora["epochs"]} times over the train
part. What is kept was best on the validation problems, after {lora["epoch"]}."""


LABELS = {
    "soft": "the share of its continuations that end right",
    "hard": "whether any of its continuations ends right",
    "outcome": "whether its solution ends right",
}


def card(record: dict[str, Any], config: DictConfig) -> str:
    """The README of the folder."""
    data = record["data"]
    fit = record["fit"]
    seconds = record["seconds"]
    machine = record["machine"]
    best = min(fit["validation_loss"].values())
    counts = "\n".join(
        f"| {name} | {part['problems']} | {part['solutions']} | {part['right']} | {part['steps']} |"
        for name, part in ((name, data[name]) for name in ("train", "validation", "test"))
    )
    use = f"model.name={config.model.name} dataset={config.dataset.name} verifier=value_head"
    name = record["verifier"]
    return f"""\
# A {name} for {config.model.name} on {data["dataset"]}

Two linear outputs on {_states(fit)} at the end of each step. Their softmax is
the chance that the step is right. It was trained for {record["model"]}; other weights need another
one.

```
python -m experiments.run {use} verifier.model={config.train.folder}
```

## Data

The model's own solutions, {data["rollouts"]} for each problem at temperature {data["temperature"]},
and from the end of each step but the last {data["continuations"]} continuations. A step's label is
{LABELS[data["labels"]]}; that of a last step is whether its solution is right. The problems to
train on differ from those of the test by {data["source"]}. Of them {data["dropped"]} were left out,
since their questions are in the test set or come twice. Train and validation are parts of the other
problems.

| part | problems | solutions | right solutions | steps |
|---|---|---|---|---|
{counts}

`train.jsonl`, `validation.jsonl` and `test.jsonl` hold these in the format of TRL's PRMTrainer
(prompt, completions, labels), and beside that each step's value and the problem's id. A private
data set leaves no such files.

## Training

{_way(fit)} Mean loss in nats:
{fit["loss_before"]:.4f} for a constant, {fit["loss"]:.4f} for the {name}; on the validation
problems, {fit["validation_loss_before"]:.4f} and {best:.4f}. It took
{seconds["training"]:.0f} s with the solutions, and {seconds["all"]:.0f} s with the test
({machine["cpu"]}, threads: {machine["threads"]}).

## Test

On {data["test"]["problems"]} problems that nothing was trained or chosen on. Intervals are 95%,
over problems; p is McNemar's, of each comparison alone.

{tables(record)}

Code: commit {record["commit"]}. Command: `{record["command"]}`
"""

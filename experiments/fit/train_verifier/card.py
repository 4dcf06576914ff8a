"""What is known of a head, as tables and as the model card of its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from shlex import quote
from typing import Any

from omegaconf import DictConfig

from experiments.cli.tables import Table, percent, points
from experiments.runs.config_values import as_dict


def tables(record: dict[str, Any]) -> str:
    """How well right is told from wrong, and what that is worth in a search, as Markdown tables."""
    auc_rows = [[f"solutions, {name}", *_cells(row)] for name, row in record["solutions"].items()]
    name = record.get("verifier", "value head")
    auc_rows.append([f"steps before the last, {name}", *_cells(record["steps"])])
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
        Table("", ("scores of", "AUC, all", "AUC, within problems"), auc_rows),
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


def card(record: dict[str, Any], config: DictConfig) -> str:
    """The README of the folder."""
    data, fit, machine = record["data"], record["fit"], record["machine"]
    parts = [
        [name, *(str(data[name][count]) for count in ("problems", "solutions", "right", "steps"))]
        for name in ("train", "validation", "test")
    ]
    counts = Table("", ("part", "problems", "solutions", "right solutions", "steps"), parts)
    lora = fit.get("lora")
    states = f" with LoRA adapters of rank {lora['rank']}" if lora else ""
    way = (
        f"by AdamW with the adapters, kept after epoch {lora['epoch']} of {lora['epochs']}"
        if lora
        else f"by logistic regression, with a penalty of {fit['strength']:g}"
    )
    train = config.train
    use = f"model.name={config.model.name} dataset={config.dataset.name} verifier={train.verifier}"
    what = f"Two linear outputs on the model's last hidden state{states}, at the end of each step"
    if train.verifier == "token_prm":
        what = f"The model's own words for good and bad{states}, at a mark after each step"
        settings = {"separator": train.separator, **as_dict(train.format)}
        written = {name: json.dumps(value, ensure_ascii=False) for name, value in settings.items()}
        use += "".join(" " + quote(f"verifier.{name}={value}") for name, value in written.items())
    return f"""\
# A {record["verifier"]} for {config.model.name} on {data["dataset"]}

{what}: their
softmax is the chance that the step is right. It was trained for {record["model"]}.

```
python -m experiments.run {use} verifier.model={train.folder}
```

Each problem has {data["rollouts"]} solutions by the model itself, at temperature
{data["temperature"]}, with {data["continuations"]} continuations from the end of each step but the
last. Labels: `{data["labels"]}` (docs/verifiers.md says what they are). Problems to train on differ
from those to test by {data["source"]}; left out as in the test set or twice: {data["dropped"]}.
`train.jsonl`, `validation.jsonl` and `test.jsonl` have these in the format of TRL's PRMTrainer,
unless the data are private.

{counts.markdown()}

Trained {way}, chosen on the validation problems. Mean loss in nats: {fit["loss_before"]:.4f} for a
constant, {fit["loss"]:.4f} for what is trained; on the validation problems
{fit["validation_loss_before"]:.4f} and {min(fit["validation_loss"].values()):.4f}. It took
{record["seconds"]["all"]:.0f} s with the test ({machine["cpu"]}, threads: {machine["threads"]}).

On the test problems, which nothing was trained or chosen on (intervals are 95%, over problems; p is
McNemar's, of each comparison alone):

{tables(record)}

Code: commit {record["commit"]}. Command: `{record["command"]}`
"""

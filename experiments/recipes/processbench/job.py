"""One verifier over ProcessBench: every sample's scores are kept as they come."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig

from experiments.cli.output import say, show
from experiments.recipes.processbench.figures import best_threshold, figures_of, table
from experiments.recipes.processbench.rating import rated, reads_steps
from experiments.recipes.processbench.samples import PARTS, LabelledSample, load_samples
from experiments.runs.build import make_engine, make_template, make_verifier, resolved
from experiments.runs.config_values import as_dict
from experiments.runs.fingerprint import model_fingerprint, reward_fingerprint
from experiments.runs.private import without_quotes
from experiments.runs.records import RunFolder
from experiments.runs.screen import show_logged
from ttc.errors import InvalidInput
from ttc.protocols import Verifier

NEEDED = ("id", "label", "scores", "error")
"""What a record of a sample has."""


def run(config: DictConfig) -> dict[str, Any]:
    """Rate what is left and write the figures; returns what summary.json holds."""
    config = resolved(config)
    show_logged(config.dataset.private)
    settings = config.processbench
    check_threshold(settings.threshold)
    verifier = make_verifier(config)
    if verifier is None:
        raise InvalidInput("there is no verifier to measure; choose one other than none")
    samples = load_samples(settings.data, settings.limit)
    with RunFolder(config, NEEDED) as folder:
        folder.check_inputs(_inputs(config, samples, verifier))
        _rate(config, folder, verifier, samples)
        scores = {s.id: _scores(folder.records[s.id]) for s in samples}
        threshold = settings.threshold
        if threshold in PARTS:
            threshold = best_threshold(samples, scores, threshold)
        rows = [figures_of(part, samples, scores, float(threshold)) for part in PARTS]
        model = str(config.verifier.get("model") or config.model.name)
        summary = {"model": model, "threshold": threshold, "parts": [asdict(row) for row in rows]}
        folder.write_summary(summary)
    title = f"ProcessBench, {type(verifier).__name__} on {model}, threshold {float(threshold):.4g}"
    show(table(title, rows, model).text())
    show(f"\nscores and figures: {folder.path}")
    return summary


def check_threshold(threshold: Any) -> None:
    """Raise InvalidInput for what is neither a score nor a part to find one on."""
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not number and threshold not in PARTS:
        raise InvalidInput(
            f"processbench.threshold={threshold} is neither a number nor the part on which the "
            f"best one is found, one of {', '.join(PARTS)}"
        )


def _inputs(
    config: DictConfig, samples: list[LabelledSample], verifier: Verifier
) -> dict[str, dict[str, str]]:
    marks = {s.id: hashlib.sha256(repr(s).encode()).hexdigest()[:16] for s in samples}
    model = {} if reads_steps(verifier) else model_fingerprint(config.model.name)
    reward = reward_fingerprint(as_dict(config.verifier, resolve=True))
    return {"data": marks, "model": model, "verifier": reward}


def _rate(
    config: DictConfig, folder: RunFolder, verifier: Verifier, samples: list[LabelledSample]
) -> None:
    left = [sample for sample in samples if sample.id not in folder.records]
    if done := len(samples) - len(left):
        say(f"{done} of {len(samples)} were rated already")
    if not left:
        return
    backend = None if reads_steps(verifier) else make_engine(config)
    template = None if backend is None else make_template(config)
    for start in range(0, len(left), config.processbench.batch):
        batch = left[start : start + config.processbench.batch]
        scores = rated(batch, verifier, backend, template)
        private = config.dataset.private
        folder.append(*(_record(s, row, private) for s, row in zip(batch, scores, strict=True)))
        say(f"{len(folder.records)} of {len(samples)}")


def _record(sample: LabelledSample, scores: list[float] | str, private: bool) -> dict[str, Any]:
    failed = isinstance(scores, str)
    if isinstance(scores, str) and private:
        scores = without_quotes(scores, (sample.problem, *sample.steps))
    return {
        "id": sample.id,
        "label": sample.label,
        "scores": None if failed else scores,
        "error": scores if failed else None,
    }


def _scores(record: dict[str, Any]) -> list[float] | str:
    scores: list[float] | str = record["error"] if record["scores"] is None else record["scores"]
    return scores

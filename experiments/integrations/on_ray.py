"""`python -m experiments.on_ray --workers N ...`: a run whose shards Ray Data solves on the
machines of a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.cli.command import perform
from ttc.checks import check_whole
from ttc.errors import number_of, refuse, refusing


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.on_ray",
        description="Solve a run on a Ray cluster: each worker loads the model once and solves "
        "shards of the problems; their records come back here and are merged. Without a cluster, "
        "Ray uses this machine alone.",
    )
    parser.add_argument(
        "--workers", type=int, required=True, metavar="N", help="processes with a model each"
    )
    parser.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help="parts of the problems (4 for each worker, no more than there are problems)",
    )
    parser.add_argument("--gpus", type=float, default=0, metavar="X", help="of each worker (0)")
    parser.add_argument("--cpus", type=float, default=1, metavar="X", help="of each worker (1)")
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="KEY=VALUE",
        help="as for experiments.run; run.name is needed",
    )
    return parser.parse_args(words)


class RayWorker:
    """Solves shards in one of Ray's processes, where the model stays loaded."""

    def __init__(self, overrides: Sequence[str]):
        self.overrides = overrides

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The files of a solved shard, or why it failed."""
        from experiments.cli.refusals import explained
        from experiments.cli.temporary import temporary_folder

        try:
            with temporary_folder() as place:
                return self._solved(row["shard"], place)
        except (Exception, SystemExit) as error:
            return {"folder": None, "names": [], "texts": [explained(error)]}

    def _solved(self, shard: str, place: Path) -> dict[str, Any]:
        from experiments.runs.hydra_command import composed
        from experiments.runs.problem_loop import run
        from experiments.runs.records import run_folder

        config = composed([*self.overrides, f"run.shard={shard}", f"run.output_dir={place}"])
        run(config)
        folder = run_folder(config)
        files = sorted(
            file for file in folder.iterdir() if file.suffix in (".json", ".jsonl", ".yaml")
        )
        return {
            "folder": folder.name,
            "names": [file.name for file in files],
            "texts": [file.read_text(encoding="utf-8") for file in files],
        }


def solve(
    workers: int, shards: int | None, gpus: float, cpus: float, overrides: Sequence[str]
) -> Path:
    """Write the shards' folders and the merged run; returns the latter. Shards that are here
    already are kept.

    shards: None for four for each worker, but no more than there are problems.
    """
    from experiments.cli.output import say
    from experiments.eval.merge.merging import merge
    from experiments.runs.data import load_task
    from experiments.runs.hydra_command import composed
    from experiments.runs.records import run_folder
    from experiments.runs.shards import Shard
    from ttc.errors import InvalidInput

    count = 4 * workers if shards is None else shards
    check_whole("--workers", workers, 1)
    check_whole("--shards", count, 1)
    named = any(override.startswith("run.name=") for override in overrides)
    config = composed(overrides)
    refuse(
        {
            "give the run a name, as run.name=NAME": not named,
            f"run.shard={config.run.shard} is set here by --shards; leave it out": (
                config.run.shard is not None
            ),
        }
    )
    if shards is None:  # a shard needs a problem
        count = max(1, min(count, len(load_task(config.dataset).problems)))
    whole = run_folder(config)
    folders = {
        f"{i}/{count}": whole.with_name(Shard(i, count).name(whole.name))
        for i in range(1, count + 1)
    }
    with refusing(ImportError, "this needs Ray: pip install -e '.[ray]'"):
        import ray
    left = [shard for shard, folder in folders.items() if not (folder / "summary.json").is_file()]
    failed: list[str] = []
    if left:
        say(f"{number_of(len(left), 'shard')} on {number_of(workers, 'worker')}")
        if not ray.is_initialized():
            ray.init(logging_level="ERROR")  # the cluster that RAY_ADDRESS names, else this machine
        for row in _solved(left, workers, gpus, cpus, overrides):
            if row["folder"] is None:
                failed.append(row["texts"][0])
            else:
                folder = whole.with_name(row["folder"])
                _write(row, folder)
                say(f"{folder.name} is done")
    if failed:
        raise InvalidInput(
            f"{len(failed)} of {number_of(count, 'shard')} failed: {failed[0]}; the same command "
            "goes on"
        )
    merge(whole, list(folders.values()))
    return whole


def _solved(
    shards: Sequence[str], workers: int, gpus: float, cpus: float, overrides: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """What a `RayWorker` returns of each shard, as they end."""
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    parts = ray.data.from_items(
        [{"shard": shard} for shard in shards], override_num_blocks=len(shards)
    )
    solved = parts.map(
        RayWorker,
        fn_constructor_args=(list(overrides),),
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_gpus=gpus or None,
        num_cpus=cpus,
    )
    yield from solved.iter_rows()


def _write(row: dict[str, Any], folder: Path) -> None:
    """Write a shard's files as a worker has sent them."""
    folder.mkdir(parents=True, exist_ok=True)
    # summary.json comes last
    for name, text in sorted(zip(row["names"], row["texts"], strict=True)):
        (folder / name).write_text(text, encoding="utf-8")


def main() -> None:
    arguments = parsed()

    def work() -> None:
        solve(**vars(arguments))

    perform(work, " ".join(sys.argv[1:]))

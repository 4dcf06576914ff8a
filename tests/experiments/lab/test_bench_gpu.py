"""First contact with a GPU: rehearsed from end to end, and each way in which a part can fail."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.lab.bench.gpu import first_contact, kernels, machine
from experiments.lab.bench.gpu.first_contact import run
from experiments.lab.bench.gpu.machine import Machine
from experiments.lab.bench.gpu.parts import ABOUT, Asked, Part
from experiments.standins.pretended import Waits, pretended_devices
from tests.helpers.benches import save_tiny_model
from tests.helpers.processes import finished
from ttc.cuda import gpu_kernel
from ttc.errors import InvalidInput

pytest.importorskip("triton")
ASKED = Asked(True, "smollm2-135m", None)
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
ROW = "import json, sys; out = open(sys.argv[1], 'a'); "
ROW += "say = lambda **row: print(json.dumps(row), file=out, flush=True); "


def part(name: str, code: str, seconds: float = 60) -> Part:
    """A part that runs some Python, in which `say` writes a row."""

    def command(asked: Asked, file: Path) -> list[str]:
        return [sys.executable, "-c", ROW + code, str(file)]

    return Part(name, name, seconds, command)


def record_of(
    tmp_path: Path, *made: Part, minutes: float = 5, asked: Asked = ASKED
) -> tuple[int, list[dict[str, Any]]]:
    out = tmp_path / "contact.json"
    code = run(asked, minutes, out, made)
    return code, json.loads(out.read_text())["parts"]


GOOD = part("good", "say(case='a', verdict='right')")


@pytest.mark.few
@pytest.mark.parametrize(
    ("code", "verdict", "why"),
    [
        ("say(case='a', verdict='right'); raise ValueError('too hot')", "failed", "too hot"),
        ("say(case='a', verdict='right'); import os; os.abort()", "killed", "SIGABRT"),
        ("say(case='a', verdict='wrong', off=3)", "wrong", "a: wrong"),
        ("say(case='a', verdict='failed', error='no memory')", "failed", "a: no memory"),
        ("pass", "failed", "without a word"),
        ("say(case='a', verdict='right'); out.write('{'); sys.exit(3)", "failed", "without a word"),
    ],
)
def test_a_part_that_fails_is_named_and_the_others_run(
    tmp_path: Path, code: str, verdict: str, why: str
) -> None:
    exit_code, found = record_of(tmp_path, GOOD, part("bad", code), GOOD)
    assert exit_code == 1
    assert [one["verdict"] for one in found] == ["right", verdict, "right"]
    assert why in found[1]["error"]
    if "case='a'" in code:  # what it had found before is kept
        assert [row["case"] for row in found[1]["rows"]] == ["a"]


@pytest.mark.slow
def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    child = f"import time\nwhile True: open({str(alive)!r}, 'w').close(); time.sleep(0.05)"
    code = (
        "say(case='a', verdict='right'); import subprocess; "
        f"subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    )
    _, found = record_of(tmp_path, part("hangs", code, seconds=3), GOOD)
    assert [one["verdict"] for one in found] == ["too long", "right"]
    assert found[0]["rows"] == [{"case": "a", "verdict": "right"}]
    assert "ended after 3 s, with 1 case done" in found[0]["error"]
    assert alive.exists()
    alive.unlink()
    time.sleep(0.3)
    assert not alive.exists()


def test_a_file_that_was_sent_is_shown_case_by_case(tmp_path: Path) -> None:
    hot = part("hot", "say(case='b', verdict='failed', error='too hot')")
    fast = part("fast", "say(case='a', verdict='measured', step_ms=12.345, replayed=3)")
    record_of(tmp_path, fast, hot)
    text = first_contact.report(tmp_path / "contact.json")
    assert "smollm2-135m" in text and "**fast**: measured" in text
    assert "- a: measured; step_ms 12.3; replayed 3" in text
    assert "- b: failed; error too hot" in text
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"other\.json is no file of `bench gpu`"):
        first_contact.report(tmp_path / "other.json")


def test_what_is_not_reached_in_time_is_left_out(tmp_path: Path) -> None:
    code, found = record_of(tmp_path, GOOD, minutes=0.01)
    assert (code, found[0]["verdict"]) == (0, "left out")
    assert found[0]["error"] == "no time was left"


@without_gpu
def test_without_a_gpu_it_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no CUDA device .* --rehearse"):
        run(Asked(False, "smollm2-135m", None), 20, tmp_path / "contact.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_wrong_numbers_of_a_kernel_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed = Machine.of(rehearse=True)
    monkeypatch.setattr(kernels, "shapes", lambda _: [kernels.Shape(1, 16, torch.float32)])
    merge: Any = gpu_kernel.merge_rows

    class Off:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def launch(*arguments: Any, **options: Any) -> None:
                merge[grid](*arguments, **options)
                arguments[4].mul_(1.001)

            return launch

    assert [row["verdict"] for row in kernels.rows(rehearsed)] == ["right"] * 3
    monkeypatch.setattr(gpu_kernel, "merge_rows", Off())
    found = {row["case"]: row["verdict"] for row in kernels.rows(rehearsed)}
    assert found["decode, GQA 1, dim 16, float32"] == "wrong"
    monkeypatch.setattr(gpu_kernel, "merge_rows", None)
    rows = {row["case"]: row for row in kernels.rows(rehearsed)}
    broken = rows["decode, GQA 1, dim 16, float32"]
    assert broken["verdict"] == "failed" and "TypeError" in broken["error"]


def test_waits_are_counted_where_numbers_are_read() -> None:
    device, _ = pretended_devices()
    x = torch.arange(4.0).to(device)
    with Waits() as waits:
        y = x * 2 + 1
        y[1:].sum()
    assert waits.total == 0
    with Waits() as waits:
        float(y.sum()), y.cpu(), y.tolist(), y[y > 3], y.nonzero()
    assert waits.total == 5


REHEARSAL = """
import sys
from pathlib import Path
from experiments.lab.bench import placement
from experiments.lab.bench.gpu import exact
from experiments.lab.bench.gpu.parts import Asked, run_part

few = ("beam_groups", "capture")  # all are tried on a pretended device elsewhere
exact.POLICIES = {name: exact.POLICIES[name] for name in few}
placement.PREFIX, placement.PASSES = 16, 2
folder, model, *names = sys.argv[1:]
for name in names:
    run_part(name, Asked(True, model, None), Path(folder, name))
"""


@without_gpu
@pytest.mark.slow
@pytest.mark.parametrize("names", [[*ABOUT][n::3] for n in range(3)], ids=" ".join)
def test_each_part_is_rehearsed(names: list[str], tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    done = finished([sys.executable, "-c", REHEARSAL, str(tmp_path), model, *names])
    assert done.returncode == 0, done.stderr
    for name in names:
        verdicts = {row["verdict"] for row in first_contact.read(tmp_path / name)}
        assert verdicts & {machine.RIGHT, machine.MEASURED}, name
        assert not verdicts & {machine.WRONG, machine.FAILED}, name
        if name in ("lbs", "helm", "capture"):  # each arm fits, as small as it is
            assert verdicts == {machine.MEASURED}

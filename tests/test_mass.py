"""Each room's code stays within its budget (`make mass`)."""

import shutil
import sys
from pathlib import Path

from tests.helpers.processes import finished

ROOT = Path(__file__).parents[1]


def test_no_room_has_more_code_than_its_budget() -> None:
    done = finished([sys.executable, str(ROOT / ".ci" / "mass.py")])
    assert done.returncode == 0, done.stdout


def test_a_room_that_is_too_large_new_or_gone_is_told(tmp_path: Path) -> None:
    files = {
        ".ci/mass.toml": '"ttc" = 10\n"ttc/large" = 2\n"ttc/gone" = 5\n',
        "ttc/parts.toml": '[part]\npaths = ["ttc/large", "ttc/small", "tests/part"]\n',
        "pyproject.toml": "[tool.hatch.build.targets.wheel]\nexclude = []\n",
        "ttc/notes.txt": "no code, however long",
        "ttc/a.py": "x = 1",
        "ttc/b.cpp": "int x",
        "ttc/large/deep/c.h": "int",
        "ttc/small/d.py": "",
        "search/new.py": "y",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    script = shutil.copy(ROOT / ".ci" / "mass.py", tmp_path / ".ci")
    done = finished([sys.executable, str(script)])
    assert done.returncode == 1
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[-4:]] == [
        "search has no budget",
        "ttc/small has no budget",
        "ttc/gone has a budget and no code",
        "ttc/large has 3 characters, and its budget is 2",
    ]

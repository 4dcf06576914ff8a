"""How many characters of code each room has, beside its budget in mass.toml; exit code 1 where a
room has more, has no budget, or is gone.

A file is in the room with the longest name that its path begins with.
"""

import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("ttc", "search", "verifiers", "experiments")
CODE = {".py", ".cpp", ".h", ".cu"}


def room_of(file: str, rooms: set[str]) -> str:
    """The file's room; its folder where no room has it."""
    folders = [str(folder) for folder in Path(file).parents]
    return next((folder for folder in (file, *folders) if folder in rooms), folders[0])


def main() -> int:
    budgets = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    rooms = {room for kind in budgets.values() for room in kind}
    sizes = Counter[str]()
    for file in sorted(file for name in PACKAGES for file in (ROOT / name).rglob("*")):
        if file.suffix in CODE:
            text = file.read_text(encoding="utf-8")
            sizes[room_of(file.relative_to(ROOT).as_posix(), rooms)] += len(text)
    faults = [f"{room} has no budget" for room in sorted(sizes.keys() - rooms)]
    for kind, budget in budgets.items():
        for room, most in budget.items():
            print(f"{sizes[room]:>10,} of {most:>9,}  {room}")
            if sizes[room] > most:
                faults.append(f"{room} has {sizes[room]:,} characters, and its budget is {most:,}")
            if not sizes[room]:
                faults.append(f"{room} has a budget and no code")
        total = sum(sizes[room] for room in budget)
        print(f"{total:>10,} of {sum(budget.values()):>9,}  {kind}\n")
    for fault in faults:
        print(f"{fault}: change .ci/mass.toml, and say why in the commit")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

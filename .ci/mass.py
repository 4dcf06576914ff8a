"""How many characters of code each room has, beside its budget in mass.toml; exit code 1 where a
room has more, has no budget, or is gone.

A file is in the room with the longest name that its path begins with. The paths of parts are rooms
(ttc/parts.toml).
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


def kinds() -> dict[str, str]:
    """Which rooms are parts, and which the wheel leaves out: the laboratory."""
    parts = tomllib.loads((ROOT / "ttc" / "parts.toml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    paths = [path for part in parts.values() for path in part["paths"]]
    rooms = {path: "parts" for path in paths if path.startswith(PACKAGES)}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    return rooms | dict.fromkeys(wheel["exclude"], "laboratory")


def main() -> int:
    budgets = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    optional = kinds()
    sizes = Counter[str]()
    for file in sorted(file for name in PACKAGES for file in (ROOT / name).rglob("*")):
        if file.suffix in CODE:
            text = file.read_text(encoding="utf-8")
            room = room_of(file.relative_to(ROOT).as_posix(), {*budgets, *optional})
            sizes[room] += len(text)
    faults = [f"{room} has no budget" for room in sorted(sizes.keys() - budgets.keys())]
    for kind in ("core", "parts", "laboratory"):
        rooms = [room for room in budgets if optional.get(room, "core") == kind]
        for room in rooms:
            size, most = sizes[room], budgets[room]
            print(f"{size:>10,} of {most:>9,}  {room}")
            if size > most:
                faults.append(f"{room} has {size:,} characters, and its budget is {most:,}")
            if not size and room not in optional:  # a part may have been deleted
                faults.append(f"{room} has a budget and no code")
        total = sum(sizes[room] for room in rooms)
        print(f"{total:>10,} of {sum(budgets[room] for room in rooms):>9,}  {kind}\n")
    for fault in faults:
        print(f"{fault}: change .ci/mass.toml, and say why in the commit")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

"""Makes a data set of four-choice questions: sums of three small numbers.

Run it with `python examples/choices.py FILE`; a seed and a number of questions may follow. Then:

    python -m experiments.run dataset=arc_challenge dataset.path=FILE
"""

import json
import random
import sys
from pathlib import Path
from typing import Any


def row(number: int, dice: random.Random) -> dict[str, Any]:
    """A question as ARC's files have it, with a worked solution. Wrong choices are near the sum."""
    a, b, c = (dice.randint(1, 9) for _ in range(3))
    total = a + b + c
    near = [total + step for step in range(-4, 5) if step != 0]
    choices = [total, *dice.sample(near, 3)]
    dice.shuffle(choices)
    letter = "ABCD"[choices.index(total)]
    return {
        "id": f"choices-{number}",
        "question": f"What is {a} + {b} + {c}?",
        "choices": {"text": [str(choice) for choice in choices], "label": list("ABCD")},
        "answerKey": letter,
        "solution": "\n".join(
            [
                f"{a} + {b} = {a + b}",
                f"{a + b} + {c} = {total}",
                *(
                    f"({x}) {y}: {'yes' if y == total else 'no'}"
                    for x, y in zip("ABCD", choices, strict=True)
                ),
                f"The answer is {letter}.",
            ]
        ),
    }


def main(file: str, seed: str = "0", count: str = "100") -> None:
    dice = random.Random(int(seed))
    rows = [json.dumps(row(number, dice)) for number in range(int(count))]
    Path(file).write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{len(rows)} questions in {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])

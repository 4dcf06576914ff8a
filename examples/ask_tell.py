"""A search over answers that this program gets from elsewhere: ask for trials, tell what came.

Run it with `python examples/ask_tell.py`. Break it off, and run it again: it goes on from its
checkpoint, and asks for nothing twice. In the place of `write` stands whatever you have: an API, a
person, an agent, an optimiser.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import gettempdir

from search import ABMCTS, ask_tell
from search.asking import Trial

QUESTION = "Find x with x^3 + x = 50."
STATE = Path(gettempdir()) / "ask_tell_example.json"


def write(trial: Trial) -> str:
    """An answer: the last one of the chat, moved a little; any number at first.

    For a server that speaks OpenAI's protocol it is

        client.chat.completions.create(
            model=..., messages=trial.messages, max_tokens=trial.max_tokens, seed=trial.seed,
            temperature=trial.sampling.temperature,
        ).choices[0].message.content
    """
    dice = random.Random(trial.seed)
    before = [m["content"] for m in trial.messages if m["role"] == "assistant"]
    x = value(before[-1]) + dice.gauss(0, 0.5) if before else dice.uniform(0, 10)
    return f"x = {x:.4f}"


def rate(text: str) -> float:
    """How near an answer comes, from 0 to 1."""
    x = value(text)
    return 1 / (1 + abs(x**3 + x - 50))


def value(text: str) -> float:
    return float(text.removeprefix("x = "))


def main() -> None:
    # Adaptive branching decides each time whether to ask for a new answer or for a better one.
    asking = ask_tell(ABMCTS(iterations=32), problem=QUESTION, seed=0, checkpoint=STATE)
    with ThreadPoolExecutor() as pool:
        while not asking.done:
            # All trials of a round may be worked on at once, and told in any order.
            trials = asking.ask()
            for trial, text in zip(trials, pool.map(write, trials), strict=True):
                asking.tell(trial, text, score=rate(text))
    STATE.unlink(missing_ok=True)

    result = asking.result()
    assert result.best is not None
    print(f"{result.best.text}, score {result.best.score:.3f}, of {len(result.branches)} answers")
    print(f"the deepest was improved {max(len(b.path) for b in result.branches) // 2} times")


if __name__ == "__main__":
    main()

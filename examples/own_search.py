"""A search of one's own: answer, look at the score, and try again while it is low.

Run it with `python examples/own_search.py`. The main job takes the same class, from the folder of
this file:

    python -m experiments.run search=own_search.TryAgain search.tries=5 dataset.limit=10
"""

from dataclasses import dataclass

from search import Case, Expand, Rate, Release, Search, SearchSteps, solve
from ttc import Branch, Engine
from verifiers import ArithmeticVerifier

QUESTIONS = ["What is 17 + 25?", "Ann has 6 pens and buys 3 more. How many has she got?"]


@dataclass(frozen=True)
class TryAgain(Search):
    """One answer after the other, until one is rated `enough`, and `tries` at most.

    The fields are the settings. Temperature and the like are those of every search.
    """

    tries: int = 3
    enough: float = 0.6
    max_tokens: int = 48

    def run(self, root: Branch, case: Case) -> SearchSteps:
        # A search yields what it wants, and is sent the answer. Other problems' requests join the
        # same batch.
        best: Branch | None = None
        for _ in range(self.tries):
            # One child of the prompt. The prompt's keys and values are computed once, whatever
            # stands on them.
            step = case.answer(self.max_tokens)
            (child,) = yield Expand([root], 1, step, self.sampling)
            (score,) = yield Rate([child])
            if best is None or score > (best.score or 0):
                best, child = child, best
            if child is not None:
                yield Release([child])  # its memory is free at once
            if best.score is not None and best.score >= self.enough:
                break
        return [] if best is None else [best]


def main() -> None:
    engine = Engine.from_pretrained("smollm2-135m", dtype="float32")
    search = TryAgain(temperature=0.8)
    for result in solve(
        search, problem=QUESTIONS, engine=engine, verifier=ArithmeticVerifier(), seed=1
    ):
        tries = len(result.tree) - 1  # without the root
        score = None if result.best is None else result.best.score
        print(
            f"{result.problem.question}  answer {result.answer}, score {score:.2f}, after {tries} "
            "tries"
        )
    print(f"{engine.kv_bytes()} bytes of keys and values are left")


if __name__ == "__main__":
    main()

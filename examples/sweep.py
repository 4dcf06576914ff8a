"""A sweep from Python: three searches on the same sums, with what each found and what it cost.

Run it with `python examples/sweep.py`; the number of sums may follow. For sweeps that are recorded,
go on after a stop and are compared with intervals, see `python -m experiments.run -m ...` in
docs/experiments.md.
"""

import random
import sys

from search import BeamSearch, BestOfN, Problem, Search, SelfConsistency, solve
from ttc import Engine
from verifiers import ArithmeticVerifier

SEARCHES: dict[str, Search] = {
    "self-consistency, n=4": SelfConsistency(n=4, max_tokens=48),
    "best-of-4": BestOfN(n=4, max_tokens=48),
    "beam search, 2 x 2": BeamSearch(
        beam_size=2, beam_width=2, step_tokens=24, max_steps=2, delimiter="\n", temperature=0.6
    ),
}


def sums(count: int) -> list[Problem]:
    """Problems with an id, which fixes their random numbers, and the answer that is expected."""
    random_numbers = random.Random(0)
    problems = []
    for number in range(count):
        a, b = random_numbers.randint(2, 20), random_numbers.randint(2, 20)
        problems.append(Problem(f"What is {a} + {b}?", id=f"sum-{number}", answer=str(a + b)))
    return problems


def main() -> None:
    problems = sums(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
    engine = Engine.from_pretrained("smollm2-135m", dtype="float32")
    print(f"{'search':<22} {'right':>7} {'tokens each':>12}")
    for name, search in SEARCHES.items():
        # All problems decode in one batch. A search that only votes does not ask the verifier.
        verifier = ArithmeticVerifier() if search.needs_verifier else None
        results = solve(search, problem=problems, engine=engine, verifier=verifier, seed=0)
        right = sum(result.answer == result.problem.answer for result in results)
        tokens = sum(result.usage.generated_tokens for result in results) / len(results)
        print(f"{name:<22} {f'{right}/{len(results)}':>7} {tokens:>12.0f}")


if __name__ == "__main__":
    main()

"""A beam search, and the tree that it grew.

Run it with `python examples/beam_search.py`; another question may follow.
"""

import sys
from collections import defaultdict

from search import BeamSearch, Result, solve
from ttc import Engine, Node
from verifiers import ArithmeticVerifier

QUESTION = "Tom has 3 boxes of 4 apples. He eats 2. How many are left?"


def main() -> None:
    question = " ".join(sys.argv[1:]) or QUESTION
    # A model of 135M parameters, which runs on any machine. A hub id, a folder or a .gguf file do
    # as well.
    engine = Engine.from_pretrained("smollm2-135m", dtype="float32")
    # A step is one line. Four lines are kept after each step, and each of them is continued in four
    # ways.
    search = BeamSearch(
        beam_size=4, beam_width=4, step_tokens=32, max_steps=4, delimiter="\n", temperature=0.6
    )
    # The verifier rates each line by its arithmetic. The seed fixes every token.
    result = solve(search, problem=question, engine=engine, verifier=ArithmeticVerifier(), seed=0)

    print(question)
    draw(result)
    print(f"answer: {result.answer}, from {result.usage.generated_tokens} tokens")


def draw(result: Result) -> None:
    """Print the lines that were kept, each below the one that it continues, with its score."""
    children: dict[int | None, list[Node]] = defaultdict(list)
    for node in result.tree:
        children[node.parent].append(node)

    def draw_below(parent: Node, indent: str) -> None:
        pruned = sum(node.status == "pruned" for node in children[parent.id])
        for node in children[parent.id]:
            if node.status == "pruned":
                continue
            score = "" if node.score is None else f"{node.score:.2f} "
            text = " ".join(node.text.split())[:72] or "end"
            chosen = (
                " <- chosen" if result.best is not None and node.path == result.best.path else ""
            )
            print(f"{indent}{score}{text}{chosen}")
            draw_below(node, indent + "   ")
        if pruned:
            print(f"{indent}{pruned} pruned")

    (root,) = children[None]
    draw_below(root, "   ")


if __name__ == "__main__":
    main()

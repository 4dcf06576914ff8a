"""What a published figure is, and which run makes it here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """A configuration of a recipe: one run for each seed.

    settings: as they are typed for `experiments.run`; the preset among them is in
        `conf/experiment/published/`.
    published: values in percent by their measure (`beside.MEASURES`).
    problems: of the data set. solutions: how many texts a problem takes, pruned ones counted as the
        share that was written.
    """

    name: str
    settings: tuple[str, ...]
    published: dict[str, float]
    problems: int
    solutions: int = 1
    seeds: int = 1


@dataclass(frozen=True)
class Recipe:
    """A table of a paper or a model card.

    source: where the values stand. setting: where the settings stand. differs: what is not as it
        was there.
    solution_tokens: what a solution is taken to have, for the cost; `cost` says why.
    """

    name: str
    title: str
    source: str
    setting: str
    differs: tuple[str, ...]
    solution_tokens: int
    cost: str
    arms: tuple[Arm, ...]

    @property
    def solutions(self) -> int:
        return sum(arm.problems * arm.solutions * arm.seeds for arm in self.arms)

    @property
    def tokens(self) -> int:
        return self.solutions * self.solution_tokens


def preset(name: str, *settings: str) -> tuple[str, ...]:
    """A preset of `conf/experiment/published/` and what is set beside it."""
    return (f"+experiment=published/{name}", *settings)

"""One draw: a search, and what it runs on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from experiments.lab.bench.combinations.models import IN_FLOAT32, STORED
from experiments.lab.bench.combinations.searches import SEARCHES
from search import Search


@dataclass(frozen=True)
class Combination:
    """One draw.

    seed: of prompts and samples. compiled: attention or whole layers, in float32. verifier: how it
        makes its passes, that they are another model's, or what else it does. spends: what a search
        may spend on a problem. sampling, variant: settings of the search. generation: of the models. context: so
        many tokens, about, fit in after the longest prompt. differ: every second problem has none
        of the settings that others have. grammar: what answers keep to. chats: problems are
        conversations. writers: a second model writes too, in the searches that hand on to it.
        tools: their calls stand within a text, end the model's turn, or are the caller's to make;
        or each answer begins with one in JSON, and later ones keep to the schema too if it is
        strict.
        alternatives: likely tokens that are kept in each place. budget, host_budget: of KV on the
        device and on the host, in multiples of the most that one of the problems takes alone; None
        for no limit. capacity: blocks of the cache.
    callers: searches are shared out among so many who drive the engine in turn, or in threads
        (`at_once`). apart: so many steps of the drivers lie between one problem's coming and the
        next one's.
    watched: what is written is looked at after each token. changed: after every so many steps the
        model is said to be another one. visits: after every so many somebody else writes, while the
        model is `another`.
    cancelled: a problem that ends after so many steps of the driver as `at_step`. ended_by: whether
        the driver lets go of it, or it is cancelled, or its time is up. restarted: after so many
        results the rest is solved by another engine.
    gate: branches that trail stop decoding; approximate, as sharing="similar" and
        verifier="leaves_early" are: then a problem alone has them too.
    """

    seed: int = 0
    model: str = "llama"
    compiled: str | None = None
    search: str = "self_consistency"
    verifier: str | None = None
    problems: int = 1
    prompt_tokens: int = 12
    spends: str | None = None
    sampling: str | None = None
    variant: str | None = None
    generation: str | None = None
    context: int | None = None
    differ: bool = False
    grammar: Literal["lark", "schema"] | None = None
    chats: bool = False
    writers: bool = False
    alternatives: int = 0
    beside: str | None = None
    thinking: int | None = None
    tools: Literal["inline", "turns", "caller", "strict", "required"] | None = None
    memory: str = "resident"
    budget: float | None = None
    host_budget: float | None = None
    block_tokens: int = 32
    prefetch: bool = True
    cache: Literal["rsbcm", "lru"] | None = None
    capacity: int = 8
    sharing: str = "exact"
    speculation: str | None = None
    placement: str | None = None
    callers: int = 1
    apart: int = 0
    concurrency: int | None = None
    max_rows: int | None = None
    prefill_tokens: int = 512
    watched: bool = False
    changed: int | None = None
    cancelled: int | None = None
    ended_by: Literal["driver", "event", "time"] = "driver"
    at_step: int = 0
    restarted: int | None = None
    gate: bool = False
    at_once: bool = False
    visits: int | None = None
    another: Literal["weights", "adapter"] | None = None

    @property
    def rounded(self) -> bool:
        """Whether what runs beside a branch changes the last digits of float32."""
        return self.compiled is not None or self.model in {*IN_FLOAT32, *STORED}

    def settings(self) -> dict[str, Any]:
        """What is not as in the plainest way."""
        plain = Combination()
        return {k: v for k, v in asdict(self).items() if v != getattr(plain, k)}

    @property
    def name_cancelled(self) -> str:
        """The id of the problem that ends early."""
        return f"{self.seed}-{self.cancelled}"

    @property
    def searches(self) -> list[Search]:
        return [SEARCHES[name] for name in (self.search, self.beside) if name is not None]

    @property
    def plain(self) -> Combination:
        """The same problems and search, solved in the plainest way."""
        kept = [*OF_PROBLEMS, *["sharing"] * (self.sharing == "similar")]
        return Combination(**{name: getattr(self, name) for name in kept})


OF_PROBLEMS = (
    *("seed", "model", "compiled", "search", "verifier", "problems", "prompt_tokens", "spends"),
    *("sampling", "variant", "generation", "context", "differ", "grammar", "chats", "writers"),
    *("alternatives", "beside", "thinking", "tools", "gate"),
)
"""Settings of problems and of their searches, whatever these run on."""

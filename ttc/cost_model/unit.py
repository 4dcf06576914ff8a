"""What a part of a model costs: the quantities of HELM's section 4.1.1, from the embedding to the
output projection.

"HELM: Compiler-Guided Heterogeneous Execution for Large Language Models on Memory-Constrained
Systems", Eqs. 4.1-4.5, 4.9, 4.11 and 4.12. Different from the paper: a prefix that branches share
is read once for all of them, a layer's window bounds what is attended, and experts that no row is
routed to are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttc.checks import check_whole

STATE_PRODUCTS = 3
"""How often a token multiplies each number of a recurrent state: it decays, gets something added,
and is read."""


@dataclass(frozen=True)
class Pass:
    """One forward pass over branches that stand on a shared prefix, or on several of one length.

    branches: B. new_tokens: rows of each branch in this pass, 1 when decoding. own_tokens,
    shared_tokens: what a branch has already, of its own and in common with others. prefixes: how
    many such prefixes there are; as many branches stand on each. The context c of a decoded row is
    own + shared + 1. Raises InvalidInput for no branches, rows or prefixes, or a negative length.
    """

    branches: int
    new_tokens: int = 1
    own_tokens: int = 0
    shared_tokens: int = 0
    prefixes: int = 1

    def __post_init__(self) -> None:
        for name in ("branches", "prefixes", "new_tokens"):
            check_whole(name, getattr(self, name), 1)
        for name in ("own_tokens", "shared_tokens"):
            check_whole(name, getattr(self, name), 0)

    @property
    def rows(self) -> int:
        """Rows of the pass, in all branches."""
        return self.branches * self.new_tokens

    @property
    def rows_together(self) -> int:
        """Rows that attend one prefix."""
        return max(1, self.rows // self.prefixes)

    def attended(self, window: int | None = None) -> int:
        """Tokens attended, summed over the rows: B × c when decoding. A row sees itself and what is
        before it."""
        first = self.shared_tokens + self.own_tokens + 1
        last = first + self.new_tokens - 1
        if window is None or window >= last:
            return self.branches * (first + last) * self.new_tokens // 2
        within = max(0, window - first)  # rows that see everything before them
        return self.branches * (
            (2 * first + within - 1) * within // 2 + (self.new_tokens - within) * window
        )

    def read(self, window: int | None = None) -> int:
        """Tokens whose keys and values are read: of each branch its own, of a shared prefix each
        once."""
        shared, alone = self.shared_tokens, self.own_tokens + self.new_tokens
        if window is None:
            return self.prefixes * shared + self.branches * alone
        # from the last row's token to the furthest that the first row sees
        reach = window + self.new_tokens - 1
        read_shared = min(shared, max(0, reach - alone))
        return self.prefixes * read_shared + self.branches * min(alone, reach)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A partition unit, which is placed as a whole: the embedding, a transformer block or the
    output projection.

    param_bytes: weights that its device holds. multiplied: weight elements that each row is
    multiplied by.
    hidden: H. bytes_per_element: d_sz.
    kv_elements: numbers of keys and values kept per token, 2 × h_kv × d_h; 0 for a unit without
    attention.
    score_elements: multiply-adds of attention per row and attended token, 2 × h_a × d_h.
    window: how many tokens back its rows see, None for all.
    state_bytes: what its recurrent layers keep of one sequence, however long. state_elements: the
    numbers in that which a token changes by products, those of convolutions left out.
    expert_bytes: of param_bytes, those of the experts, of which each row goes through `routed` of
    `experts`.
    tied: weights that it has in common with later units: the name of the next one, which counts
    them, and their bytes.
    is_block: whether it is a transformer block.
    """

    name: str
    param_bytes: int
    multiplied: int
    hidden: int
    bytes_per_element: int = 2
    kv_elements: int = 0
    score_elements: int = 0
    window: int | None = None
    state_bytes: int = 0
    state_elements: int = 0
    expert_bytes: int = 0
    experts: int = 1
    routed: int = 1
    tied: tuple[tuple[str, int], ...] = ()
    is_block: bool = False

    @property
    def tied_bytes(self) -> int:
        """Bytes of the weights that it has in common with later units."""
        return sum(nbytes for _, nbytes in self.tied)

    @property
    def vocabulary(self) -> int:
        """Of an output projection, the tokens that it gives logits for."""
        return self.multiplied // self.hidden if self.hidden else 0

    @property
    def group(self) -> float:
        """Queries to a KV head, 1 for a unit without attention."""
        return self.score_elements / self.kv_elements if self.kv_elements else 1.0

    @property
    def projected(self) -> int:
        """Numbers of a row's queries, keys and values, h_a × d_h + 2 × h_kv × d_h."""
        return self.score_elements // 2 + self.kv_elements

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of keys and values kept per token, W_kv / c of Eq. 4.5. For Qwen3-8B 4,096; the
        paper prints 4."""
        return self.kv_elements * self.bytes_per_element

    def w_param(self, rows: int) -> float:
        """W_param, Eq. 4.3: bytes of weights read by a pass of so many rows; of the embedding, a
        vector for each row.

        Rows choose experts independently and evenly here, so all of them miss an expert with
        probability (1 - routed / experts) ** rows.
        """
        if not self.multiplied:
            return rows * self.hidden * self.bytes_per_element
        return (
            self.param_bytes
            + self.tied_bytes
            - self.expert_bytes * (1 - self.routed / self.experts) ** rows
        )

    def w_act(self, rows: int) -> int:
        """W_act, Eq. 4.4: bytes that cross to the next unit, B × H × d_sz."""
        return rows * self.hidden * self.bytes_per_element

    def w_kv(self, work: Pass) -> int:
        """W_kv, Eq. 4.12: bytes of keys and values read, 2 × B × c × h_kv × d_h × d_sz where no
        prefix is shared; of recurrent states, those read and written."""
        return work.read(self.window) * self.kv_token_bytes + 2 * work.branches * self.state_bytes

    def f_proj(self, rows: int) -> int:
        """F_proj, Eq. 4.9: floating-point operations of the projections, 2 × B × (2 H² + 2 H d_kv +
        3 H I), and of recurrent states."""
        return 2 * rows * (self.multiplied + STATE_PRODUCTS * self.state_elements)

    def f_attn(self, work: Pass) -> int:
        """F_attn, Eq. 4.11: floating-point operations of attention, 4 × B × h_a × c × d_h."""
        return 2 * work.attended(self.window) * self.score_elements


def held_bytes(stage: Sequence[Unit]) -> int:
    """Bytes of the weights that a device holds for these units; what they have in common is there
    once."""
    names = {unit.name for unit in stage}
    return sum(
        unit.param_bytes + sum(nbytes for name, nbytes in unit.tied if name not in names)
        for unit in stage
    )

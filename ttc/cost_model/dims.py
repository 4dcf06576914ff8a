"""The sizes of a model that the papers' formulas are about."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ttc.checks import check_whole


class Positive:
    """A dataclass of whole numbers. Raises InvalidInput for one below 1, by name."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            check_whole(field.name, getattr(self, field.name), 1)


@dataclass(frozen=True)
class KVShape(Positive):
    """The keys and values of a model: the sizes that set how many bytes a token takes."""

    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_element: int = 2

    @property
    def token_layer_bytes(self) -> int:
        """KV of LBS, Table 1: bytes of keys and values per layer, per beam, per token."""
        return 2 * self.kv_heads * self.head_dim * self.bytes_per_element

    def layer_bytes(self, beams: int, tokens: int) -> int:
        """KV_layer(s) of LBS, Table 1: bytes of one layer's KV for all beams, each of `tokens`
        tokens."""
        return beams * tokens * self.token_layer_bytes

    def beam_bytes(self, tokens: int) -> int:
        """KV_beam(s) of LBS, Table 1: bytes of one beam's KV in all layers at `tokens` tokens."""
        return self.layers * tokens * self.token_layer_bytes

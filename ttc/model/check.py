"""Is a model one that the engine serves exactly? Asked once, at load.

The model runs twice on a few tokens. First as it is used elsewhere, over its own attention: every call of attention is
recorded, and the engine's function has to give the same on the same queries, keys and values, in float32. Then over
packed rows, as the engine runs it, each call answered from the record (so that rows may come in any order): queries,
keys, values and logits have to be the same again. So everything but rounding is found, whatever the dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ttc.attention.hf_hook import IMPLEMENTATION, attention_set_to, install, uninstall
from ttc.attention.plan import Entry, ExtendPlan, Piece
from ttc.errors import UnsupportedModel
from ttc.memory.kv import KV, LayerKV, LayerShape
from ttc.model.recording import (
    RECORD,
    REPLAY,
    AllRead,
    Attention,
    Call,
    MaskReader,
    Recorder,
    Replay,
    eager_attention,
    named_attention,
)

CHECK_TOKENS = 16
LONGEST_CHECK = 160
"""Tokens of the check: more than twice any window or chunk that the configuration states, but no more than this."""

LONGEST_MASK = 8192
"""The longest window of a model whose masks depend on its tokens: such a mask must be built whole to be checked."""

NOT_STATED = tuple(2**i + 1 for i in range(5, 17))
"""Positions at which masks are checked beside the stated windows, for windows that the configuration does not name."""

SPREAD = 10.0
"""Queries are enlarged until the largest score is this: a model whose scores are small would hide a wrong scale."""


class _Tree:
    """The check's rows: a prefix, and two branches on it. In the recorded batch they are two sequences."""

    def __init__(self, tokens: int):
        self.tokens, self.prefix = tokens, tokens // 2
        self.positions = [*range(tokens), *range(self.prefix, tokens)]
        self.spans = [slice(0, self.prefix), slice(self.prefix, tokens), slice(tokens, len(self.positions))]

    def pack(self, batch: Tensor, axis: int) -> Tensor:
        """The packed rows (1, ..., rows, ...) of a batch (2, ..., tokens, ...), tokens at `axis`."""
        return torch.cat([batch[:1], batch[1:].narrow(axis, self.prefix, self.tokens - self.prefix)], axis)

    def pack_backwards(self, batch: Tensor, axis: int) -> Tensor:
        """The packed rows in reverse: no row follows the one that it follows in the batch."""
        return self.pack(batch, axis).flip(axis)

    def plan(self, layer: int, key: Tensor, value: Tensor) -> ExtendPlan:
        """Attention of the packed rows in one layer, with KV like `key` and `value` (1, kv_heads, rows, dim)."""
        pieces, stored = [], []
        for rows in self.spans:
            kv = KV(layer + 1, rows.stop - rows.start)
            kv.device[layer] = LayerKV(torch.empty_like(key[0, :, rows]), torch.empty_like(value[0, :, rows]))
            pieces.append(Piece(rows, [(kv, 0, kv.tokens)]))
            stored.append(kv)
        entry = Entry(stored[0], 0, self.prefix, slice(self.prefix, len(self.positions)))
        return ExtendPlan([entry], self.positions, pieces)


@torch.inference_mode()
def check_model(model: Any) -> tuple[LayerShape, ...]:
    """Switch `model` to the engine's attention and return what each layer stores per token.

    Raises UnsupportedModel when the model isn't a decoder that dispatches attention through transformers'
    `AttentionInterface`, or when its attention isn't one that the engine computes; the model then stays as it was.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} is an encoder-decoder; the engine runs decoder-only language models")
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModel(
            f"{name} does not dispatch attention through transformers' AttentionInterface, so the engine cannot reach "
            "it; use a model that does (Llama, Qwen, Mistral, Gemma, OPT, GPT-2, GPT-NeoX, Phi-3, OLMo 2, ...)"
        )
    uninstall(model)  # another engine may have it
    try:
        shapes = _Check(model).run()
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{name} cannot be served exactly: {error}") from error
    except Exception as error:
        raise UnsupportedModel(f"{name} cannot run over the engine's attention: {error}") from error
    install(model)
    return shapes


class _Check:
    def __init__(self, model: Any):
        self.model, self.config = model, model.config.get_text_config()
        self.windows = sorted(set(_stated_windows(self.config.to_dict())))
        self.most: int = getattr(self.config, "max_position_embeddings", None) or 1 << 17
        near = [2 * window + 8 for window in self.windows if 2 * window + 8 <= LONGEST_CHECK]
        self.tree = _Tree(min(max([CHECK_TOKENS, *near]), self.most))
        self.exact = model.dtype in (torch.float32, torch.float64)

    def run(self) -> tuple[LayerShape, ...]:
        ids = self._tokens()
        plain = self._logits(ids, [-1])
        own = self.config._attn_implementation
        record = Recorder()
        with attention_set_to(self.model, RECORD):
            logits = self._logits(ids, [-1], tree_plan=record)
        self._check_order(record.calls)
        self._check_masks(record.calls)
        for call in record.calls:
            self._check_function(call, own)
        self._same("its logits differ between its own and its eager attention", plain, logits, 1e-3, 0.25)
        replay = Replay(record.calls, self.tree.pack_backwards)
        positions = torch.tensor([self.tree.positions], device=self.model.device).flip(1)
        with attention_set_to(self.model, REPLAY):
            try:
                ends = [len(self.tree.positions) - rows.stop for rows in self.tree.spans[1:]]
                packed = self._logits(self.tree.pack_backwards(ids, 1), ends, position_ids=positions, tree_plan=replay)
            except (AttributeError, TypeError) as error:
                raise UnsupportedModel(f"it does not run when no mask is built ({error})") from error
        self._check_replay(record.calls, replay.calls)
        self._same("its logits differ over packed rows", logits[:, 0], packed[0], 1e-3, 0.25)
        return tuple(
            LayerShape(call.key.shape[1], call.key.shape[3], call.value.shape[3], call.options.get("sliding_window"))
            for call in record.calls
        )

    def _logits(self, ids: Tensor, keep: list[int], **options: Any) -> Tensor:
        """The logits (batch, keep, vocabulary) of some rows."""
        rows = torch.tensor(keep, device=ids.device)
        logits: Tensor = self.model(input_ids=ids, use_cache=False, logits_to_keep=rows, **options).logits
        if logits.shape[1] != len(keep):
            raise UnsupportedModel(f"it gives {logits.shape[1]} rows of logits where {len(keep)} are asked for")
        return logits

    def _tokens(self) -> Tensor:
        """Two sequences (2, tokens) with one prefix, without tokens that mean something else than text."""
        special = list[Any]()
        for config in (self.config, self.model.config):
            for name, value in config.to_dict().items():
                if name.endswith(("token_id", "token_index")):
                    special += value if isinstance(value, list) else [value]
        usable = torch.tensor([i for i in range(min(self.config.vocab_size, 512)) if i not in special])
        random = torch.Generator().manual_seed(0)
        ids = usable[torch.randint(len(usable), (2, self.tree.tokens), generator=random)]
        ids[1, : self.tree.prefix] = ids[0, : self.tree.prefix]
        return ids.to(self.model.device)

    def _check_order(self, calls: Sequence[Call]) -> None:
        for place, call in enumerate(calls):
            if call.layer != place:
                raise UnsupportedModel(
                    f"attention layers run in another order than 0, 1, 2, ...: {call.layer} came where {place} was due"
                )
        if len(calls) != self.config.num_hidden_layers:
            raise UnsupportedModel(
                f"it has {self.config.num_hidden_layers} layers, but {len(calls)} of them called attention; models "
                "with linear attention, state-space layers or shared caches are not supported"
            )

    # ---------------------------------------------------------------- masks

    def _check_masks(self, calls: Sequence[Call]) -> None:
        """Each layer's mask must be causal with the window that its attention function is told, near and far."""
        kinds: dict[tuple[int, int | None], Call] = {}
        for call in calls:
            if call.mask is None:
                raise UnsupportedModel(f"layer {call.layer} builds no causal mask")
            kinds.setdefault((id(call.mask), call.options.get("sliding_window")), call)
        for call in kinds.values():
            assert call.mask is not None
            self._check_rows(call, call.mask, range(self.tree.tokens))
        stated = {p for n in self.windows for p in (n - 1, n, n + 1, 2 * n - 1, 2 * n, 3 * n + 1)}
        far = sorted(p for p in stated | set(NOT_STATED) if self.tree.tokens <= p < self.most)
        try:
            for call in kinds.values():
                row = call.mask.row  # type: ignore[union-attr]
                for position in far:
                    self._check_rows(call, row(position), [position])
        except (AttributeError, IndexError):  # the model changed the mask, or the mask's rule looks at tokens
            self._check_long_masks(list(kinds.values()))

    def _check_long_masks(self, calls: Sequence[Call]) -> None:
        """Build the masks of a sequence longer than any stated window, and check their rows at its ends."""
        longest = max([n for n in self.windows if self.tree.tokens <= n < self.most], default=0)
        if longest == 0:
            return
        if longest > LONGEST_MASK:
            raise UnsupportedModel(
                f"its masks depend on more than positions, and with a window of {longest} tokens they cannot be checked"
            )
        tokens = min(longest * 2 + 2, self.most)
        reader = MaskReader(call.layer for call in calls)
        with attention_set_to(self.model, RECORD), suppress(AllRead):
            self.model(input_ids=self._tokens()[:1, :1].expand(1, tokens), use_cache=False, tree_plan=reader)
        for call in calls:
            mask = reader.masks[call.layer]
            if mask is None:
                raise UnsupportedModel(f"layer {call.layer} builds no causal mask")
            for n in [n for n in self.windows if n < tokens]:
                rows = [p for p in (n - 1, n, n + 1, 2 * n, 2 * n + 1) if p < tokens]
                self._check_rows(call, mask[..., rows, :], rows)

    def _check_rows(self, call: Call, mask: Tensor, positions: Sequence[int]) -> None:
        """mask: (..., rows, keys), for tokens at `positions`."""
        window = call.options.get("sliding_window")
        q = torch.tensor(positions, device=mask.device)[:, None]
        k = torch.arange(mask.shape[-1], device=mask.device)
        expected = k <= q
        if window is not None:
            expected &= k > q - window
        visible = mask if mask.dtype == torch.bool else mask == 0
        if mask.dtype != torch.bool and not bool((visible | (mask <= -1e4)).all()):
            raise UnsupportedModel(f"layer {call.layer} adds a bias to its scores, which the engine does not know")
        wrong = (visible != expected).flatten(0, -3).any(0).nonzero()
        if len(wrong):
            row, key = wrong[0].tolist()
            sees = "sees" if bool(visible[..., row, key].any()) else "does not see"
            told = "no sliding window" if window is None else f"a sliding window of {window}"
            raise UnsupportedModel(
                f"in layer {call.layer} the token at position {positions[row]} {sees} the one at {key}, but the "
                f"attention function is told of {told}; the model masks what the engine cannot know of"
            )

    # ---------------------------------------------------------------- the function

    def _check_function(self, call: Call, own: str) -> None:
        """The engine's attention function against the model's own, on the model's queries, keys and values."""
        dtype = torch.promote_types(call.query.dtype, torch.float32)
        query, key, value = (x.to(dtype) for x in (call.query, call.key, call.value))
        query = query * _enlargement(query, key, call.options.get("scaling"))
        found = self._engines(call, query, key, value)
        others: list[tuple[Attention, bool]] = [(eager_attention(call.module), True)]
        if (named := named_attention(own)) is not None:
            others.append(named)
        for function, masked in others:
            mask = call.mask if masked else None
            if mask is not None and mask.is_floating_point():
                mask = mask.to(dtype)
            out, _ = function(call.module, query, key, value, mask, **call.options)
            expected = self.tree.pack(out, 1)
            error, limit = float((found - expected).abs().max()), 1e-3 * float(expected.abs().max()) + 1e-9
            if not error <= limit:
                raise UnsupportedModel(
                    f"in layer {call.layer} the engine's attention differs from the model's own on the same queries, "
                    f"keys and values, by {error:.3g} in {dtype} (limit {limit:.3g}); the model uses something in "
                    "attention that the engine does not know"
                )
        if dtype != call.query.dtype:
            short = self._engines(call, call.query, call.key, call.value)
            self._same(f"layer {call.layer} differs in {call.query.dtype}", self.tree.pack(call.out, 1), short, 0, 0.1)

    def _engines(self, call: Call, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The engine's attention over the packed rows: (1, rows, heads, value_dim)."""
        query, key, value = (self.tree.pack(x, 2) for x in (query, key, value))
        plan = self.tree.plan(call.layer, key, value)
        function = ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION]
        out: Tensor = function(call.module, query, key, value, None, **call.options, tree_plan=plan)[0]
        return out

    # ---------------------------------------------------------------- everything else

    def _check_replay(self, calls: Sequence[Call], packed: Sequence[Call]) -> None:
        """What the model does around attention must be the same over packed rows."""
        self._check_order(packed)
        for call, again in zip(calls, packed, strict=True):
            if again.mask is not None:
                raise UnsupportedModel(f"layer {call.layer} builds a mask of its own, which the engine does not use")
            for option in ("scaling", "sliding_window", "softcap"):
                if call.options.get(option) != again.options.get(option):
                    raise UnsupportedModel(
                        f"layer {call.layer} is told {option}={call.options.get(option)} over its own attention and "
                        f"{again.options.get(option)} over the engine's"
                    )
            for what in ("query", "key", "value"):
                expected = self.tree.pack(getattr(call, what), 2).transpose(1, 2)
                found = getattr(again, what).flip(2).transpose(1, 2)
                self._same_rows(f"the {what} of layer {call.layer}", expected, found)

    def _same_rows(self, what: str, expected: Tensor, found: Tensor) -> None:
        """Compare (1, rows, ...) by branch; in 16 bits by the middle row of each, because expert routing may flip."""
        gap = (found - expected)[0].flatten(1).to(torch.float32).abs().mean(1)
        size = float(expected.abs().to(torch.float32).mean())
        limit = (1e-3 if self.exact else 0.1) * size + 1e-9
        for rows in self.tree.spans:
            error = float(gap[rows].max() if self.exact else gap[rows].median())
            if not error <= limit:
                raise UnsupportedModel(
                    f"{what} differs by {error:.3g} (limit {limit:.3g}) when branches are packed into one sequence; "
                    "the model ignores the positions it is given, or mixes neighbouring tokens outside attention"
                )

    def _same(self, what: str, expected: Tensor, found: Tensor, exact: float, rounded: float) -> None:
        """Compare by the largest difference; in 16 bits by the mean, because expert routing may flip."""
        gap = (found - expected).to(torch.float32).abs()
        size = expected.to(torch.float32).abs()
        error, limit = (gap.max(), exact * size.max()) if self.exact else (gap.mean(), rounded * size.mean())
        if not float(error) <= float(limit) + 1e-6:
            raise UnsupportedModel(f"{what}, by {float(error):.3g} (limit {float(limit):.3g})")


def _enlargement(query: Tensor, key: Tensor, scaling: float | None) -> float:
    """What brings the largest score of the first KV head to `SPREAD`; 1 when it is larger already."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    group = query.shape[1] // key.shape[1]
    largest = float((query[:, :group] @ key[:, :1].transpose(-1, -2)).abs().max()) * abs(scale)
    return SPREAD / largest if 0 < largest < SPREAD else 1.0


def _stated_windows(fields: dict[str, Any]) -> Iterator[int]:
    """The lengths in a configuration that may bound what a token sees."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _stated_windows({str(k): v for k, v in value.items()})
        elif any(word in name for word in ("window", "chunk", "local")) and "layer" not in name:
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int) and number > 1:
                    yield number

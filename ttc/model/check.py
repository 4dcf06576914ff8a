"""Is a model one that the engine serves exactly? Asked once, at load.

The model runs twice on a few tokens. First as it is used elsewhere, over its own attention: every call of attention is
recorded, and the engine's function has to give the same on the same queries, keys and values, in float32. Then over
packed rows, as the engine runs it, each call answered from the record (so that rows may come in any order): queries,
keys, values and logits have to be the same again. So everything but rounding is found, whatever the dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ttc.attention.entry import Entry
from ttc.attention.hf_hook import IMPLEMENTATION, PLACES, Place, attending, tree_attention
from ttc.attention.inline_attention import CallsAttention
from ttc.attention.installing import attention_set_to, can_set_attention, install, uninstall
from ttc.attention.plan import ExtendPlan, Piece
from ttc.decoder_layers import decoder_layers
from ttc.errors import UnsupportedModel
from ttc.memory.kv import KV, LayerKV, LayerShape
from ttc.model.cache_windows import SINGLE_TOKENS, check_windows, generates_cache, keeps_windows, last_logits
from ttc.model.device_map import is_spread
from ttc.model.extra_arguments import ExtraArguments, all_chosen
from ttc.model.masks import Sight, check_masks, stated_windows
from ttc.model.recording import (
    RECORD,
    REPLAY,
    AllRead,
    Attention,
    Call,
    MaskReader,
    Pack,
    Recorder,
    Replay,
    Rows,
    eager_attention,
    named_attention,
    weights_on,
)
from ttc.model.recurrent import Recurrent
from ttc.model.recurrent_check import check_recurrent
from ttc.model.recurrent_search import find_recurrent, layers_without_tokens

WAY_OUT = (
    ". Use plain transformers for this model, or one that the engine serves (Llama, Qwen 3, Mistral, Gemma 3, Phi-3, "
    "OLMo 2, GPT-2, ...; docs/models.md names them all)"
)

CHECK_TOKENS = 16
LONGEST_CHECK = 160
"""Tokens of the check: more than twice any window or chunk that the configuration states, but no more than this."""

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
            copy = LayerKV(torch.empty_like(key[0, :, rows]), torch.empty_like(value[0, :, rows]))
            kv.device = [copy] * (layer + 1)  # a module that serves several layers takes the first of them
            pieces.append(Piece(rows, [(kv, 0, kv.tokens)]))
            stored.append(kv)
        entry = Entry(stored[0], 0, self.prefix, slice(self.prefix, len(self.positions)))
        return ExtendPlan([entry], self.positions, pieces)


@torch.inference_mode()
def examine(model: Any) -> tuple[tuple[LayerShape, ...], Recurrent | None]:
    """Switch `model` to the engine's attention and return what each layer of attention stores per token, and the layers
    that keep a recurrent state.

    Raises UnsupportedModel when the model isn't a decoder whose attention can be reached (through transformers'
    `AttentionInterface`, or as in `ttc.attention.inline_attention`), when it keeps recurrent states elsewhere than in
    transformers' cache, or when either is not what the engine computes; the model then stays as it was.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} is an encoder-decoder; the engine runs decoder-only language models")
    uninstall(model)  # another engine may have it
    try:
        found = ModelCheck(model).run()
    except NotDispatched:
        raise UnsupportedModel(
            f"{name} does not dispatch attention through transformers' AttentionInterface, so the engine cannot reach "
            f"it{WAY_OUT}"
        ) from None
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{name} cannot be served exactly: {error}{WAY_OUT}") from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise UnsupportedModel(f"{name} cannot run over the engine's attention: {what}{WAY_OUT}") from error
    install(model)
    return found


class NotDispatched(Exception):
    """A model calls no attention that could be replaced."""


class ModelCheck:
    def __init__(self, model: Any):
        self.model, self.config = model, model.config.get_text_config()
        self.windows = stated_windows(self.config)
        self.extras = ExtraArguments(model)
        longest: int = getattr(self.config, "max_position_embeddings", None) or -1  # XLNet says -1, as it has no limit
        self.most = longest if longest > 0 else 1 << 17
        self.most = min(self.most, all_chosen(model) or self.most)
        near = [2 * window + 8 for window in self.windows if 2 * window + 8 <= LONGEST_CHECK]
        self.tree = _Tree(min(max([CHECK_TOKENS, *near]), self.most))
        self.exact = model.dtype in (torch.float32, torch.float64)

    def run(self) -> tuple[tuple[LayerShape, ...], Recurrent | None]:
        ids, dispatches = self._tokens(), can_set_attention(self.model)
        keep = [-1]
        try:
            plain = self._logits(ids, keep)
            recurrent = find_recurrent(self.model, ids[:1])
            if recurrent is not None:
                keep = [*range(self.tree.tokens)]
                plain = self._logits(ids, keep)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedModel(f"it does not run on token ids alone ({error})") from error
        own = self.config._attn_implementation
        record = Recorder()
        with attention_set_to(self.model, RECORD) if dispatches else nullcontext():
            with attending(record):
                logits = self._logits(ids, keep)
            if not record.calls and recurrent is None:
                if getattr(self.model, "_is_stateful", False):
                    raise UnsupportedModel(
                        "it keeps a state of its own between tokens, and the engine knows those in transformers' cache"
                    )
                raise NotDispatched
            self._check_layers(record.calls, recurrent)
            sights = check_masks(record.calls, self.windows, self.most, self._long_masks)
            self._place(record.calls, sights)
            numbered = [call.layer for call in record.calls]
            check_windows(self.model, zip(numbered, sights, strict=True), self.most)
            for number, call in enumerate(record.calls):
                with weights_on(call.query.device, call.module):
                    self.check_function(number, call, own)
        self.same("its logits differ between its own and its eager attention", plain, logits, 1e-3, 0.25)
        if recurrent is None:
            self.check_cache(ids, plain[:, -1])
        with attention_set_to(self.model, REPLAY) if dispatches else nullcontext():
            if recurrent is None:
                self._check_packed(record, ids, logits)
            else:
                check_recurrent(recurrent, self, record.calls, ids, logits)
        spread, shapes = is_spread(self.model), list[LayerShape]()
        for call, sight in zip(record.calls, sights, strict=True):
            key, device = call.key, call.key.device if spread else None
            widths = key.shape[1], key.shape[3], call.value.shape[3]
            shapes.append(LayerShape(*widths, sight.window, chunk=sight.chunk, device=device))
        return tuple(shapes), recurrent

    def check_cache(self, ids: Tensor, expected: Tensor) -> None:
        """The cache of `generate` gives what one run gives, where the check is longer than its windows."""
        cache = generates_cache(self.model)
        windows = [] if cache is None else keeps_windows(cache)
        if windows and self.tree.tokens >= 2 * max(windows) + SINGLE_TOKENS:
            try:
                found = last_logits(self.model, cache, ids)
            except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
                return  # its generate cannot have run with this cache either
            self.same("its logits differ between one run and its own cache", expected, found, 1e-3, 0.25)

    def _check_packed(self, record: Recorder, ids: Tensor, logits: Tensor) -> None:
        """The model over packed rows in reverse order, against the record."""
        ends = [len(self.tree.positions) - rows.stop for rows in self.tree.spans[1:]]
        rows = Rows(self.tree.pack_backwards(ids, 1), self.tree.positions[::-1], self.tree.pack_backwards)
        packed = self.replay(record.calls, rows, ends, self.tree.spans, backwards=True)
        self.same("its logits differ over packed rows", logits[:, 0], packed[0], 1e-3, 0.25)

    def replay(
        self, calls: list[Call], rows: Rows, keep: list[int], spans: Sequence[slice], *, backwards: bool = False
    ) -> Tensor:
        """The logits (1, keep, vocabulary) of a pass over packed rows, each call of attention answered from the record;
        what the model does around attention must be the same. spans: the rows of each sequence, for averages."""
        replay = Replay(calls, rows)
        positions = torch.tensor([rows.positions], device=self.model.device)
        try:
            with attending(replay), self.extras.running() as extras:
                logits = self._logits(rows.ids, keep, position_ids=positions, **extras)
        except (AttributeError, TypeError) as error:
            raise UnsupportedModel(f"its layers need the mask itself, and the engine builds none ({error})") from error
        self._check_replay(calls, replay.calls, rows.pack, spans, backwards)
        return logits

    def _logits(self, ids: Tensor, keep: list[int], **options: Any) -> Tensor:
        """The logits (batch, keep, vocabulary) of some rows."""
        rows = keep if is_spread(self.model) else torch.tensor(keep, device=ids.device)
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

    def _check_layers(self, calls: Sequence[Call], recurrent: Recurrent | None) -> None:
        """Each layer must call attention, keep a recurrent state, or mix no tokens at all."""
        known = {call.layer for call in calls} | layers_without_tokens(self.model.config)
        known |= recurrent.layers if recurrent is not None else set()
        layers = range(getattr(self.config, "num_hidden_layers", 0))
        unknown = [layer for layer in layers if layer not in known] if len(calls) < len(layers) else []
        if unknown and (unknown := sorted(self._running_layers().intersection(unknown))):
            raise UnsupportedModel(
                f"layer {unknown[0]} of {len(layers)} neither calls attention that the engine can replace nor keeps a "
                "recurrent state in transformers' cache; cross attention, other caches, and states that a layer keeps "
                "to itself are not supported"
            )

    def _running_layers(self) -> set[int]:
        """The layers that run at all: without images, some models leave out those of cross attention."""
        ran = set[int]()
        try:
            layers = decoder_layers(self.model)
        except UnsupportedModel:  # which run cannot be told
            return {*range(self.config.num_hidden_layers)}
        each = self.config.num_hidden_layers // len(layers)
        handles = [
            layer.register_forward_pre_hook(lambda *_, first=n * each: ran.update(range(first, first + each)))
            for n, layer in enumerate(layers)
        ]
        try:
            with attending(Recorder()):
                self._logits(self._tokens()[:, :1], [-1])
        finally:
            for handle in handles:
                handle.remove()
        return ran

    @staticmethod
    def _place(calls: Sequence[Call], sights: Sequence[Sight]) -> None:
        """Note which of a pass's calls a module makes, and its window or chunk, where it does not say so itself."""
        numbers: dict[Any, list[int]] = {}
        for number, call in enumerate(calls):
            numbers.setdefault(call.module, []).append(number)
        for module, its in numbers.items():
            PLACES.pop(module, None)
            sight, told = sights[its[0]], Sight(calls[its[0]].told_window)
            if any(sights[number] != sight for number in its):
                raise UnsupportedModel(f"layer {calls[its[0]].layer} calls attention with different sliding windows")
            if its != [calls[its[0]].layer] or sight not in (told, Sight()):
                PLACES[module] = Place(tuple(its), *sight)

    def _long_masks(self, tokens: int, layers: Iterable[int]) -> dict[int, Tensor | None]:
        """The masks that the model builds for some layers over a longer sequence."""
        reader = MaskReader(layers)
        with attention_set_to(self.model, RECORD), attending(reader), suppress(AllRead):
            self.model(input_ids=self._tokens()[:1, :1].expand(1, tokens), use_cache=False)
        return reader.masks

    # ---------------------------------------------------------------- the function

    def check_function(self, number: int, call: Call, own: str) -> None:
        """The engine's attention function against the model's own, on the model's queries, keys and values."""
        dtype = torch.promote_types(call.query.dtype, torch.float32)
        query, key, value = (x.to(dtype) for x in (call.query, call.key, call.value))
        query = query * _enlargement(query, key, call.options.get("scaling"))
        found = self._engines(number, call, query, key, value)
        others: list[tuple[Attention, bool]] = [(eager_attention(call.module), True)]
        named = None if isinstance(call.module, CallsAttention) else named_attention(own)
        if named is not None:
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
                    f"attention that the engine does not know{_unknown(call.options)}"
                )
        if dtype != call.query.dtype:
            short = self._engines(number, call, call.query, call.key, call.value)
            self.same(f"layer {call.layer} differs in {call.query.dtype}", self.tree.pack(call.out, 1), short, 0, 0.1)

    def _engines(self, number: int, call: Call, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The engine's attention over the packed rows: (1, rows, heads, value_dim)."""
        query, key, value = (self.tree.pack(x, 2) for x in (query, key, value))
        plan = self.tree.plan(number, key, value)
        function = ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION]
        with attending(plan):
            out: Tensor = function(call.module, query, key, value, None, **call.options)[0]
        return out

    # ---------------------------------------------------------------- everything else

    def _check_replay(
        self, calls: Sequence[Call], packed: Sequence[Call], pack: Pack, spans: Sequence[slice], backwards: bool
    ) -> None:
        """What the model does around attention must be the same over packed rows."""
        if [call.module for call in calls] != [call.module for call in packed]:
            raise UnsupportedModel("its layers call attention in another order over packed rows")
        for call, again in zip(calls, packed, strict=True):
            if again.mask is not None and again.mask.numel() > 1:  # one element is what `ExtraArguments` gives
                raise UnsupportedModel(f"layer {call.layer} builds a mask of its own, which the engine does not use")
            for option in ("scaling", "sliding_window", "softcap"):
                if call.options.get(option) != again.options.get(option):
                    raise UnsupportedModel(
                        f"layer {call.layer} is told {option}={call.options.get(option)} over its own attention and "
                        f"{again.options.get(option)} over the engine's"
                    )
            for what in ("query", "key", "value"):
                pair = [pack(getattr(call, what), 2).transpose(1, 2), getattr(again, what).transpose(1, 2)]
                expected, found = (x.flip(1) for x in pair) if backwards else pair
                self._same_rows(f"the {what} of layer {call.layer}", expected, found, spans)

    def _same_rows(self, what: str, expected: Tensor, found: Tensor, spans: Sequence[slice]) -> None:
        """Compare (1, rows, ...) by branch; in 16 bits by the middle row of each, because expert routing may flip."""
        gap = (found - expected)[0].flatten(1).to(torch.float32).abs().mean(1)
        size = float(expected.abs().to(torch.float32).mean())
        limit = (1e-3 if self.exact else 0.1) * size + 1e-9
        for rows in spans:
            error = float(gap[rows].max() if self.exact else gap[rows].median())
            if not error <= limit:
                raise UnsupportedModel(
                    f"{what} differs by {error:.3g} (limit {limit:.3g}) when branches are packed into one sequence; "
                    "the model ignores the positions that it is given or counts them from another number than 0, or "
                    "mixes neighbouring tokens outside attention"
                )

    def same(self, what: str, expected: Tensor, found: Tensor, exact: float, rounded: float) -> None:
        """Compare by the largest difference; in 16 bits by the mean, because expert routing may flip."""
        gap = (found - expected).to(torch.float32).abs()
        size = expected.to(torch.float32).abs()
        error, limit = (gap.max(), exact * size.max()) if self.exact else (gap.mean(), rounded * size.mean())
        if not float(error) <= float(limit) + 1e-6:
            raise UnsupportedModel(f"{what}, by {float(error):.3g} (limit {float(limit):.3g})")


def _unknown(options: dict[str, Any]) -> str:
    """The names of tensors that attention is given and the engine's function does not take, for a message."""
    known = inspect.signature(tree_attention).parameters
    names = [name for name, value in options.items() if isinstance(value, Tensor) and name not in known]
    return f" ({', '.join(names)})" if names else ""


def _enlargement(query: Tensor, key: Tensor, scaling: float | None) -> float:
    """What brings the largest score of the first KV head to `SPREAD`; 1 when it is larger already."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    group = query.shape[1] // key.shape[1]
    largest = float((query[:, :group] @ key[:, :1].transpose(-1, -2)).abs().max()) * abs(scale)
    return SPREAD / largest if 0 < largest < SPREAD else 1.0

"""Is a model one that the engine serves exactly? Asked once, at load.

The model runs twice on a few tokens. First over its own attention: every call of attention is
recorded, and the engine's function has to give the same on the same queries, keys and values in
float32. Then over packed rows, as the engine runs it, each call answered from the record: queries,
keys, values and logits have to be the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ttc.attention.hf_hook import (
    PLACES,
    AttentionPlace,
    attending,
    install,
    uninstall,
)
from ttc.errors import MissingPart, UnsupportedModel, refuse, refusing
from ttc.memory.kv import LayerShape
from ttc.model.check.attention_check import CheckTree, check_function, check_same, is_precise
from ttc.model.check.masks import Sight, check_masks, check_windows, stated_windows
from ttc.model.check.recording import (
    RECORD,
    REPLAY,
    AllRead,
    AttentionCall,
    MaskReader,
    Pack,
    PackedRows,
    Recorder,
    Replay,
    answered_by,
    weights_on,
)
from ttc.model.extra_arguments import ExtraArguments, all_chosen
from ttc.model.places import is_spread
from ttc.model.recurrent_layers import Recurrent, find_recurrent, layers_without_tokens

WAY_OUT = (
    ". Use plain transformers for this model, or one that the engine serves (Llama, Qwen 3, "
    "Mistral, Gemma 3, Phi-3, OLMo 2, GPT-2, ...; docs/models.md names them all)"
)

CHECK_TOKENS = 16
LONGEST_CHECK = 160
"""The check has more than twice the tokens of any stated window or chunk, but no more than this."""


@torch.inference_mode()
def examine(model: Any) -> tuple[tuple[LayerShape, ...], Recurrent | None]:
    """Switch `model` to the engine's attention.

    Returns what each layer of attention stores per token, and the layers that keep a recurrent
    state. Raises UnsupportedModel when the model isn't a decoder, when its attention or states
    cannot be reached, or when they are not what the engine computes; it then stays as it was.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModel(
            f"{name} is an encoder-decoder; the engine runs decoder-only language models"
        )
    uninstall(model)  # another engine may have it

    def why(error: UnsupportedModel) -> str:
        if (tensor := _without_numbers(model)) is None:
            return f"served exactly: {error}{WAY_OUT}"
        return (
            f"used: its weights {tensor} hold NaN or infinite numbers; restore or download its "
            "files again, or load it in the dtype it was saved in"
        )

    fails = f"{name} cannot run over the engine's attention: {{kind}}: {{error}}{WAY_OUT}"
    with (
        refusing(Exception, fails, UnsupportedModel, but=UnsupportedModel),
        refusing(UnsupportedModel, f"{name} cannot be {{error}}", UnsupportedModel, words=why),
    ):
        layout = ModelCheck(model).run()
    install(model)
    return layout


def _without_numbers(model: Any) -> str | None:
    """The first weights that hold NaN or an infinity."""
    for name, weights in model.named_parameters():
        if weights.device.type == "meta" or not weights.is_floating_point():
            continue
        if weights.element_size() > 1 and not bool(weights.isfinite().all()):
            return str(name)
    return None


class ModelCheck:
    """The check of one model, whose attention is its own."""

    def __init__(self, model: Any):
        self.model = model
        self.config = model.config.get_text_config()
        self.windows = stated_windows(self.config)
        self.extras = ExtraArguments(model)
        self.precise = is_precise(model.dtype)
        # XLNet says -1, as it has no limit
        context: int = getattr(self.config, "max_position_embeddings", None) or -1
        self.context = context if context > 0 else 1 << 17
        self.context = min(self.context, all_chosen(model) or self.context)
        lengths = [2 * window + 8 for window in self.windows]
        longest = max(length for length in [CHECK_TOKENS, *lengths] if length <= LONGEST_CHECK)
        self.tree = CheckTree(min(longest, self.context))

    def run(self) -> tuple[tuple[LayerShape, ...], Recurrent | None]:
        ids = self._tokens()
        with refusing(
            (AttributeError, KeyError, RuntimeError, TypeError, ValueError),
            "it does not run on token ids alone ({error})",
            UnsupportedModel,
            but=MissingPart,
        ):
            recurrent = find_recurrent(self.model, ids[:1])
            keep = [-1] if recurrent is None else [*range(self.tree.tokens)]
            plain = self._logits(ids, keep)
        implementation = self.config._attn_implementation
        recorder = Recorder()
        calls = recorder.calls
        with answered_by(RECORD, self.model):
            with attending(recorder):
                logits = self._logits(ids, keep)
            self._check_layers(calls, recurrent)
            sights = check_masks(calls, self.windows, self.context, self._long_masks)
            self._note_places(calls, sights)
            self._check_calls(calls, sights, implementation)
        what = "its logits differ between its own and its eager attention"
        check_same(what, plain, logits, self.precise, 1e-3, 0.25)
        with answered_by(REPLAY, self.model):
            if recurrent is None:
                self._check_packed(calls, ids, logits)
            else:
                recurrent.check(self, calls, ids, logits)
        return tuple(map(self._shape, calls, sights)), recurrent

    def replay(
        self,
        calls: list[AttentionCall],
        rows: PackedRows,
        keep: list[int],
        spans: Sequence[slice],
        *,
        backwards: bool = False,
    ) -> Tensor:
        """The logits (1, keep, vocabulary) of a pass over packed rows, each call of attention
        answered from the record; what the model does around attention must be the same.

        spans: the rows of each sequence, for averages.
        """
        replay = Replay(calls, rows)
        positions = torch.tensor([rows.positions], device=self.model.device)
        with (
            refusing(
                (AttributeError, TypeError),
                "its layers need the mask itself, and the engine builds none ({error})",
                UnsupportedModel,
            ),
            attending(replay),
            self.extras.running() as extras,
        ):
            logits = self._logits(rows.ids, keep, position_ids=positions, **extras)
        if [call.module for call in calls] != [call.module for call in replay.calls]:
            raise UnsupportedModel("its layers call attention in another order over packed rows")
        for call, again in zip(calls, replay.calls, strict=True):
            self._check_call(call, again, rows.pack, spans, backwards)
        return logits

    # ---------------------------------------------------------------- runs

    def _logits(self, ids: Tensor, keep: list[int], **options: Any) -> Tensor:
        rows = keep if is_spread(self.model) else torch.tensor(keep, device=ids.device)
        output = self.model(input_ids=ids, use_cache=False, logits_to_keep=rows, **options)
        logits: Tensor = output.logits
        if logits.shape[1] != len(keep):
            raise UnsupportedModel(
                f"it gives {logits.shape[1]} rows of logits where {len(keep)} are asked for"
            )
        return logits

    def _tokens(self) -> Tensor:
        special = set[int]()
        for config in (self.config, self.model.config):
            for name, value in config.to_dict().items():
                if name.endswith(("token_id", "token_index")):
                    special.update(value if isinstance(value, list) else [value])
        vocabulary = range(min(self.config.vocab_size, 512))
        usable = torch.tensor([token for token in vocabulary if token not in special])
        random = torch.Generator().manual_seed(0)
        ids = usable[torch.randint(len(usable), (2, self.tree.tokens), generator=random)]
        ids[1, : self.tree.prefix] = ids[0, : self.tree.prefix]
        return ids.to(self.model.device)

    def _long_masks(self, tokens: int, layers: Iterable[int]) -> dict[int, Tensor | None]:
        reader = MaskReader(layers)
        ids = self._tokens()[:1, :1].expand(1, tokens)
        with answered_by(RECORD, self.model), attending(reader), suppress(AllRead):
            self.model(input_ids=ids, use_cache=False)
        return reader.masks

    # ---------------------------------------------------------------- layers

    def _check_layers(self, calls: Sequence[AttentionCall], recurrent: Recurrent | None) -> None:
        unseen = not calls and recurrent is None
        stateful = getattr(self.model, "_is_stateful", False)
        refuse(
            {
                "it keeps a state of its own between tokens, and the engine knows those in "
                "transformers' cache": unseen and stateful,
                "it does not dispatch attention through transformers' AttentionInterface, so the "
                "engine cannot reach it": unseen,
            },
            UnsupportedModel,
        )
        covered = {call.layer for call in calls} | layers_without_tokens(self.model.config)
        if recurrent is not None:
            covered |= recurrent.layers
        count = getattr(self.config, "num_hidden_layers", 0)
        if len(calls) >= count or covered.issuperset(range(count)):
            return
        if unknown := self._running_layers() - covered:
            raise UnsupportedModel(
                f"layer {min(unknown)} of {count} neither calls attention that the engine can "
                "replace nor keeps a recurrent state in transformers' cache; cross attention, "
                "other caches, and states that a layer keeps to itself are not supported"
            )

    def _running_layers(self) -> set[int]:
        """The layers that run: without images, some models leave out cross attention."""
        count = self.config.num_hidden_layers
        try:
            from ttc.decoder_layers import decoder_layers

            layers = decoder_layers(self.model)
        except UnsupportedModel:  # which run cannot be told
            return set(range(count))
        running = set[int]()
        each = count // len(layers)
        handles = []
        for n, layer in enumerate(layers):
            numbers = range(n * each, (n + 1) * each)
            handles.append(
                layer.register_forward_pre_hook(lambda *_, its=numbers: running.update(its))
            )
        try:
            with attending(Recorder()):
                self._logits(self._tokens()[:, :1], [-1])
        finally:
            for handle in handles:
                handle.remove()
        return running

    def _check_calls(
        self, calls: Sequence[AttentionCall], sights: Sequence[Sight], implementation: str
    ) -> None:
        """Whether caches keep what layers see, and the engine's function computes what they do."""
        numbers = [call.layer for call in calls]
        check_windows(self.model, zip(numbers, sights, strict=True), self.context)
        for number, call in enumerate(calls):
            with weights_on(call.query.device, call.module):
                check_function(self.tree, number, call, implementation, self.precise)

    @staticmethod
    def _note_places(calls: Sequence[AttentionCall], sights: Sequence[Sight]) -> None:
        numbers: dict[Any, list[int]] = {}
        for number, call in enumerate(calls):
            numbers.setdefault(call.module, []).append(number)
        for module, its in numbers.items():
            PLACES.pop(module, None)
            first = calls[its[0]]
            sight = sights[its[0]]
            if any(sights[number] != sight for number in its):
                raise UnsupportedModel(
                    f"layer {first.layer} calls attention with different sliding windows"
                )
            if its != [first.layer] or sight not in (Sight(first.sliding_window), Sight()):
                PLACES[module] = AttentionPlace(tuple(its), *sight)

    def _shape(self, call: AttentionCall, sight: Sight) -> LayerShape:
        device = call.key.device if is_spread(self.model) else None
        _, kv_heads, _, key_dim = call.key.shape
        value_dim = call.value.shape[3]
        return LayerShape(
            kv_heads, key_dim, value_dim, sight.window, chunk=sight.chunk, device=device
        )

    # ---------------------------------------------------------------- around attention

    def _check_packed(self, calls: list[AttentionCall], ids: Tensor, logits: Tensor) -> None:
        tree = self.tree
        ends = [len(tree.positions) - rows.stop for rows in tree.spans[1:]]
        rows = PackedRows(tree.pack_backwards(ids, 1), tree.positions[::-1], tree.pack_backwards)
        packed = self.replay(calls, rows, ends, tree.spans, backwards=True)
        what = "its logits differ over packed rows"
        check_same(what, logits[:, 0], packed[0], self.precise, 1e-3, 0.25)

    def _check_call(
        self,
        call: AttentionCall,
        again: AttentionCall,
        pack: Pack,
        spans: Sequence[slice],
        backwards: bool,
    ) -> None:
        own, engines = call.options, again.options
        refuse(
            {
                f"layer {call.layer} builds a mask of its own, which the engine does not use": (
                    # `ExtraArguments` gives one element
                    again.mask is not None and again.mask.numel() > 1
                ),
                **{
                    f"layer {call.layer} is told {option}={own.get(option)} over its own attention "
                    f"and {engines.get(option)} over the engine's": (
                        own.get(option) != engines.get(option)
                    )
                    for option in ("scaling", "sliding_window", "softcap")
                },
            },
            UnsupportedModel,
        )
        for what in ("query", "key", "value"):
            expected = pack(getattr(call, what), 2).transpose(1, 2)
            result = getattr(again, what).transpose(1, 2)
            if backwards:
                expected = expected.flip(1)
                result = result.flip(1)
            self._same_rows(f"the {what} of layer {call.layer}", expected, result, spans)

    def _same_rows(
        self, what: str, expected: Tensor, result: Tensor, spans: Sequence[slice]
    ) -> None:
        """Compare (1, rows, ...) by branch; in 16 bits by the middle row of each."""
        gap = (result - expected)[0].flatten(1).float().abs().mean(1)
        size = float(expected.abs().float().mean())
        limit = (1e-3 if self.precise else 0.1) * size + 1e-9
        for rows in spans:
            error = float(gap[rows].max() if self.precise else gap[rows].median())
            if not error <= limit:
                raise UnsupportedModel(
                    f"{what} differs by {error:.3g} (limit {limit:.3g}) when branches are packed "
                    "into one sequence; the model ignores the positions that it is given or "
                    "counts them from another number than 0, or mixes neighbouring tokens outside "
                    "attention"
                )

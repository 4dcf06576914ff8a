"""From a model's configuration to its partition units, without its weights (HELM, section 4.1.1).

The model is built without memory, on PyTorch's "meta" device, its weights are counted, and one pass
as the engine makes them shows what each layer's attention is given, which states its recurrent
layers keep, and in which order the other modules run. No list of architectures is needed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from ttc.attention.hf_hook import attending, uninstall
from ttc.cost_model.unit import Unit
from ttc.decoder_layers import decoder_layers
from ttc.errors import UnsupportedModel, refusing
from ttc.memory.states import StateBatch
from ttc.model.check.recording import REPLAY, AttentionCall, answered_by
from ttc.model.compiled.compiled_check import compiled_decoder
from ttc.model.extra_arguments import ExtraArguments
from ttc.model.recurrent_layers import FIND_TOKENS, find_recurrent, layers_without_tokens

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""What configurations call the number of experts."""
ROUTED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k")
"""What they call the number of experts that a row goes through."""

Weights = dict[int, Tensor]
"""Weights by id."""
KeptBytes = Mapping[int, int]
"""The bytes of weights that are kept in another form, by id."""


@dataclass(frozen=True)
class Partition:
    """A model as units that run one after the other.

    units: {u_i} of Algorithm 1: the embedding with what runs before the first block, each
    transformer block, and the output projection with all else. runs: of each block, whether it runs
    where there is text alone. begun: of each module outside the blocks that is called, by name, how
    many blocks had begun when it first ran and when it last ran. compiled: whether the
    blocks run compiled on a CPU of this machine's kind (see `runner_choice.py`).
    """

    units: tuple[Unit, ...]
    runs: tuple[bool, ...]
    begun: Mapping[str, tuple[int, int]]
    compiled: bool = False


def partition_units(config: Any, dtype: torch.dtype = torch.bfloat16) -> tuple[Unit, ...]:
    return partition(config, dtype).units


def partition(
    config: Any,
    dtype: torch.dtype = torch.bfloat16,
    kind: Any = None,
    stored: Mapping[str, int] | None = None,
) -> Partition:
    """The partition of a model.

    config: of transformers. dtype: of weights, activations and KV. kind: the model's class, None
    for `AutoModelForCausalLM`'s. stored: the bytes of weights that are kept in another form, by
    name. Raises UnsupportedModel for what is not a decoder, each layer of which attends, keeps a
    recurrent state or mixes no tokens.
    """
    config = copy.deepcopy(config)
    # the implementation that needs no values to choose experts
    config.get_text_config()._experts_implementation = "batched_mm"
    with refusing(
        Exception,
        f"the layers of a {type(config).__name__} cannot be counted ({{kind}}: "
        f"{{error}}). Give the configuration of a decoder-only language model; "
        "placement=streamed needs no counts",
        UnsupportedModel,
        but=UnsupportedModel,
    ):
        with torch.device("meta"):
            build = AutoModelForCausalLM.from_config if kind is None else kind._from_config
            model = build(config, dtype=dtype).eval()
        uninstall(model)
        compiled = compiled_decoder(model) is not None
        vars(model.config)["pad_token_id"] = None  # with one, transformers looks at the tokens
        blocks = decoder_layers(model)
        observed = _observed(model)
        named = model.named_parameters(remove_duplicate=False)
        kept = {id(w): stored[name] for name, w in named if stored and name in stored}
        units = _units(model, blocks, observed, dtype, kept)
        runs = tuple(block.runs for block in observed.blocks)
        return Partition(units, runs, observed.begun, compiled)


# ---------------------------------------------------------------- one pass


@dataclass
class _Block:
    """What a pass of one token shows of a block. state_elements: of its recurrent states alone."""

    runs: bool = False
    kv_elements: int = 0
    score_elements: int = 0
    window: int | None = None
    state_bytes: int = 0
    state_elements: int = 0


class _Observed:
    """What a pass of one token shows; it is also the plan that the pass goes by."""

    positions = None  # a sequence's own, from 0 on

    def __init__(self, count: int):
        self.blocks = [_Block() for _ in range(count)]
        self.begun: dict[str, tuple[int, int]] = {}
        self.now = -1

    def block_begins(self, number: int, *_: Any) -> None:
        self.now = number
        self.blocks[number].runs = True

    def module_runs(self, name: str, *_: Any) -> None:
        first, _last = self.begun.get(name, (self.now + 1, 0))
        self.begun[name] = first, self.now + 1

    def answer(self, call: AttentionCall) -> Tensor:
        widths = call.key.shape[3] + call.value.shape[3]
        block = self.blocks[self.now]
        block.kv_elements += call.key.shape[1] * widths
        block.score_elements += call.query.shape[1] * widths
        block.window = call.sliding_window
        return call.zeros


def _observed(model: Any) -> _Observed:
    try:
        return _run(model)
    except RuntimeError:  # it looks at values, which there are none of
        values = copy.deepcopy(model)
        return _run(values._apply(_zeros))


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)


@torch.inference_mode()
def _run(model: Any) -> _Observed:
    blocks = decoder_layers(model)
    ids = torch.ones(1, FIND_TOKENS, dtype=torch.long, device=model.device)
    recurrent = find_recurrent(model, ids)
    batch = StateBatch(torch.zeros(1, 1, dtype=torch.long), {})
    states = nullcontext() if recurrent is None else recurrent.running([batch])
    observed = _Observed(len(blocks))
    watched = {
        module: partial(observed.module_runs, name) for name, module in _outside(model, blocks)
    }
    watched |= {block: partial(observed.block_begins, n) for n, block in enumerate(blocks)}
    hooks = [module.register_forward_pre_hook(hook) for module, hook in watched.items()]
    extras = ExtraArguments(model)
    try:
        with (
            answered_by(REPLAY, model),
            states,
            extras.running() as arguments,
            attending(observed),
        ):
            positions = torch.zeros_like(ids[:, :1])
            options = {"position_ids": positions, "use_cache": False} | arguments
            model(input_ids=ids[:, :1], **options)
    finally:
        for hook in hooks:
            hook.remove()
    count = model.config.get_text_config().num_hidden_layers
    for part, tensor in batch.tensors.items():
        block = observed.blocks[part.layer * len(blocks) // count]
        block.state_bytes += tensor.nbytes
        block.state_elements += tensor.numel() if part.kind == "recurrent" else 0
    without_tokens = layers_without_tokens(model.config)
    for number, block in enumerate(observed.blocks):
        counted = block.kv_elements or block.state_bytes or number in without_tokens
        if block.runs and not counted:
            raise UnsupportedModel(
                f"layer {number} of {type(model).__name__} neither calls attention that the engine "
                "can replace nor keeps a recurrent state in transformers' cache, so it cannot be "
                "counted"
            )
    return observed


# ---------------------------------------------------------------- units


def _units(
    model: Any,
    blocks: list[nn.Module],
    observed: _Observed,
    dtype: torch.dtype,
    stored: KeptBytes,
) -> tuple[Unit, ...]:
    config = model.config.get_text_config()
    before, after = _around(model, blocks, observed)
    weights = {"embedding": before}
    weights |= {f"block {n}": _weights(block.modules()) for n, block in enumerate(blocks)}
    weights["output"] = after
    counted = _bytes_and_ties(weights, stored)
    facts: dict[str, dict[str, Any]] = {"embedding": {"multiplied": 0}}
    for n, (block, seen) in enumerate(zip(blocks, observed.blocks, strict=True)):
        of_attention = {name: value for name, value in vars(seen).items() if name != "runs"}
        facts[f"block {n}"] = {
            "is_block": True,
            **of_attention,
            **_multiplied(block, config, stored),
        }
    facts["output"] = {"multiplied": _matrices(after.values())}
    common = {"hidden": config.hidden_size, "bytes_per_element": dtype.itemsize}
    return tuple(Unit(name=name, **facts[name], **counted[name], **common) for name in weights)


def _outside(model: nn.Module, blocks: list[nn.Module]) -> list[tuple[str, nn.Module]]:
    inside = {module for block in blocks for module in block.modules()}
    return [(name, module) for name, module in model.named_modules() if module not in inside]


def _around(
    model: nn.Module, blocks: list[nn.Module], observed: _Observed
) -> tuple[Weights, Weights]:
    before: list[nn.Module] = []
    after: list[nn.Module] = []
    for name, module in _outside(model, blocks):
        uncalled = 0 if isinstance(module, nn.Embedding) else 1
        _, begun = observed.begun.get(name, (0, uncalled))
        (after if begun else before).append(module)
    return _weights(before), _weights(after)


def _weights(modules: Iterable[nn.Module]) -> Weights:
    return {id(weight): weight for each in modules for weight in each.parameters(recurse=False)}


def _bytes_and_ties(weights: dict[str, Weights], stored: KeptBytes) -> dict[str, dict[str, Any]]:
    """`param_bytes` and `tied` of each unit: the last one that has a weight counts it."""
    counted: dict[str, dict[str, Any]] = {}
    owners: dict[int, str] = {}
    for name, its in reversed(weights.items()):
        tied: dict[str, int] = {}
        param_bytes = 0
        for key, weight in its.items():
            if key in owners:
                tied[owners[key]] = tied.get(owners[key], 0) + stored.get(id(weight), weight.nbytes)
            else:
                param_bytes += stored.get(id(weight), weight.nbytes)
        counted[name] = {"param_bytes": param_bytes, "tied": tuple(tied.items())}
        owners |= dict.fromkeys(its, name)
    return counted


def _multiplied(block: nn.Module, config: Any, stored: KeptBytes) -> dict[str, Any]:
    weights = dict(block.named_parameters())
    facts: dict[str, Any] = {"multiplied": _matrices(weights.values())}
    of_experts = [weight for name, weight in weights.items() if "experts" in name.split(".")]
    if of_experts:
        experts = _first_set(config, EXPERTS)
        routed = _first_set(config, ROUTED)
        numbers = _matrices(of_experts)
        facts["multiplied"] -= numbers - numbers * routed // experts
        facts["expert_bytes"] = sum(stored.get(id(weight), weight.nbytes) for weight in of_experts)
        facts |= {"experts": experts, "routed": routed}
    return facts


def _first_set(config: Any, names: Iterable[str]) -> int:
    return next((number for name in names if (number := getattr(config, name, 0))), 1)


def _matrices(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in weights if weight.dim() > 1)

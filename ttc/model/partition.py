"""From a model's configuration to its partition units, without its weights (HELM, section 4.1.1).

The paper traces the model and counts. Here the model is built without memory, on PyTorch's "meta" device, its weights
are counted, and one pass shows what each layer's attention is given, which states its recurrent layers keep, and in
which order the other modules run. The engine's own passes run in the same way, so no list of architectures is needed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from ttc.attention.hf_hook import attending
from ttc.attention.installing import attention_set_to, can_set_attention, uninstall
from ttc.cost_model.unit import Unit
from ttc.decoder_layers import decoder_layers, large_linears
from ttc.errors import UnsupportedModel
from ttc.memory.states import StateBatch
from ttc.model.extra_arguments import ExtraArguments
from ttc.model.recording import REPLAY
from ttc.model.recurrent_search import FIND_TOKENS, find_recurrent, layers_without_tokens
from ttc.model.runner_choice import compiled_decoder

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
ROUTED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k")
"""What configurations call the number of experts, and how many of them a row goes through."""


@dataclass(frozen=True)
class Partition:
    """A model as units that run one after the other.

    units: {u_i} of Algorithm 1: the embedding, each transformer block in order, and the output projection. What runs
    before the first block belongs to the embedding, all else outside the blocks to the output projection.
    runs: of each block, whether it runs where there is text alone.
    begun: of each module outside the blocks, by name, how many blocks had begun when it first ran and when it last ran;
    modules that are not called are not there.
    compiled: whether the blocks run compiled on a CPU of this machine's kind (see `ttc.model.runner_choice`).
    """

    units: tuple[Unit, ...]
    runs: tuple[bool, ...]
    begun: Mapping[str, tuple[int, int]]
    compiled: bool = False


def partition_units(config: Any, dtype: torch.dtype = torch.bfloat16, kind: Any = None) -> tuple[Unit, ...]:
    """The units of `partition`."""
    return partition(config, dtype, kind).units


def partition(config: Any, dtype: torch.dtype = torch.bfloat16, kind: Any = None) -> Partition:
    """The partition of a model.

    config: of transformers. dtype: of weights, activations and KV. kind: the model's class, None for the one that
    `AutoModelForCausalLM` has for the configuration.
    Raises UnsupportedModel for what is not a decoder, each layer of which attends, keeps a recurrent state or mixes no
    tokens.
    """
    config = copy.deepcopy(config)
    config.get_text_config()._experts_implementation = "batched_mm"  # the one that needs no values to choose experts
    try:
        with torch.device("meta"):
            from_config = AutoModelForCausalLM.from_config if kind is None else kind._from_config
            model = from_config(config, dtype=dtype).eval()
        uninstall(model)
        compiled = compiled_decoder(model) is not None
        vars(model.config)["pad_token_id"] = None  # with one, transformers looks at the tokens for padding
        seen = _seen(model)
        return Partition(_units(model, seen, dtype), tuple(seen.runs), seen.begun, compiled)
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"the layers of a {type(config).__name__} cannot be counted ({type(error).__name__}: {error}). Give the "
            "configuration of a decoder-only language model; placement=streamed needs no counts"
        ) from error


# ---------------------------------------------------------------- one pass


@dataclass
class _Seen:
    """What a pass of one token shows of its blocks and of the modules around them, and the plan that it goes by."""

    blocks: list[nn.Module]
    kv_elements: list[int] = field(init=False)
    score_elements: list[int] = field(init=False)
    windows: list[int | None] = field(init=False)
    runs: list[bool] = field(init=False)
    states: list[list[tuple[str, Tensor]]] = field(init=False)
    begun: dict[str, tuple[int, int]] = field(init=False, default_factory=dict)
    now: int = field(init=False, default=-1)
    positions = None  # a sequence's own, from 0 on

    def __post_init__(self) -> None:
        count = len(self.blocks)
        self.kv_elements, self.score_elements = [0] * count, [0] * count
        self.windows, self.runs = [None] * count, [False] * count
        self.states = [[] for _ in self.blocks]

    def block_begins(self, number: int, *_: Any) -> None:
        self.now, self.runs[number] = number, True

    def module_runs(self, name: str, *_: Any) -> None:
        first, _last = self.begun.get(name, (self.now + 1, 0))
        self.begun[name] = first, self.now + 1

    def answer(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Tensor:
        """Note the shapes of a call of attention, (1, heads, 1, dim) each, of which a block may make more than one."""
        heads, kv_heads, widths = query.shape[1], key.shape[1], key.shape[3] + value.shape[3]
        self.kv_elements[self.now] += kv_heads * widths
        self.score_elements[self.now] += heads * widths
        self.windows[self.now] = options.get("sliding_window")
        return query.new_empty(1, 1, heads, value.shape[3])


def _seen(model: Any) -> _Seen:
    try:
        return _run(model)
    except RuntimeError:  # it looks at values, which there are none of
        values = copy.deepcopy(model)
        seen = _run(values._apply(lambda tensor: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)))
        seen.blocks = decoder_layers(model)
        return seen


@torch.inference_mode()
def _run(model: Any) -> _Seen:
    """A pass as the engine's runner makes them, with attention that computes nothing."""
    blocks, extras = decoder_layers(model), ExtraArguments(model)
    ids = torch.ones(1, FIND_TOKENS, dtype=torch.long, device=model.device)
    recurrent = find_recurrent(model, ids)
    seen, batch = _Seen(blocks), StateBatch(torch.zeros(1, 1, dtype=torch.long), {})
    inside = {id(module) for block in blocks for module in block.modules()}
    handles = [
        block.register_forward_pre_hook(partial(seen.block_begins, number)) for number, block in enumerate(blocks)
    ] + [
        module.register_forward_pre_hook(partial(seen.module_runs, name))
        for name, module in model.named_modules()
        if id(module) not in inside
    ]
    states = nullcontext() if recurrent is None else recurrent.running([batch])
    attention = attention_set_to(model, REPLAY) if can_set_attention(model) else nullcontext()
    try:
        with attention, states, extras.running() as arguments, attending(seen):
            model(input_ids=ids[:, :1], position_ids=ids[:, :1] - 1, use_cache=False, **arguments)
    finally:
        for handle in handles:
            handle.remove()
    count = model.config.get_text_config().num_hidden_layers
    for part, tensor in batch.tensors.items():
        seen.states[part.layer * len(blocks) // count].append((part.kind, tensor))
    _check_known(model, seen)
    return seen


def _check_known(model: Any, seen: _Seen) -> None:
    """Raise UnsupportedModel unless it is known what each block keeps of a sequence."""
    none = layers_without_tokens(model.config)
    for number, runs in enumerate(seen.runs):
        if runs and not seen.kv_elements[number] and not seen.states[number] and number not in none:
            raise UnsupportedModel(
                f"layer {number} of {type(model).__name__} neither calls attention that the engine can replace nor "
                "keeps a recurrent state in transformers' cache, so it cannot be counted"
            )


# ---------------------------------------------------------------- units


def _units(model: Any, seen: _Seen, dtype: torch.dtype) -> tuple[Unit, ...]:
    config = model.config.get_text_config()
    common: dict[str, Any] = {"hidden": config.hidden_size, "bytes_per_element": dtype.itemsize}
    blocks = {f"block {number}": block for number, block in enumerate(seen.blocks)}
    before, after = _around(model, seen)
    weights = {"embedding": before, **{name: _weights(block.modules()) for name, block in blocks.items()}}
    own = _bytes_and_ties(weights | {"output": after})
    units = [Unit(name="embedding", multiplied=0, **own["embedding"], **common)]
    for number, (name, block) in enumerate(blocks.items()):
        units.append(Unit(name=name, **_multiplied(block, config), **_kept(seen, number), **own[name], **common))
    return (*units, Unit(name="output", multiplied=_matrices(after.values()), **own["output"], **common))


def _around(model: nn.Module, seen: _Seen) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """The weights of the modules that run before the blocks, and of those that run after; of those that are not called
    the tables belong to the former."""
    inside = {id(module) for block in seen.blocks for module in block.modules()}
    parts: tuple[list[nn.Module], list[nn.Module]] = ([], [])
    for name, module in model.named_modules():
        if id(module) not in inside:
            _, begun = seen.begun.get(name, (0, 0 if isinstance(module, nn.Embedding) else 1))
            parts[begun > 0].append(module)
    return _weights(parts[0]), _weights(parts[1])


def _weights(modules: Iterable[nn.Module]) -> dict[int, Tensor]:
    return {id(weight): weight for module in modules for weight in module.parameters(recurse=False)}


def _bytes_and_ties(weights: dict[str, dict[int, Tensor]]) -> dict[str, dict[str, Any]]:
    """`param_bytes` and `tied` of each unit: the last one that has a weight counts it."""
    found, owner = dict[str, dict[str, Any]](), dict[int, str]()
    for name in reversed(weights):
        tied, its = dict[str, int](), weights[name]
        for key in its.keys() & owner.keys():
            tied[owner[key]] = tied.get(owner[key], 0) + its[key].nbytes
        param_bytes = sum(weight.nbytes for key, weight in its.items() if key not in owner)
        found[name] = {"param_bytes": param_bytes, "tied": tuple(tied.items())}
        owner |= dict.fromkeys(its, name)
    return found


def _kept(seen: _Seen, number: int) -> dict[str, Any]:
    """What a block's unit says of attention and states."""
    states = seen.states[number]
    return {
        "is_block": True,
        "kv_elements": seen.kv_elements[number],
        "score_elements": seen.score_elements[number],
        "window": seen.windows[number],
        "state_bytes": sum(tensor.nbytes for _, tensor in states),
        "state_elements": sum(tensor.numel() for kind, tensor in states if kind == "recurrent"),
    }


def _multiplied(block: nn.Module, config: Any) -> dict[str, Any]:
    """`multiplied` and `large_bytes` of a block, and what its unit says of experts."""
    weights = dict(block.named_parameters())
    large = large_linears(block).values()
    found: dict[str, Any] = {
        "multiplied": _matrices(weights.values()),
        "large_bytes": sum(m.weight.nbytes for m in large),
    }
    if of_experts := [weight for name, weight in weights.items() if "experts" in name.split(".")]:
        experts, routed = (
            next((n for n in (getattr(config, k, 0) for k in keys) if n), 1) for keys in (EXPERTS, ROUTED)
        )
        stored = _matrices(of_experts)
        found["multiplied"] -= stored - stored * routed // experts
        found |= {"experts": experts, "routed": routed, "expert_bytes": sum(weight.nbytes for weight in of_experts)}
    return found


def _matrices(weights: Iterable[Tensor]) -> int:
    """Elements by which each row is multiplied."""
    return sum(weight.numel() for weight in weights if weight.dim() > 1)

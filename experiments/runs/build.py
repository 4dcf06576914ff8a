"""From a configuration to the objects that it describes."""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import Any, TypeVar

from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.cli.escapes import resolve_escapes
from experiments.cli.output import say
from experiments.runs.auto_memory import auto_of, is_auto
from experiments.runs.config_values import as_dict
from experiments.runs.data import load_examples
from experiments.runs.default_verifier import default_verifier
from experiments.runs.grading import AnswerReading
from experiments.runs.schema import VERIFIERS, CalibratedExitConfig, check_settings, schema_of
from search import Search
from search.budget import LIMITS, Budget
from search.options import SolveOptions
from ttc.approximate.early_exit import EarlyExit
from ttc.backend import Backend
from ttc.calibration.exit_calibration import ExitCalibration
from ttc.calibration.gate_calibration import GateCalibration
from ttc.checks import use_one_of
from ttc.engine import Engine
from ttc.errors import InvalidInput
from ttc.model.generation_settings import GenerationSettings
from ttc.model.loading.device_map import Over, devices_of
from ttc.model.loading.load import chosen_device, load_generation_config, load_tokenizer
from ttc.model.running.runner import ModelRunner
from ttc.parts import handler, missing_for
from ttc.placement.auto import settled
from ttc.placement.base import Placement
from ttc.placement.placed_loading import load_runner
from ttc.protocols import Verifier
from ttc.residency.resident import Resident
from ttc.text.prompt import PromptTemplate
from ttc.text.special_tokens import SplitSpecialTokens
from ttc.text.thinking_marks import ThinkingMarks
from ttc.text.thoughts import Setting
from ttc.tree.sharing import Sharing


def resolved(config: DictConfig) -> DictConfig:
    """The configuration with typed escapes resolved, and with inner verifiers and calibrations in
    place of their names, so that the run's folder shows the settings that are used.

    Raises InvalidInput for a setting beyond its limit, for an unknown name, and for a calibration
    that was made for another model, data set or search, or on the same problems.
    """
    check_settings(config)
    config = config.copy()
    if OmegaConf.is_interpolation(config.verifier, "_target_"):  # verifier=auto
        config.verifier = _by_name(default_verifier(config.dataset.answer_kind), "verifier")
    resolve_escapes(config)
    verifier = config.verifier
    if isinstance(name := verifier.get("inner"), str):
        verifier.inner = _by_name(name, "verifier.inner")
    if "parts" in verifier:
        verifier.parts = [
            _by_name(part, "verifier.parts") if isinstance(part, str) else part
            for part in verifier.parts
        ]
    if (file := verifier.get("calibration")) is not None:
        gate = _calibration(GateCalibration, file, config)
        verifier.tau_conf = gate.tau_conf
        verifier.r_gap = gate.r_gap
    inner: Any = verifier.get("inner") or {}
    for where, node in (("verifier", verifier), ("verifier.inner", inner)):
        exit = node.get("exit")
        if exit is not None and OmegaConf.get_type(exit) is CalibratedExitConfig:
            if OmegaConf.is_missing(exit, "calibration"):
                raise InvalidInput(
                    f"{where}.exit.calibration is not given; name a file of experiments.calibrate"
                )
            settings = _calibration(ExitCalibration, exit.calibration, config).exit
            node.exit = OmegaConf.structured(schema_of(EarlyExit)(**asdict(settings)))
    return config


C = TypeVar("C", GateCalibration, ExitCalibration)


def _calibration(kind: type[C], file: str, config: DictConfig) -> C:
    calibration = kind.load(file, model=config.model.name, dataset=config.dataset.name)
    calibration.check_use(
        file, as_dict(config.dataset, resolve=True), as_dict(config.search, resolve=True)
    )
    return calibration


def _by_name(name: str, where: str) -> Any:
    if name not in VERIFIERS:
        unknown = f"{where}={name} is unknown; {use_one_of(name, VERIFIERS)}"
        raise InvalidInput(missing_for(f"verifier={name}") or unknown)
    return OmegaConf.structured(schema_of(VERIFIERS[name]))


def make_verifier(config: DictConfig) -> Verifier | None:
    # its thresholds stand in `resolved`
    loaded = {"calibration": None} if "calibration" in config.verifier else {}
    return _made(config.verifier, **loaded)


def make_search(config: DictConfig) -> tuple[Search, Verifier | None]:
    """The search, and the verifier if it asks for one, else `config` names none. Raises
    InvalidInput where the two do not go together."""
    search: Search = instantiate(config.search, _convert_="all")
    verifier = make_verifier(config)
    if search.needs_verifier and verifier is None:
        raise InvalidInput(
            f"{type(search).__name__} selects by score; choose a verifier other than none"
        )
    if not search.needs_verifier:  # it would not be asked, so the run's folder must not name it
        verifier = None
        config.verifier = OmegaConf.create({"_target_": None})
    exit = getattr(getattr(verifier, "inner", verifier), "exit", None)
    varies = exit is not None and (exit.rule == "ranking" or exit.common_depth)
    if search.compares_ratings and varies:
        raise InvalidInput(
            f"{type(search).__name__} compares scores of different ratings, which do not compare "
            "where each rating leaves at a depth of its own; use a search that rates once, or "
            "verifier.exit.rule=entropy"
        )
    return search, verifier


def thinking_marks(config: DictConfig) -> Setting:
    marks = as_dict(config.model)["thinking_marks"]
    if marks is None or marks is False:
        return marks
    if not isinstance(marks, list) or len(marks) != 2:
        raise InvalidInput(
            f"model.thinking_marks={marks} must be null for the model's own, false for none, or "
            "two strings that begin and end a thought, as [<think>,</think>]"
        )
    return ThinkingMarks(*marks)


def make_template(config: DictConfig) -> PromptTemplate:
    data = config.dataset
    return PromptTemplate(
        data.instruction,
        data.system,
        (*((e.question, e.answer) for e in data.examples), *load_examples(data)),
        data.chat,
        data.raw,
        as_dict(data.chat_options),
        keep_generated=data.keep_generated,
    )


def make_budget(config: DictConfig) -> Budget:
    return Budget(**{name: config.run[name] for name in LIMITS})


def solve_options(
    config: DictConfig,
    reading: AnswerReading,
    verifier: Verifier | None = None,
    template: PromptTemplate | None = None,
) -> SolveOptions:
    return SolveOptions(
        verifier=verifier,
        seed=config.run.seed,
        template=template,
        **reading.options(),
        thinking_marks=thinking_marks(config),
        end=tuple(config.dataset.end),
        budget=make_budget(config),
        tools=make_tools(config),
    )


def make_tools(config: DictConfig) -> Any:
    return _made(config.tools)


def make_backend(config: DictConfig) -> Backend:
    if not is_remote(config):
        return make_engine(config)
    if own_backend(config) is not None:
        return _made(config.backend)
    name = config.model.name
    source = source_options(config)
    tokenizer = tokenizer_of(config)
    settings = None
    if config.model.generation_settings:
        stored = load_generation_config(name, **source)
        settings = GenerationSettings.of(stored, len(tokenizer))
    connect = handler("connect", "backend")
    backend = connect(_made(config.backend), tokenizer, settings)
    say_settings(settings)
    say(
        f"{backend.capabilities.model} at {config.backend.base_url}: "
        f"{backend.capabilities.describe()}"
    )
    return backend


LOCAL_GROUPS = {
    "memory": Resident,
    "placement": None,
    "cache": None,
    "sharing": Sharing,
    "gate": None,
    "speculation": None,
}
"""The groups of the engine of this machine, with the classes of defaults that do something."""


def is_remote(config: DictConfig) -> bool:
    """Whether texts are written by something else than an engine of this process."""
    return bool(config.backend.get("_target_"))


def own_backend(config: DictConfig) -> type[Backend] | None:
    """The class that is configured, if it is a backend with a tokenizer and not an address."""
    kind = get_class(config.backend._target_) if is_remote(config) else None
    return kind if kind is not None and issubclass(kind, Backend) else None


def check_backend(config: DictConfig) -> None:
    """Raise InvalidInput for settings of the engine of this machine where something else writes
    the texts."""
    if not is_remote(config):
        return
    plain = {"device": "auto", "dtype": "auto", "device_map": None}
    unused = [
        f"model.{name}={config.model[name]}"
        for name, value in plain.items()
        if config.model[name] != value
    ]
    for group, kind in LOCAL_GROUPS.items():
        default = OmegaConf.structured(schema_of(kind)) if kind else {"_target_": None}
        if config[group] != default:
            unused.append(group)
    own = own_backend(config) is not None
    if unused:
        raise InvalidInput(
            f"backend={config.backend._target_}: the {'backend' if own else 'server'} decides "
            f"about {', '.join(unused)}; leave that out"
            + ("" if own else " here and set it where the server is started")
        )
    if not own:
        _made(config.backend)  # refuses wrong settings before anything is loaded


def make_engine(config: DictConfig) -> Engine:
    if is_remote(config):
        raise InvalidInput(
            f"backend={config.backend._target_} cannot do this; it needs the model on this "
            "machine: use backend=local"
        )
    name, dtype = config.model.name, config.model.dtype
    source = source_options(config) | {"quantized": config.model.quantized}
    options = engine_options(config)
    device, over = devices_in(config)
    placement, options["memory"], chosen = settled(
        options["memory"], make_placement(config), name, device, dtype, over, **source
    )
    if chosen is not None:
        say(f"chosen: {' '.join(chosen.settings)}, {chosen.option.step_s * 1e3:.0f} ms a step")
    model, tokenizer, runner = loaded(name, device, dtype, placement, over, **source)
    engine = Engine(model, tokenizer, runner=runner, **options)
    engine.chosen = chosen
    if engine.speculation is not None and engine.speculation.reason:
        say(f"no speculation: {engine.speculation.reason}")
    say_settings(engine.generation_settings)
    if not engine.limits.eos_ids and (end := getattr(tokenizer, "eos_token", None)) is not None:
        say(
            f"the model's generation_config names no end token (its tokenizer has {end!r}): texts "
            "end at their limits"
        )
    return engine


def tokenizer_of(config: DictConfig) -> Any:
    """The tokenizer that the run's backend has, without its model."""
    if own_backend(config) is not None:
        return make_backend(config).tokenizer
    tokenizer = load_tokenizer(config.model.name, **source_options(config))
    return SplitSpecialTokens(tokenizer) if config.model.split_special_tokens else tokenizer


def say_settings(settings: GenerationSettings | None) -> None:
    if settings is not None and settings.honoured:
        say(
            f"as the model's generation_config asks: {settings.describe()} "
            "(model.generation_settings=false: without)"
        )


def make_placement(config: DictConfig) -> Placement | None:
    """Which units a split has on the host may be left to memory=auto."""
    planned = is_auto(config) and "profile" in config.placement
    return _made(config.placement, **({"profile": config.memory.profile} if planned else {}))


def devices_in(config: DictConfig) -> tuple[str, Over | None]:
    """(device, map): what `model.device` or `model.device_map` names, and a map over several
    devices."""
    if (device_map := as_dict(config.model).get("device_map")) is None:
        return str(config.model.device), None
    device, over = devices_of(device_map, config.model.device)
    return str(chosen_device(device)), over


def device_of(config: DictConfig) -> str:
    """The one device of what runs on no more."""
    device, over = devices_in(config)
    if over is not None:
        raise InvalidInput(
            f"model.device_map={config.model.device_map} names several devices; this runs on one"
        )
    return device


def source_options(config: DictConfig) -> dict[str, Any]:
    """What a model's name leaves open of where it is read from."""
    return {
        "gguf_file": config.model.gguf_file,
        "trust_remote_code": config.model.trust_remote_code,
    }


last_loaded: dict[tuple[str, str, str, str], tuple[Any, Any, ModelRunner]] = {}


def loaded(
    name: str,
    device: str,
    dtype: str,
    placement: Placement | None = None,
    over: Over | None = None,
    **source: Any,
) -> tuple[Any, Any, ModelRunner]:
    """(model, tokenizer, runner). The last one stays loaded, so that the jobs of a sweep share
    it."""
    key = (name, device, dtype, repr((placement, over, source)))
    if key not in last_loaded:
        say(f"loading {name}")
        last_loaded.clear()
        gc.collect()
        last_loaded[key] = load_runner(
            name, placement, over=over, device=device, dtype=dtype, **source
        )
    return last_loaded[key]


def engine_options(config: DictConfig) -> dict[str, Any]:
    memory = auto_of(config) if is_auto(config) else instantiate(config.memory, _convert_="all")
    return {
        "memory": memory,
        **{group: _made(config[group]) for group in ("cache", "sharing", "gate", "speculation")},
        "generation_settings": config.model.generation_settings,
        "int8_activations": config.model.int8_activations,
        "split_special_tokens": config.model.split_special_tokens,
    }


def _made(node: DictConfig, **settings: Any) -> Any:
    return instantiate(node, _convert_="all", **settings) if node.get("_target_") else None

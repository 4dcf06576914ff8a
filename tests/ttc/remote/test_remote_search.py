"""Searches over a server: the same texts as on an engine, whatever the server's ways, and exact
accounts."""

from __future__ import annotations

from typing import Any

import pytest

from search import (
    BeamSearch,
    BestOfN,
    DeepConf,
    Greedy,
    solve,
    stream,
)
from tests.helpers.engines import GREEDY
from tests.helpers.models import small
from tests.helpers.servers import ServedModel, connected
from tests.helpers.tiers import slow, some_quick
from tests.helpers.tokenizers import EOS, Ascii
from ttc import ContextExceeded, Engine, InvalidInput, RemoteError, Sampling
from verifiers import ConfidenceVerifier, SelfVerifier

DIALECTS: dict[str, dict[str, Any]] = {
    "tokens": {},
    "text": {"ids_in": False, "ids_out": False},
    "tokens in, text out": {"ids_out": False},
    "stops are named": {"ids_in": False, "ids_out": False, "stop": "named"},
    "stops are trimmed": {"stop": "trimmed"},
    "trimmed text": {"ids_in": False, "ids_out": False, "stop": "trimmed"},
    "stops are ignored": {"stop": "ignored"},
    "OpenAI's own settings": {"extras": False, "ids_out": False, "logprobs": 5},
}
PROBLEMS = ["1 + 1", "How many? 7", "a"]


def local() -> Engine:
    return Engine(small(context=256, eos=EOS), Ascii())


@pytest.mark.few(1)
@pytest.mark.parametrize("dialect", some_quick(DIALECTS, ["tokens", "stops are trimmed"]))
def test_greedy_steps_are_those_of_an_engine(dialect: str) -> None:
    """Steps end where the engine ends them: at a delimiter, an end string, the end of the sequence
    or the limit."""
    engine = local()
    texts = [f"Question {i}:\n" for i in range(4)]
    with connected(ServedModel(**DIALECTS[dialect])) as backend:
        for stop, end in (
            ((), ()),
            (("7",), ()),
            (("P", "\x7f"), ("}\x13",)),
            (("q",), ("\x01", "Z", "d", "+")),
        ):
            here, there = ([b.root(b.encode(t), seed=0) for t in texts] for b in (engine, backend))
            for _ in range(2):
                going = [i for i, branch in enumerate(here) if not branch.finished]
                for place, branches in ((engine, here), (backend, there)):
                    place.generate(
                        [branches[i] for i in going], 12, stop=stop, end=end, sampling=GREEDY
                    )
            for mine, theirs in zip(here, there, strict=True):
                assert theirs.tokens == mine.tokens and theirs.step_ends == mine.step_ends
                assert (
                    theirs.step_reasons == mine.step_reasons
                    and theirs.finish_reason == mine.finish_reason
                )
                assert theirs.logprobs == pytest.approx(mine.logprobs, abs=1e-4)
                assert theirs.top1 == pytest.approx(mine.top1, abs=1e-4)
                # more where steps are cut here
                assert theirs.usage.generated_tokens >= len(theirs.generated)


def test_blank_lines_before_a_step_do_not_end_it() -> None:
    """A server stops at them; it is asked again for the rest."""
    served = ServedModel(logprobs=0)
    told = iter([10, 10, *map(ord, "ab"), 10, 10, *map(ord, "cd")])

    def scripted(tokens: list[int], body: dict[str, Any]) -> dict[str, Any]:
        own = list[int]()
        for _ in range(body["max_tokens"]):
            own.append(next(told))
            if any(s in served.tokenizer.decode(own) for s in body.get("stop", [])):
                break
        text = served.tokenizer.decode(own)
        choice = {
            "text": text,
            "token_ids": own,
            "finish_reason": "stop" if "\n\n" in text else "length",
        }
        return {
            "choices": [choice],
            "usage": {"prompt_tokens": len(tokens), "completion_tokens": len(own)},
        }

    with connected(served) as backend:
        served.reply = scripted  # type: ignore[method-assign]
        branch = backend.root(backend.encode("1"))
        backend.generate([branch], 16, stop=["\n\n"])
        assert branch.text == "\n\nab\n\n" and branch.step_reasons == ["delimiter"]
        assert [request["max_tokens"] for request in served.requests] == [16, 14]
        assert served.requests[1]["prompt"] == [*backend.encode("1"), 10, 10]
        assert served.requests[0]["seed"] != served.requests[1]["seed"]
        assert branch.usage.generated_tokens == 6


@pytest.mark.slow
def test_a_search_does_not_depend_on_the_servers_ways_nor_on_what_runs_beside_it() -> None:
    """Seeds belong to branches, so samples are the same in any dialect, order and number of
    requests at once."""
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=8, max_steps=3)
    options: dict[str, Any] = {"verifier": ConfidenceVerifier(), "end": ["|"]}
    outcomes = []
    for dialect, concurrency in (
        ({}, 1),
        ({"ids_in": False, "ids_out": False}, 64),
        ({"stop": "ignored"}, 1),
        ({"logprobs": 5}, 64),
    ):
        with connected(ServedModel(**dialect), concurrency=concurrency) as backend:
            results = solve(search, problem=PROBLEMS, engine=backend, **options)
            assert not backend.live and all(result.error is None for result in results)
            outcomes.append([[branch.text for branch in result.branches] for result in results])
            alone = solve(search, problem=PROBLEMS[1], engine=backend, **options)
            outcomes.append(
                [outcomes[0][0], [branch.text for branch in alone.branches], outcomes[0][2]]
            )
    assert all(outcome == outcomes[0] for outcome in outcomes)
    texts = [text for problem in outcomes[0] for text in problem]
    assert len(set(texts)) > len(texts) // 2


@pytest.mark.few(1)
@pytest.mark.parametrize("served", [{}, slow({"chosen": False}), {"echo": False}])
def test_scores_are_the_engines(served: dict[str, Any]) -> None:
    engine, tokens = local(), Ascii().encode("Is it 4?")
    groups = [[[65], [66], [65]], [[t] for t in range(40, 70)]]
    if served.get("echo", True):
        groups[0] = [[65, 66, 67], [1], [9, 9]]
    with connected(ServedModel(**served)) as backend:
        found = []
        for place in (engine, backend):
            branches = place.roots([tokens, tokens[:3]], seeds=[0, 0]).result()
            found.append(place.score(branches, groups).result())
            assert [branch.tokens for branch in branches] == [tokens, tokens[:3]]
        for mine, theirs in zip(*found, strict=True):
            for row, other in zip(mine, theirs, strict=True):
                assert other == pytest.approx(row, abs=1e-4)
        branch = backend.root(tokens)
        if not served.get("echo", True):
            with pytest.raises(InvalidInput, match="single tokens alone"):
                backend.score([branch], [[[65, 66]]]).result()


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True])
def test_the_self_verifier_rates_as_on_an_engine_and_costs_as_much(fresh: bool) -> None:
    verifier = SelfVerifier(question="y?", fresh=fresh)
    with connected(ServedModel()) as backend:
        found = []
        for place in (local(), backend):
            place.tokenizer.encode = lambda text, add_special_tokens=False: (
                [ord(text.strip()[0])]
                if text.strip().lower() in ("yes", "no")
                else [ord(c) for c in text]
            )
            root = place.root(place.tokenizer.encode("1 + 1 = "))
            children = place.fork(root, 2)
            place.extend(children, [[50], [51, 52]], purpose="prompt").result()
            before = root.usage.verifier_tokens
            scores = verifier.rate(children, ["1 + 1"] * 2, place)
            found.append(([row[0] for row in scores], root.usage.verifier_tokens - before))
        (mine, cost), (theirs, remote_cost) = found
        assert theirs == pytest.approx(mine, abs=1e-4)
        assert remote_cost <= sum(verifier.price([child], ["1 + 1"], backend) for child in children)
        assert fresh or remote_cost == cost


def test_statistics_that_a_server_gives_are_the_engines() -> None:
    with connected(ServedModel()) as backend:
        rows = []
        for place in (local(), backend):
            branch = place.root(Ascii().encode("abc"), seed=1)
            place.generate([branch], 10, sampling=GREEDY, statistics=True)
            rows.append(branch.top_k_logprobs)
        assert rows[1] == pytest.approx(rows[0], abs=1e-4)
        result = solve(DeepConf(n=4, max_tokens=12), problem="1 + 1", engine=backend)
        assert result.error is None and all(b.top_k_logprobs for b in result.branches)


def test_usage_is_what_the_server_counts() -> None:
    with connected(ServedModel(cached=5)) as backend:
        root = backend.root(backend.encode("12345678"))
        children = backend.fork(root, 3)
        assert root.usage.prompt_tokens == 0  # nothing was sent yet
        backend.generate(children, 4, sampling=GREEDY)
        assert (root.usage.prompt_tokens, root.usage.shared_tokens) == (9, 15)
        assert root.usage.generated_tokens == sum(len(child.generated) for child in children)


def test_every_setting_is_sent_and_every_request_has_a_seed_of_its_own() -> None:
    served = ServedModel()
    with connected(served) as backend:
        for _ in range(2):
            children = backend.fork(backend.root([1, 2, 3], seed=7), 8)
            backend.generate(children, 2, sampling=Sampling(0.7, top_k=3, top_p=0.9, min_p=0.1))
        first, again = sorted(served.requests[:8], key=str), sorted(served.requests[8:], key=str)
        assert first == again  # the seeds too
        assert len({request["seed"] for request in first}) == 8
        assert all(0 <= request["seed"] < 2**31 for request in first)
        sent = {
            "temperature": 0.7,
            "top_k": 3,
            "top_p": 0.9,
            "min_p": 0.1,
            "repetition_penalty": 1.0,
            "max_tokens": 2,
        }
        assert sent.items() <= first[0].items()
        backend.generate([backend.root([1])], 1)
        assert served.requests[-1]["top_k"] == -1 and served.requests[-1]["min_p"] == 0


def test_a_context_that_is_full_ends_the_branch_and_a_prompt_beyond_it_is_refused() -> None:
    with connected(ServedModel(context=120)) as backend:
        branch = backend.root([65] * 117)
        backend.generate([branch], 20, sampling=GREEDY)
        assert branch.finish_reason in ("context", "eos") and len(branch.tokens) <= 120
        with pytest.raises(
            ContextExceeded, match="130 tokens are more than the model's context of 120"
        ):
            backend.root([65] * 130)
        results = solve(Greedy(max_tokens=3), problem=["x" * 60, "1"], engine=backend)
        assert "ContextExceeded" in (results[0].error or "") and results[1].error is None


@pytest.mark.slow
def test_leaving_a_stream_breaks_off_its_requests() -> None:
    served = ServedModel(pause_s=0.2)
    with connected(served) as backend:
        watched = stream(
            BestOfN(n=4, max_tokens=4), problem="1", engine=backend, verifier=ConfidenceVerifier()
        )
        next(watched)
        watched.close()
        assert not backend.live
    with pytest.raises(RemoteError, match="was closed; make a new backend"):
        backend.generate([backend.root([1])], 1)

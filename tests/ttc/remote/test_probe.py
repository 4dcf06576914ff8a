"""What a server can do is found out before any work, and what cannot be used is refused then."""

from __future__ import annotations

from typing import Any

import pytest

from search import MCTS, BestOfN, DeepConf, Greedy, solve, try_verifier
from tests.helpers.servers import ServedModel, connected, serving
from tests.helpers.tokenizers import Ascii
from tests.ttc.text.test_encodable import HALF
from ttc import Endpoint, InvalidInput, RemoteBackend, RemoteError, Sampling
from verifiers import (
    ArithmeticVerifier,
    ConfidenceGatedVerifier,
    ConfidenceVerifier,
    EnsembleVerifier,
    SelfVerifier,
)

NOTHING = {"ids_in": False, "ids_out": False, "extras": False, "logprobs": 0, "stop": "trimmed"}


ALL = ("prompt_tokens", "reply_tokens", "extras", "logprobs", "seeds", "varied", "stops", "echo")
TEXT = {"ids_in": False, "ids_out": False}
FOUND: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {**dict.fromkeys(ALL, True), "chosen": True, "logprobs": 20}),
    (NOTHING, {**dict.fromkeys(ALL, False), "chosen": False, "seeds": True, "varied": True}),
    ({"ids_out": False}, {"prompt_tokens": True, "stops": True}),
    (TEXT, {"prompt_tokens": False, "extras": True, "stops": True, "echo": False}),
    (TEXT | {"stop": "named"}, {"stops": True}),
    (TEXT | {"stop": "ignored"}, {"stops": False}),
    ({"stop": "trimmed"}, {"reply_tokens": True, "stops": False}),
    ({"logprobs": 5}, {"logprobs": 1}),
    ({"scaled": True}, {"logprobs": 0}),
    ({"seeds": False}, {"seeds": False, "varied": True}),
    ({"varied": False}, {"seeds": True, "varied": False}),
    ({"echo": False}, {"echo": False, "chosen": True}),
    ({"chosen": False}, {"echo": True, "chosen": False}),
    ({"context": 99}, {"context_length": 99}),
]


@pytest.mark.few(5)
@pytest.mark.parametrize(("served", "expected"), FOUND)
def test_the_probe_finds_what_a_server_offers(
    served: dict[str, Any], expected: dict[str, Any]
) -> None:
    with connected(ServedModel(**served)) as backend:
        found = {name: getattr(backend.capabilities, name) for name in expected}
        assert found == expected and backend.capabilities.describe()


GATED, ENSEMBLE = ConfidenceGatedVerifier(ArithmeticVerifier()), EnsembleVerifier([SelfVerifier()])
LACKING: list[tuple[dict[str, Any], Any, str]] = [
    ({"logprobs": 0}, ConfidenceVerifier(), "ConfidenceVerifier needs log-probabilities of the"),
    ({"scaled": True}, ConfidenceVerifier(), "change with the temperature.*raw_logprobs"),
    ({"logprobs": 0}, GATED, "ConfidenceGatedVerifier needs log-prob"),
    ({"echo": False, "chosen": False}, ENSEMBLE, "EnsembleVerifier needs .* given"),
    ({"ids_in": False}, SelfVerifier(), "SelfVerifier needs log-probabilities of given tokens"),
    ({"logprobs": 5}, DeepConf(n=2), "DeepConf needs .* 20 likeliest .*max-logprobs"),
    ({"logprobs": 0}, MCTS(rule="puct"), "MCTS needs log-probabilities"),
    ({}, BestOfN(n=2, statistics=True), "BestOfN needs entropies"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("served", "user", "reason"), LACKING)
def test_what_a_server_lacks_is_refused_by_name(
    served: dict[str, Any], user: Any, reason: str
) -> None:
    with connected(ServedModel(**served)) as backend:
        verifying = hasattr(user, "rate")
        search = BestOfN(n=2, max_tokens=4) if verifying else user
        verifier = user if verifying else ArithmeticVerifier() if search.needs_verifier else None
        with pytest.raises(InvalidInput, match=reason):
            solve(search, problem="1 + 1", engine=backend, verifier=verifier)
        if verifying:
            with pytest.raises(InvalidInput, match=reason):
                try_verifier(user, backend, "1 + 1")


def test_a_search_that_needs_less_runs_on_the_plainest_server() -> None:
    with connected(ServedModel(**NOTHING)) as backend:
        result = solve(
            BestOfN(n=3, max_tokens=8),
            problem="1 + 1",
            engine=backend,
            verifier=ArithmeticVerifier(),
        )
        assert len(result.branches) == 3 and result.error is None
        assert all(value != value for branch in result.branches for value in branch.logprobs)
        (root,) = backend.roots([[1, 2]]).result()
        with pytest.raises(
            InvalidInput, match=r"top_k=5 and min_p=0.0 are not taken by this server"
        ):
            backend.generate([root], 4, sampling=Sampling(top_k=5))
        with pytest.raises(InvalidInput, match="score: it gives no log-probabilities"):
            backend.score([root], [[[1]]]).result()


def test_a_server_whose_samples_are_all_the_same_is_not_sampled_from() -> None:
    with connected(ServedModel(varied=False)) as backend:
        assert solve(Greedy(max_tokens=4), problem="1 + 1", engine=backend).error is None
        with pytest.raises(InvalidInput, match="same text for different seeds"):
            solve(BestOfN(n=2), problem="1 + 1", engine=backend, verifier=ArithmeticVerifier())


def test_a_server_that_is_not_there_is_named_at_once() -> None:
    with pytest.raises(
        RemoteError, match=r"http://127.0.0.1:9/v1 cannot be reached.*start the server"
    ):
        RemoteBackend(Endpoint("http://127.0.0.1:9/v1", wait_s=60), Ascii())


def test_the_model_is_chosen_by_name_where_there_are_several() -> None:
    with serving(ServedModel(models=("a", "b"))) as url:
        with pytest.raises(
            InvalidInput, match=r"has 2 models; give backend\.model=NAME .*, one of a, b"
        ):
            RemoteBackend(Endpoint(url), Ascii())
        with pytest.raises(InvalidInput, match=r"model='c' is not served .* use one of a, b"):
            RemoteBackend(Endpoint(url, model="c"), Ascii())
        backend = RemoteBackend(Endpoint(url, model="b"), Ascii())
        assert backend.capabilities.model == "b"
        backend.close()


ODD_LISTS: list[tuple[dict[str, Any], str]] = [
    ({"models": ()}, "serves no model; look into the server's log"),
    ({"models": ("",)}, "data.0.id: "),
    ({"models": (5,)}, "data.0.id: "),
    ({"models": ("a" * 9000, "\x1b[31m")}, r"has 2 models; .*, one of a+\.\.\.a+, \\x1b\[31m$"),
    *(({"context": n}, "data.0.max_model_len: ") for n in ("abc", 0, 1e300, True, [9], 10**30)),
]


def test_odd_lists_of_models_are_told_in_a_line() -> None:
    served = ServedModel()
    with serving(served) as url:
        for odd, reason in ODD_LISTS:
            served.models, served.context = odd.get("models", ("tiny",)), odd.get("context")
            with pytest.raises((InvalidInput, RemoteError), match=reason) as raised:
                RemoteBackend(Endpoint(url, retries=0), Ascii())
            assert len(str(raised.value)) < 400


def test_a_tokenizer_of_another_model_is_refused() -> None:
    class Other(Ascii):
        def decode(self, tokens: Any, **options: Any) -> str:
            return super().decode([(token + 1) % 128 for token in tokens], **options)

    with (
        serving(ServedModel()) as url,
        pytest.raises(RemoteError, match="give the tokenizer of the model"),
    ):
        RemoteBackend(Endpoint(url), Other())
    two_more, reason = (
        ServedModel(ids_in=False, extra_token=2),
        r"counts 24 tokens .* and the tokenizer here 22",
    )
    with serving(two_more) as url, pytest.raises(InvalidInput, match=reason):
        RemoteBackend(Endpoint(url), Ascii())


def test_a_text_server_that_adds_a_first_token_gets_texts_without_it() -> None:
    class Begins(Ascii):
        bos_token_id = 2  # type: ignore[assignment]

        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return [*([2] if add_special_tokens else []), *map(ord, text)]

    served = ServedModel(ids_in=False, ids_out=False, extra_token=1)
    served.tokenizer = Begins()
    with connected(served) as backend:
        assert backend.capabilities.adds_bos
        solve(Greedy(max_tokens=4), problem="1 + 1", engine=backend)
        assert served.requests[0]["prompt"].startswith("Question")
        unmarked = backend.root(backend.encode("no first token"))  # as some chat templates write it
        with pytest.raises(
            InvalidInput, match=r"leaves it out; use a server that takes token numbers"
        ):
            backend.generate([unmarked], 4)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"base_url": "http://me:secret@host/v1"}, "base_url holds a password"),
    ({"base_url": "http://host/v1?key=secret"}, "base_url holds a password, a key"),
    ({"base_url": "localhost:8000"}, "is no address"),
    ({"key_env": "sk-secret"}, "not the name of an environment variable"),
    ({"concurrency": 0}, "concurrency=0 must be at least 1"),
    ({"timeout_s": 0.0}, "timeout_s=0.0 must be more than 0"),
    ({"base_url": f"http://{HALF}/v1"}, "half of a pair"),
    ({"model": HALF}, "half of a pair"),
]


def test_wrong_settings_are_refused_and_no_secret_is_repeated() -> None:
    for options, reason in WRONG:
        with pytest.raises(InvalidInput, match=reason) as raised:
            Endpoint(**options)
        assert "secret" not in str(raised.value)


def test_the_key_comes_from_the_environment_and_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = ServedModel(key="sesame")
    with serving(served) as url:
        with pytest.raises(RemoteError, match=r"status 401.*environment variable MY_KEY"):
            RemoteBackend(Endpoint(url, key_env="MY_KEY"), Ascii())
        monkeypatch.setenv("MY_KEY", "sesame")
        backend = RemoteBackend(Endpoint(url, key_env="MY_KEY"), Ascii())
        shown = f"{backend.server} {backend.capabilities} {vars(backend)}"
        assert backend.capabilities.seeds and "sesame" not in shown
        backend.close()

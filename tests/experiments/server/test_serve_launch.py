"""What `ttc-serve` makes of its configuration, before anything is loaded."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from experiments.runs.build import make_verifier
from experiments.runs.schema import SEARCHES, check_settings
from experiments.server.launch import api_key, bind, model_name
from experiments.server.offer import offered
from search import BeamSearch, BestOfN
from tests.helpers.backends import FakeBackend
from tests.helpers.configurations import configuration
from ttc import InvalidInput


@pytest.mark.slow
def test_all_searches_are_offered_that_the_verifier_can_serve() -> None:
    config = configuration("serve", "search=best_of_n", "search.n=5")
    found = offered(config, "best_of_n", make_verifier(config), FakeBackend())
    assert set(found) == set(SEARCHES) - {"compute_optimal"}  # which needs strategies of its own
    assert found["best_of_n"] == BestOfN(n=5)
    # as conf/search has it
    assert found["beam_search"] == BeamSearch(delimiter="\n", temperature=0.6)
    without = offered(configuration("serve", "search=greedy"), "greedy", None, FakeBackend())
    assert {"greedy", "self_consistency", "deep_conf"} <= set(
        without
    ) and "best_of_n" not in without
    with pytest.raises(InvalidInput, match="choose a verifier other than none"):
        offered(config, "best_of_n", None, FakeBackend())


def test_other_machines_are_served_with_a_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TTC_API_KEY", raising=False)
    assert api_key(configuration("serve")) is None
    everywhere = "serve.host=0.0.0.0"
    with pytest.raises(
        InvalidInput, match="no key is set; put one into the environment variable TTC_API_KEY"
    ):
        api_key(configuration("serve", everywhere))
    assert api_key(configuration("serve", everywhere, "serve.open=true")) is None
    monkeypatch.setenv("TTC_API_KEY", "secret")
    assert api_key(configuration("serve", everywhere)) == "secret"
    with pytest.raises(InvalidInput, match="a key itself is not given here") as refused:
        api_key(configuration("serve", "serve.key_env=sk-1234"))
    assert "1234" not in str(refused.value)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"serve.port={port} cannot be had"):
            bind("127.0.0.1", port)
    with pytest.raises(InvalidInput, match="port=70000 is no port"):
        bind("127.0.0.1", 70_000)


@pytest.mark.parametrize("name", ["max_tokens", "max_problems", "max_body_bytes"])
def test_limits_that_let_nothing_through_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"serve.{name}=0 must be at least 1"):
        check_settings(configuration("serve", f"serve.{name}=0"))


def test_a_model_is_called_by_its_alias_id_or_folder(tmp_path: Path) -> None:
    names = ["Qwen/Qwen3-0.6B", str(tmp_path)]
    found = [model_name(configuration("serve", "model=hf", f"model.name={name}")) for name in names]
    assert found == ["Qwen/Qwen3-0.6B", tmp_path.name]
    assert model_name(configuration("serve")) == "smollm2-135m"
    assert model_name(configuration("serve", "serve.name=mine")) == "mine"

"""Flags of the server beside Hydra's settings."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from experiments.runs.flags import as_settings
from experiments.server.settings import FLAGS, ServeConfig
from tests.helpers.configurations import configuration
from ttc import InvalidInput

SERVE = {"serve": ServeConfig}


def test_flags_set_what_settings_do_and_the_rest_stays_as_it_is() -> None:
    words = "--host 0.0.0.0 --port=9000 search.n=8 -m --search best_of_n"
    read = "serve.host=0.0.0.0 serve.port=9000 search.n=8 -m search=best_of_n"
    assert as_settings(words.split(" "), FLAGS, SERVE) == read.split(" ")


@pytest.mark.few
@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-0.6B", "/models/my model, 2=b", "it's", "${x}", "a\\"]
)
def test_a_model_of_any_name_comes_to_the_configuration_as_it_was_typed(name: str) -> None:
    config = configuration("serve", *as_settings(["--model", name, "--port", "9000"], FLAGS, SERVE))
    assert config.serve.port == 9000
    assert OmegaConf.to_container(config.model, resolve=False)["name"] == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-tokens", "5"], "--max-tokens is no flag; give serve.max_tokens=VALUE"),
        (["--shutdown-s=5"], "give serve.shutdown_s=VALUE"),
        (["--served-model-name", "x"], "give serve.name=VALUE"),
        (["--api-key", "secret"], "TTC_API_KEY"),
        (["--tensor-parallel-size", "2"], "the flags are --host, --port, --model"),
        (["--port"], "--port needs a value; give --port VALUE or serve.port=VALUE"),
        (["--host", "--port", "1"], "--host needs a value"),
        (["--prot", "80"], "--prot is no flag; is it --port?"),
        (["--temperature", "1"], "give search.temperature=VALUE"),
    ],
)
def test_a_flag_that_there_is_not_names_its_setting(words: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        as_settings(words, FLAGS, SERVE)
    assert "secret" not in str(refused.value)

"""What a server offers: the model itself, and each search under a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.cli.choices import conf
from experiments.cli.removed import removal
from experiments.runs.config_values import as_dict
from experiments.runs.run_name import class_label
from experiments.runs.schema import SEARCHES, schema_of
from experiments.server.refusal import Refusal
from experiments.server.requests import Body, check_most
from search import Search, SelfConsistency
from search.options import check_scores
from ttc.backend import Backend, check_needs
from ttc.checks import is_number, use_one_of
from ttc.errors import InvalidInput
from ttc.protocols import Verifier

PLAIN = "none"
"""What the search of the plain model is called."""

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

FIELDS_OF = {"thinking": "reasoning_effort", "thinking_tokens": "thinking_token_budget"}
"""Which field of a request gives a setting, where their names differ."""


@dataclass(frozen=True)
class Offer:
    """The names that clients may ask for: `MODEL`, and `MODEL+NAME` for each of the searches.

    max_tokens: the most that a request may give for any setting that counts tokens. max_width: for
    any other whole number, as `n` or `beam_size`.
    """

    model: str
    searches: Mapping[str, Search]
    max_tokens: int
    max_width: int

    def names(self) -> dict[str, str]:
        """All names of models, and the search of each."""
        return {self.model: PLAIN} | {f"{self.model}+{name}": name for name in self.searches}

    def check_model(self, name: str) -> None:
        """Raise Refusal for a name that is not offered."""
        if name not in self.names():
            message = f"the model {name!r} does not exist; use {self.model}, or {self.model}+NAME "
            message += f"with NAME one of {', '.join(self.searches)}"
            raise Refusal(404, message, param="model", code="model_not_found")

    def search(self, body: Body) -> tuple[str, Search]:
        """The search that a request asks for, and its name. Raises Refusal for one that is not
        offered."""
        name, settings = self._named(body)
        tokens = body.token_limit
        param = "max_tokens" if tokens == body.max_tokens else "max_completion_tokens"
        check_most(param, tokens, self.max_tokens)
        if name == PLAIN:
            if settings:
                raise Refusal(
                    400,
                    "search has settings and no name; give search.name, or use MODEL+NAME as the "
                    "model",
                    param="search",
                )
            check_most("n", body.n, self.max_width)
            search: Search = SelfConsistency(
                n=body.n,
                max_tokens=tokens or self.max_tokens,
                temperature=1.0,
                thinking_tokens=self.max_tokens,
            )
            limited = tokens is not None
        else:
            if body.n > 1:
                raise Refusal(
                    400,
                    f"n={body.n}: a search gives one answer; leave n out, or give search.n its "
                    "samples",
                    param="n",
                )
            search = self.searches[name]
            limited = tokens is not None and hasattr(search, "max_tokens")
            if limited:
                settings = {"max_tokens": tokens} | settings
        sampling = {key: value for key in SAMPLING if (value := getattr(body, key)) is not None}
        if sampling.get("top_k") == -1:  # all tokens, as vLLM's clients say
            sampling["top_k"] = 0
        return name, self._with_settings(search, sampling | self._thinking(body, limited), settings)

    def _thinking(self, body: Body, limited: bool) -> dict[str, Any]:
        """How long to think, and whether. limited: the request limits the answer, and so, unless it
        says otherwise, the thought with it."""
        settings: dict[str, Any] = {"thinking_tokens": None} if limited else {}
        if (budget := body.thinking_token_budget) is not None:
            check_most("thinking_token_budget", budget, self.max_tokens)
            settings["thinking_tokens"] = budget
        if (effort := body.reasoning_effort) is not None:
            settings["thinking"] = "off" if effort == "none" else effort
        return settings

    def _named(self, body: Body) -> tuple[str, dict[str, Any]]:
        """The search's name, and its settings in the request."""
        self.check_model(body.model)
        by_model = self.names()[body.model]
        search = body.search
        settings = {"name": search} if isinstance(search, str) else dict(search)
        name = settings.pop("name", by_model)
        if name != PLAIN and name not in self.searches:
            names = (PLAIN, *self.searches)
            unknown = f"search={name!r} is unknown; {use_one_of(name, names)}"
            raise Refusal(400, removal("search", str(name)) or unknown, param="search")
        if by_model not in (PLAIN, name):
            raise Refusal(
                400,
                f"the model asks for {by_model} and search for {name}; give one of them",
                param="search",
            )
        return str(name), settings

    def _with_settings(
        self, search: Search, of_request: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Search:
        """The search with settings from outside: plain values alone, and within limits.

        of_request: from the request's own fields. settings: from its field `search`, which count
        where both say something.
        """
        plain = [
            f.name
            for f in fields(search)
            if isinstance(getattr(search, f.name), bool | int | float | str | None)
        ]
        for key, value in settings.items():
            if key not in plain:
                named = use_one_of(key, plain)
                message = f"search.{key} is no setting of {type(search).__name__}; {named}"
                raise Refusal(400, message, param=f"search.{key}")
            if is_number(value, int) and key not in SAMPLING:
                most = self.max_tokens if key.endswith("tokens") else self.max_width
                check_most(f"search.{key}", value, most)
        try:
            return replace(search, **{**of_request, **settings})
        except InvalidInput as error:
            names = {key: FIELDS_OF.get(key, key) for key in of_request}
            names |= {key: f"search.{key}" for key in settings}
            raise Refusal.of(error, "search", names) from error


def offered(
    config: DictConfig, choice: str, verifier: Verifier | None, backend: Backend
) -> dict[str, Search]:
    """The searches that this verifier and this backend can serve, by name, with the settings of
    `conf/search`.

    choice: the name of the search that is configured; its settings are those of the configuration.
    Raises InvalidInput where this one cannot be served.
    """
    configured = class_label(config.search, choice)
    searches = {configured: _servable(config.search, verifier, backend)}
    for name in SEARCHES:
        if name != configured:
            try:
                searches[name] = _servable(preset(name), verifier, backend)
            except (InvalidInput, InstantiationException) as error:
                if not isinstance(error, InvalidInput) and not isinstance(
                    error.__cause__, InvalidInput
                ):
                    # else it lacks settings, as compute_optimal, or a verifier, or what the backend
                    # has not
                    raise
    return searches


def _servable(settings: DictConfig, verifier: Verifier | None, backend: Backend) -> Search:
    search: Search = instantiate(settings, _convert_="all")
    check_needs(search, backend)
    if search.needs_verifier:
        if verifier is None:
            raise InvalidInput(
                f"{type(search).__name__} selects by score; choose a verifier other than none"
            )
        check_needs(verifier, backend)
        check_scores(search, verifier)
    return search


def preset(name: str) -> Any:
    """The settings of a search as the command line has it."""
    settings = OmegaConf.structured(schema_of(SEARCHES[name]))
    file = conf() / "search" / f"{name}.yaml"
    if not file.exists():
        return settings
    written = as_dict(OmegaConf.load(file))
    written.pop("defaults", None)
    return OmegaConf.merge(settings, written)

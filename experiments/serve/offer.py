"""What a server offers: the model itself, and each search under a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.cli.choices import conf, written
from experiments.runs.run_name import class_label
from experiments.runs.schema import SEARCHES, schema_of
from experiments.serve.refusal import Refusal
from experiments.serve.requests import Body
from search import Search, SelfConsistency
from ttc.checks import check_fields
from ttc.errors import InvalidInput
from ttc.protocols import Backend, Verifier, check_needs

PLAIN = "none"
"""What the search of the plain model is called."""

SAMPLING = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True)
class Offer:
    """The names that clients may ask for.

    model: what the model is called; `MODEL+NAME` is the search of this name, with the settings of `searches`.
    most_tokens: the most that a request may give for any setting that counts tokens. most_width: for any other whole
    number, as `n` or `beam_size`.
    """

    model: str
    searches: Mapping[str, Search]
    most_tokens: int
    most_width: int

    def names(self) -> dict[str, str]:
        """All names of models, and the search of each."""
        return {self.model: PLAIN} | {f"{self.model}+{name}": name for name in self.searches}

    def search(self, body: Body) -> tuple[str, Search]:
        """The search that a request asks for, and its name. Raises Refusal for one that is not offered."""
        name, settings = self._named(body)
        most = body.most_tokens
        if most is not None and most > self.most_tokens:
            raise Refusal(400, f"max_tokens={most} is more than this server's {self.most_tokens}", param="max_tokens")
        if name == PLAIN:
            if settings:
                raise Refusal(400, "search has settings and no name; give search.name, or use MODEL+NAME as the model")
            self._check_settings({"n": body.n}, "")
            usual: Search = SelfConsistency(n=body.n, max_tokens=most or self.most_tokens, temperature=1.0)
        else:
            if body.n > 1:
                raise Refusal(
                    400, f"n={body.n}: a search gives one answer; leave n out, or give search.n its samples", param="n"
                )
            usual = self.searches[name]
            if most is not None and hasattr(usual, "max_tokens"):
                settings = {"max_tokens": most} | settings
        given = {key: value for key in SAMPLING if (value := getattr(body, key)) is not None}
        return name, self._with_settings(usual, {**given, **settings})

    def _named(self, body: Body) -> tuple[str, dict[str, Any]]:
        """The search's name, and its settings in the request."""
        names = self.names()
        if body.model not in names:
            raise Refusal(
                404,
                f"the model {body.model!r} does not exist; use one of {', '.join(names)}",
                param="model",
                code="model_not_found",
            )
        named = names[body.model]
        settings = {"name": body.search} if isinstance(body.search, str) else dict(body.search or {})
        field = settings.pop("name", named)
        if field != PLAIN and field not in self.searches:
            offered = ", ".join((PLAIN, *self.searches))
            raise Refusal(400, f"search={field!r} is unknown; use one of {offered}", param="search")
        if named not in (PLAIN, field):
            raise Refusal(400, f"the model asks for {named} and search for {field}; give one of them", param="search")
        return str(field), settings

    def _with_settings(self, usual: Search, settings: Mapping[str, Any]) -> Search:
        """The search with other settings. They come from outside, so only plain values are taken, and within limits."""
        plain = [f.name for f in fields(usual) if isinstance(getattr(usual, f.name), bool | int | float | str | None)]
        for key in settings:
            if key not in plain:
                raise Refusal(
                    400, f"search.{key} is no setting of {type(usual).__name__}; use {', '.join(plain)}", param="search"
                )
        self._check_settings(settings, "search.")
        try:
            search = replace(usual, **settings)
            check_fields(search, "search.")
        except InvalidInput as error:
            raise Refusal.of(error, "search") from error
        return search

    def _check_settings(self, settings: Mapping[str, Any], prefix: str) -> None:
        for key, value in settings.items():
            if isinstance(value, int) and not isinstance(value, bool) and key not in SAMPLING:
                most = self.most_tokens if key.endswith("tokens") else self.most_width
                if value > most:
                    raise Refusal(400, f"{prefix}{key}={value} is more than this server's {most}; give less")


def offered(config: DictConfig, choice: str, verifier: Verifier | None, backend: Backend) -> dict[str, Search]:
    """The searches that this verifier and this backend can serve, by name, with the settings of `conf/search`.

    choice: the name of the search that is configured; its settings are those of the configuration.
    """
    found = {}
    configured = class_label(config.search, choice)
    for name in dict.fromkeys((configured, *SEARCHES)):
        node = config.search if name == configured else preset(name)
        try:
            search = instantiate(node, _convert_="all")
            check_needs(search, backend)
            if search.needs_verifier:
                check_needs(verifier, backend)
        except Exception as error:
            known = error if isinstance(error, InvalidInput) else error.__cause__
            if name == configured or not isinstance(known, InvalidInput):
                raise
            continue  # it needs settings that it does not have, as compute_optimal, or what the backend lacks
        if verifier is not None or not search.needs_verifier:
            found[name] = search
        elif name == configured:
            raise InvalidInput(f"{type(search).__name__} selects by score; choose a verifier other than none")
    return found


def preset(name: str) -> DictConfig:
    """The settings of a search as the command line has it."""
    usual = OmegaConf.structured(schema_of(SEARCHES[name]))
    if name not in written("search"):
        return usual
    own = OmegaConf.create((conf() / "search" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(own, DictConfig)
    own.pop("defaults", None)
    merged = OmegaConf.merge(usual, own)
    assert isinstance(merged, DictConfig)
    return merged

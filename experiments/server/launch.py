"""From a configuration to a server that runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from ipaddress import ip_address
from pathlib import Path

from omegaconf import DictConfig

from experiments.cli.output import say
from experiments.runs.build import (
    check_backend,
    make_backend,
    make_verifier,
    resolved,
    solve_options,
)
from experiments.runs.config_values import as_dict
from experiments.runs.grading import AnswerReading
from experiments.runs.screen import show_logged
from experiments.server.access import show_log
from experiments.server.app import Api
from experiments.server.offer import Offer, offered
from experiments.server.service import Service
from experiments.server.settings import UNKNOWN_FIELDS
from experiments.server.web import server
from search import try_verifier
from ttc.checks import check_choice
from ttc.errors import InvalidInput

LOCAL = ("localhost", "127.0.0.1", "[::1]")
"""The names by which a machine calls itself."""


def run(config: DictConfig, choice: str) -> None:
    """Serve until told to stop. choice: the name of the search that is configured."""
    config = resolved(config)
    show_logged(config.dataset.private)
    show_log(config.dataset.private)
    check_backend(config)
    unknown = config.serve.unknown_fields
    check_choice(unknown, UNKNOWN_FIELDS, f"serve.unknown_fields={unknown} is unknown")
    key = api_key(config)
    listening = bind(config.serve.host, config.serve.port)
    with listening:
        verifier = make_verifier(config)
        reading = AnswerReading.of(config.dataset)
        backend = make_backend(config)
        if verifier is not None:
            try_verifier(verifier, backend, "What is 1 + 1?")
        searches = offered(config, choice, verifier, backend)
        offer = Offer(model_name(config), searches, config.serve.max_tokens, config.serve.max_width)
        api = Api(
            Service(backend, config.serve.max_problems, config.run.batch),
            offer,
            solve_options(config, reading, verifier),
            config.serve.max_body_bytes,
            config.serve.max_prompt_tokens,
            as_dict(config.dataset.chat_options),
            config.serve.unknown_fields == "ignore",
        )
        host, port = listening.getsockname()[:2]
        say(
            f"{offer.model} at http://{f'[{host}]' if ':' in host else host}:{port}/v1; Ctrl-C "
            "stops it"
        )
        say(f"searches: {offer.model}+NAME, with NAME one of {', '.join(searches)}")
        hosts = LOCAL if key is None and is_local(config.serve.host) else None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the web server ends by it, in time
        server(api, key, hosts, config.serve).run(sockets=[listening])
        backend.close()


def bind(host: str, port: int) -> socket.socket:
    """A socket to listen on later. Raises InvalidInput for an address or a port that cannot be
    had."""
    if not 0 <= port < 2**16:
        raise InvalidInput(
            f"serve.port={port} is no port; give one from 1 to 65535, or 0 for a free one"
        )
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise InvalidInput(
            f"serve.host={host} serve.port={port} cannot be had ({error.strerror or error}); give "
            "another port, or 0 for a free one"
        ) from error
    return listening


def api_key(config: DictConfig) -> str | None:
    """The key that callers must send, from the environment. Raises InvalidInput where other
    machines would be served without one."""
    name = config.serve.key_env
    if name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InvalidInput(
            "serve.key_env is not the name of an environment variable, as TTC_API_KEY; a key "
            "itself is not given here"
        )
    key = os.environ.get(name) or None if name else None
    if key is None and not config.serve.open and not is_local(config.serve.host):
        raise InvalidInput(
            f"serve.host={config.serve.host} serves other machines, and no key is set; put one "
            f"into the environment variable {name or 'that serve.key_env names'}, or give "
            "serve.open=true to serve without"
        )
    return key


def is_local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def model_name(config: DictConfig) -> str:
    """What clients call the model: as it is configured, or the name of its folder or file."""
    if config.serve.name is not None:
        return str(config.serve.name)
    path = Path(config.model.name).expanduser()
    return path.resolve().name if path.exists() else str(config.model.name)

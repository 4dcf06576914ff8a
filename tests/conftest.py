"""What has to be set before anything is imported: one thread for each test process, for
pytest-xdist runs as many of them as there are processors; and Triton's interpreter where there is
no GPU. On a busy machine no property test fails for the time that it takes. No test speaks TLS,
for which each client of HTTP would read certificates for 65 ms."""

import gc
import os
import ssl
from collections.abc import Generator

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.helpers")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

THREADS = torch.get_num_threads()

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

ssl.SSLContext.load_verify_locations = lambda *_, **__: None  # type: ignore[method-assign]

settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    from tests.helpers import tiers

    tiers.IS_FAST = config.option.markexpr == "not slow"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from tests.helpers import tiers

    tiers.leave_few(items)
    quick = {item.path for item in items if item.get_closest_marker("slow") is None}
    tiers.ALL_SLOW = {item.path for item in items} - quick


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """What a test has set for its process is not for the other tests."""
    from tests.helpers.process_state import as_it_was

    with as_it_was():
        return (yield)


def pytest_runtest_teardown() -> None:
    """Nor is what its fixtures have."""
    from tests.helpers.process_state import FRESH, restore_logging

    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)
    restore_logging({name: FRESH for name in ("ttc", "ttc.serve")})


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays, so the garbage collector need not look through it: that would take
    half a second each time. It also looks less often than by default, which saves a twelfth of the
    time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()

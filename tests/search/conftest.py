"""Backends of plain Python for tests that need no model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.backends import FakeBackend


@pytest.fixture
def make_backend() -> Callable[[], FakeBackend]:
    """For tests that compare runs on several backends."""
    return FakeBackend


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()

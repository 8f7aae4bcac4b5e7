"""Whatever a test of failures does, nothing secret is logged, and nobody waits long for a server."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from chatlock import executor
from tests.acceptance.failures.told import Ears, leaks


@pytest.fixture(autouse=True)
def ears() -> Iterator[Ears]:
    """Whatever a test does, no payload, password or statement is logged."""
    heard, logger = Ears(), logging.getLogger("chatlock")
    before, logger.level = logger.level, logging.DEBUG
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)
    logger.setLevel(before)
    assert not [text for text in heard.said if leaks(text)]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away is given up after one more attempt."""
    monkeypatch.setattr(executor, "RECONNECTS_MAX", 1)

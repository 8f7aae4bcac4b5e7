"""The cache of windows in force."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock.protocol import Limits
from chatlock.window import REFRESH_S, Windows


class Reading:
    """Stands for the executor: gives what the database would, and counts how often it was asked."""

    def __init__(self) -> None:
        self.windows: dict[str, int] = {}
        self.reads = 0

    def read(self, name: str, op: Any) -> dict[str, int]:
        self.reads += 1
        return dict(self.windows)


@pytest.fixture
def reading() -> Reading:
    return Reading()


def windows(reading: Reading, *, heartbeat: bool = True) -> Windows:
    return Windows(reading, Limits(), "me", heartbeat=heartbeat)  # type: ignore[arg-type]


def test_cache_is_stale_until_it_is_read_and_a_minute_later(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("chatlock.window.time.monotonic", lambda: now)
    cache = windows(reading)
    assert cache.stale
    cache.refresh()
    assert not cache.stale
    now += REFRESH_S
    assert not cache.stale
    now += 0.1
    assert cache.stale


def test_looking_into_the_cache_reads_nothing(reading: Reading) -> None:
    cache = windows(reading)
    cache.of("agent")
    cache.request("agent")
    assert reading.reads == 0


def test_agent_without_history_has_the_default_window(reading: Reading) -> None:
    reading.windows = {"known": 90_000}
    cache = windows(reading)
    cache.refresh()
    assert (cache.of("known"), cache.of("new")) == (90_000, Limits().window_default_ms)


def test_window_that_is_forgotten_falls_back_to_the_default(reading: Reading) -> None:
    reading.windows = {"known": 90_000}
    cache = windows(reading)
    cache.refresh()
    reading.windows = {}
    cache.refresh()
    assert cache.of("known") == Limits().window_default_ms


def test_each_request_has_a_claim_id_of_its_own(reading: Reading) -> None:
    cache = windows(reading)
    first, second = cache.request("agent"), cache.request("agent")
    assert first.claim_id != second.claim_id
    assert (first.owner, first.lease_ms, first.window_ms) == ("me", 10_000, 600_000)


def test_without_a_heartbeat_the_lease_is_the_window(reading: Reading) -> None:
    reading.windows = {"agent": 90_000}
    cache = windows(reading, heartbeat=False)
    cache.refresh()
    assert (cache.request("agent").lease_ms, cache.request("agent").window_ms) == (90_000, 90_000)

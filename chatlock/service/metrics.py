"""The service's Prometheus metrics.  Gauges are read from the database when they are asked for; nothing is labelled by
thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from chatlock.errors import ChatlockError
from chatlock.executor import Executor
from chatlock.ops.gauges import read_gauges
from chatlock.ops.unanswered import SILENT
from chatlock.turn_core import TurnCore

log = logging.getLogger("chatlock")

TURN_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)


def metrics_of(executor: Executor, last_sweep_at: Callable[[], float]) -> Metrics | None:
    """None where the extra is not installed."""
    try:
        import prometheus_client
    except ModuleNotFoundError:
        return None
    return Metrics(prometheus_client, executor, last_sweep_at)


class Metrics:
    """Counters of this process and gauges of the whole database, in a registry of their own."""

    def __init__(self, library: Any, executor: Executor, last_sweep_at: Callable[[], float]) -> None:
        self.content_type = library.CONTENT_TYPE_LATEST
        self._library, self._executor, self._last_sweep_at = library, executor, last_sweep_at
        self._registry = registry = library.CollectorRegistry()
        registry.register(self)
        self._claims = library.Counter("chatlock_claims", "Claims granted.", ["by"], registry=registry)
        self._reclaims = library.Counter("chatlock_reclaims", "Stale turns freed.", ["reason"], registry=registry)
        self._lost = library.Counter("chatlock_lost_turns", "Turns here that lost their claim.", registry=registry)
        self._turns = library.Histogram(
            "chatlock_turn_seconds", "How long turns ran here.", buckets=TURN_SECONDS, registry=registry
        )
        for reason in ("lease", "window"):
            self._reclaims.labels(reason)
        self._claims.labels("poller")

    def claimed(self, count: int) -> None:
        """The poller claimed threads for itself."""
        self._claims.labels("poller").inc(count)

    def reclaimed(self, why: str | None) -> None:
        """The sweep freed a stale turn."""
        self._reclaims.labels("lease" if why == SILENT else "window").inc()

    def ended(self, core: TurnCore) -> None:
        """A turn of this process ended."""
        self._turns.observe(time.monotonic() - core.began_at)
        if core.ended == "lost":
            self._lost.inc()

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return bytes(self._library.generate_latest(self._registry))

    def describe(self) -> list[Any]:
        """Registering asks the database nothing."""
        return []

    def collect(self) -> Iterator[Any]:
        """The gauges.  Those of the database are left out while it cannot be read."""
        gauge = self._library.metrics_core.GaugeMetricFamily
        yield gauge(
            "chatlock_poller_last_sweep_timestamp_seconds",
            "When this poller's last sweep ended.",
            value=self._last_sweep_at(),
        )
        try:
            now = self._executor.read("gauges", read_gauges)
        except ChatlockError as error:
            log.warning("metrics.no_gauges", extra={"error": type(error).__name__})
            return
        yield gauge("chatlock_running", "Turns that run now.", value=now.running)
        yield gauge("chatlock_waiting", "Threads that wait for a turn.", value=now.waiting)
        yield gauge("chatlock_stuck", "Turns past their lease that no sweep has freed.", value=now.stuck)
        yield gauge("chatlock_intents_pending", "Replies and effects not yet sent.", value=now.intents)
        yield gauge(
            "chatlock_oldest_due_age_seconds",
            "For how long the first waiting thread could have started.",
            value=now.oldest_due_age_ms / 1000,
        )

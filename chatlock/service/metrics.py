"""What /metrics of the service shows: its counters, and gauges that are read from the database when asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from chatlock.errors import ChatlockError
from chatlock.executor import Executor
from chatlock.observe import SHARED_FILES, counts_in
from chatlock.ops.gauges import read_gauges

log = logging.getLogger("chatlock")


def metrics_of(executor: Executor, last_sweep_at: Callable[[], float]) -> Metrics | None:
    """None where the extra is not installed."""
    try:
        import prometheus_client
    except ModuleNotFoundError:
        return None
    return Metrics(prometheus_client, executor, last_sweep_at)


class Metrics:
    """The counters of this process, or with PROMETHEUS_MULTIPROC_DIR of all that count there, and the gauges."""

    def __init__(self, library: Any, executor: Executor, last_sweep_at: Callable[[], float]) -> None:
        self.content_type = library.CONTENT_TYPE_LATEST
        self.counts = counts_in(library.REGISTRY)
        self._library, self._executor, self._last_sweep_at = library, executor, last_sweep_at
        self._gauges = library.CollectorRegistry()
        self._gauges.register(self)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return b"".join(self._library.generate_latest(registry) for registry in (self._counters(), self._gauges))

    def _counters(self) -> Any:
        if SHARED_FILES not in os.environ:
            return self._library.REGISTRY
        from prometheus_client.multiprocess import MultiProcessCollector

        shared = self._library.CollectorRegistry()
        collector: Any = MultiProcessCollector
        collector(shared)
        return shared

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

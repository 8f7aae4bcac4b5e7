"""Counters and durations for Prometheus, from the notices of chatlock.hooks.  Nothing is labelled by thread or tenant.

Gauges (what runs, what waits) are the poller's alone: it reads them from the database, where they are true for all.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakKeyDictionary

from chatlock.client_base import Client
from chatlock.errors import InvalidInput
from chatlock.hooks import ClaimGranted, DeliveryEnded, Notice, SubmitEnded, TurnEnded, TurnReclaimed

SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)
SHARED_FILES = "PROMETHEUS_MULTIPROC_DIR"

_made: WeakKeyDictionary[Any, Counts] = WeakKeyDictionary()
_making = threading.Lock()


def prometheus(chat: Client, registry: Any = None) -> None:
    """Counts what this client does, once, however often it is called.  Needs the extra metrics.

    Names: chatlock_submits_total{outcome}, chatlock_claims_total{by}, chatlock_wait_seconds, chatlock_turn_seconds,
    chatlock_failed_turns_total, chatlock_lost_turns_total, chatlock_reclaims_total{reason},
    chatlock_deliveries_total{how}.  Raises InvalidInput where prometheus-client is not installed.

    Args:
        chat: A Chatlock or AsyncChatlock.
        registry: A registry of prometheus-client.  None: its default one.
    """
    try:
        import prometheus_client
    except ModuleNotFoundError:
        raise InvalidInput(
            "no_prometheus", "metrics need prometheus-client: install chatlock with its extra 'metrics'"
        ) from None
    chat.subscribe(counts_in(prometheus_client.REGISTRY if registry is None else registry))


def counts_in(registry: Any) -> Counts:
    """The one subscriber that counts in this registry."""
    with _making:
        if registry not in _made:
            _made[registry] = Counts(registry)
        return _made[registry]


def share_files_as(number: int) -> None:
    """With PROMETHEUS_MULTIPROC_DIR: processes that follow each other, never two at once, count in the same files.

    Call it before the first notice.  number: their parent's process id.
    """
    if SHARED_FILES in os.environ:
        from prometheus_client import values

        process_value: Any = values.MultiProcessValue
        values.ValueClass = process_value(lambda: number)


class Counts:
    """A subscriber that counts.

    With PROMETHEUS_MULTIPROC_DIR the counters are made at the first notice, and so after the fork of a work-horse: each
    would begin anew from what its parent had read.
    """

    def __init__(self, registry: Any) -> None:
        self._registry = registry
        self._families: _Families | None = None if SHARED_FILES in os.environ else _Families(registry)

    def __call__(self, notice: Notice) -> None:
        """Counts what the notice tells."""
        with _making:
            self._families = families = self._families or _Families(self._registry)
        match notice:
            case SubmitEnded():
                families.submits.labels(notice.outcome).inc()
            case ClaimGranted():
                families.claims.labels(notice.by).inc()
                if notice.waited_s is not None:
                    families.wait.observe(notice.waited_s)
            case TurnEnded():
                families.turns.observe(notice.seconds)
                families.failed.inc(notice.how == "failed")
                families.lost.inc(notice.how == "lost")
            case TurnReclaimed():
                families.reclaims.labels(notice.reason).inc()
            case DeliveryEnded():
                families.deliveries.labels(notice.how).inc()


class _Families:
    """The metrics of one registry, at zero."""

    def __init__(self, registry: Any) -> None:
        from prometheus_client import Counter, Histogram

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"chatlock_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str) -> Any:
            return Histogram(f"chatlock_{name}_seconds", text, buckets=SECONDS, registry=registry)

        self.submits = counter("submits", "Calls of submit, begin, turn and stream, by their answer.", "outcome")
        self.claims = counter("claims", "Claims granted.", "by")
        self.wait = seconds("wait", "How long calls waited until their claim was granted.")
        self.turns = seconds("turn", "How long turns ran here.")
        self.failed = counter("failed_turns", "Turns here that failed, charged.")
        self.lost = counter("lost_turns", "Turns here that lost their claim.")
        self.reclaims = counter("reclaims", "Stale turns freed.", "reason")
        self.deliveries = counter("deliveries", "Attempts to send a reply.", "how")
        for reason in ("lease", "window"):
            self.reclaims.labels(reason)

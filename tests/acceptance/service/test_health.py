"""What a service says of itself: health, readiness, metrics."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import Chatlock, StoreUnavailable
from chatlock.schema import VERSION_TABLE
from tests.acceptance import served as application
from tests.acceptance.cases.support import TENANT, SetClock, age_claim, rows
from tests.acceptance.services import echo, serving

if TYPE_CHECKING:
    from tests.support.databases import Database

NAMES = {
    "chatlock_running",
    "chatlock_waiting",
    "chatlock_stuck",
    "chatlock_oldest_due_age_seconds",
    "chatlock_intents_pending",
    "chatlock_poller_last_sweep_timestamp_seconds",
    "chatlock_claims_total",
    "chatlock_reclaims_total",
    "chatlock_turn_seconds",
    "chatlock_lost_turns_total",
    "chatlock_failed_turns_total",
    "chatlock_submits_total",
    "chatlock_wait_seconds",
    "chatlock_deliveries_total",
}


def test_livez_fails_when_sweeps_stop_and_asks_no_database(hosted: Chatlock, database: Database) -> None:
    with serving(database) as service:
        service.executor.read = None  # type: ignore[assignment, method-assign]
        assert service.livez().status == 200
        service.sweeping.passed_at -= 14
        assert service.livez().status == 200
        service.sweeping.passed_at -= 2
        assert service.livez().status == 503
        del service.executor.read
    with serving(database, sweep_ms=10_000) as service:
        service.sweeping.passed_at -= 29
        assert service.livez().status == 200
        service.sweeping.passed_at -= 2
        assert service.livez().status == 503


def test_readyz_fails_without_schema_without_database_and_in_the_drain(
    hosted: Chatlock, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(database) as service:
        assert service.readyz()[:3] == (200, b"ready\n", "text/plain; charset=utf-8")
        rows(database, "UPDATE chatlock_meta SET value = 999 WHERE name = 'min_client'")
        rows(database, f"UPDATE {VERSION_TABLE} SET version_num = '0999'")
        assert service.readyz().status == 503
        assert b"too new" in service.readyz().body

        def away(name: str, op: Any) -> Any:
            raise StoreUnavailable("the database cannot be reached")

        monkeypatch.setattr(service.executor, "read", away)
        assert service.readyz()[:2] == (503, b"the database cannot be reached\n")
        monkeypatch.undo()
        monkeypatch.setattr(application, "hosted", hosted, raising=False)
        service._stopping = True
        assert service.readyz()[:2] == (503, b"draining\n")


def values(text: bytes) -> dict[str, float]:
    """The samples of chatlock's own on a metrics page."""
    lines = (line.rsplit(" ", 1) for line in text.decode().splitlines() if line.startswith("chatlock_"))
    return {name: float(value) for name, value in lines}


def test_metrics_tell_of_the_whole_database_and_name_no_thread(
    hosted: Chatlock, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted.handler()(echo)

    @hosted.deliver()
    def deliver(delivery: Any) -> None: ...

    with serving(database) as service, Chatlock(database.url, tenant=TENANT, poller=False) as elsewhere:
        host = service.dispatcher._host  # type: ignore[attr-defined]
        host.open()
        assert service.metrics
        before = values(service.metrics.text())
        hosted.submit("secret-thread", "hello")  # one reply to send
        elsewhere.submit("waits", "hello", agent="nobody", wait_ms=0)
        rows(database, "UPDATE chatlock_due SET due_at = due_at - 5000")
        for name in ("runs", "silent"):
            elsewhere.begin(name, "hello")
        age_claim(database, "silent")
        text = service.metrics.text()
        now = values(text)
        assert now["chatlock_running"] == 2
        assert now["chatlock_waiting"] == 1
        assert now["chatlock_stuck"] == 1
        assert now["chatlock_intents_pending"] == 1
        assert 5 <= now["chatlock_oldest_due_age_seconds"] < 60
        assert now["chatlock_turn_seconds_count"] - before["chatlock_turn_seconds_count"] == 1
        assert {name for name in NAMES if name.encode() not in text} == set()
        labels = set(re.findall(r'(\w+)="', " ".join(now)))
        assert labels == {"by", "outcome", "reason", "le"}
        assert b"secret" not in text

        clock = SetClock()
        service.sweep._monotonic = clock
        service.sweep.reclaim_stale()
        clock.now_s += service.sweep._gap_s
        service.sweep.reclaim_stale()
        service._sweep_once()
        now, reclaims = values(service.metrics.text()), 'chatlock_reclaims_total{reason="lease"}'
        assert now[reclaims] - before[reclaims] == 1
        assert (now["chatlock_stuck"], now["chatlock_running"], now["chatlock_waiting"]) == (0, 1, 2)
        assert now["chatlock_poller_last_sweep_timestamp_seconds"] > 1_600_000_000

        def away(name: str, op: Any) -> Any:
            raise StoreUnavailable("the database cannot be reached")

        monkeypatch.setattr(service.executor, "read", away)
        lost = values(service.metrics.text())
        assert now.keys() - lost.keys() == {
            "chatlock_running",
            "chatlock_waiting",
            "chatlock_stuck",
            "chatlock_intents_pending",
            "chatlock_oldest_due_age_seconds",
        }
        monkeypatch.undo()


def test_service_without_prometheus_serves_without_metrics(
    hosted: Chatlock, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with serving(database) as service:
        assert service._metrics_page()[:2] == (
            501,
            b"metrics need prometheus-client: install chatlock with its extra 'metrics'\n",
        )
        service._dispatch_once()
        service._sweep_once()

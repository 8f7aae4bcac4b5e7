"""One clock decides, the database's, whatever hosts, time zones and sessions make of the time (B39)."""

from __future__ import annotations

import ast
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import Answered, Chatlock, Turn
from chatlock.ops.unanswered import observe_running, reclaim
from chatlock.testing import DatabaseClock
from tests.acceptance.cases.recovery import HOUR_MS, STILL, beat, now_ms
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    Points,
    SetClock,
    message_rows,
    parked_row,
    reclaim_aged,
    rows,
    thread_row,
    turn_rows,
    until,
    wait_blocked,
)
from tests.support import ROOT
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.acceptance.cases.support import Callers
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]

LEASE_MS = STILL.lease_ms
FOLD_MS = 1_793_507_400_000
"""2026-11-01 04:30 UTC: in St John's the clocks go from 2:00 back to 1:00."""

HOSTS: dict[str, tuple[int, dict[str, str]]] = {
    "an hour ahead": (3600, {}),
    "an hour behind": (-3600, {}),
    "in Bangkok": (0, {"TZ": "Asia/Bangkok", "PGTZ": "Asia/Bangkok"}),
    "in St John's": (0, {"TZ": "America/St_Johns", "PGTZ": "America/St_Johns"}),
    "session elsewhere": (0, {"TZ": "UTC", "PGTZ": "Pacific/Kiritimati"}),
}
"""What the host's clock is off by, in seconds, and its environment."""


@pytest.fixture
def clock(database: Database) -> DatabaseClock:
    """The database's clock, which only the test moves."""
    return DatabaseClock.install(database.url)


def attached(clock: DatabaseClock, chat: Chatlock) -> Chatlock:
    """The client, on the set clock."""
    clock.attach(chat)
    return chat


def begin(chat: Chatlock, thread: str = "thread") -> Turn:
    """A turn that the test holds."""
    turn = chat.begin(thread, "one", message_id="m1")
    assert isinstance(turn, Turn)
    return turn


# -- hosts that disagree -----------------------------------------------------------------------------------------------
def be_host(name: str) -> None:
    """In a child: another wall clock and another time zone."""
    off_s, environment = HOSTS[name]
    os.environ.update(environment)
    time.tzset()
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + off_s  # type: ignore[assignment]
    time.time_ns = lambda: real_ns() + off_s * 1_000_000_000  # type: ignore[assignment]


def times_of(database: Database, thread: str, since: int) -> list[Any]:
    """Every time that the product stored about the thread, counted from `since`."""
    row = thread_row(database, thread)
    kept = [row["created_at"], row["claimed_at"], row["expires_at"], row["window_ends_at"]]
    kept += [message["received_at"] for message in message_rows(database, thread)]
    kept += [turn[name] for turn in turn_rows(database, thread) for name in ("started_at", "ended_at")]
    assert all(value is None or isinstance(value, int) for value in kept)
    return [value if value is None else value - since for value in kept]


def decide(database: Database, clock: DatabaseClock, thread: str) -> list[Any]:
    """A claim, its lease to the millisecond, its reclaim: what was decided, and what was stored."""
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=STILL) as chat:
        clock.attach(chat)
        start = clock.now_ms
        turn = begin(chat, thread)
        decided: list[Any] = [times_of(database, thread, start)]
        clock.advance(LEASE_MS)
        decided.append(reclaim_aged(chat))
        decided.append(beat(chat, turn._core.claim))
        decided.append(times_of(database, thread, start))
        clock.advance(LEASE_MS + 1)
        decided.append(reclaim_aged(chat))
        decided.append(times_of(database, thread, start)[4:])
        return decided


def decide_as_host(name: str, database: Database, clock: DatabaseClock) -> None:
    """In a child that is another host indeed."""
    here = time.time()
    be_host(name)
    off_s, environment = HOSTS[name]
    assert abs(time.time() - here - off_s) < 60
    if name == "in Bangkok":
        assert time.localtime().tm_gmtoff == 7 * 3600
    if database.kind == "postgresql" and environment:
        assert rows(database, "SELECT current_setting('TimeZone') AS zone") == [{"zone": environment["PGTZ"]}]
    print(json.dumps(decide(database, clock, name)))


DECIDED = [
    [0, 0, LEASE_MS, STILL.window_default_ms, 0, 0, None],
    0,
    True,
    [0, 0, 2 * LEASE_MS, STILL.window_default_ms, 0, 0, None],
    1,
    [0, 0, 2 * LEASE_MS + 1],
]


@pytest.mark.parametrize(
    ("start_ms", "hosts"), [(None, list(HOSTS)), (FOLD_MS - LEASE_MS, ["in St John's"])], ids=["today", "the fold"]
)
def test_hosts_with_other_clocks_and_zones_decide_alike(
    database: Database, clock: DatabaseClock, child: Keep, start_ms: int | None, hosts: list[str]
) -> None:
    """B39: the same decisions at the same millisecond of the database's clock, and the same stored times."""
    assert decide(database, clock, "here") == DECIDED
    for name in hosts:
        if start_ms is not None:
            clock.set(start_ms)
        process = child(Child.fork(lambda name=name: decide_as_host(name, database, clock)))
        assert json.loads(process.wait_for("[")) == DECIDED, name
        assert process.wait() == 0


def test_host_that_is_behind_judges_the_claim_of_one_that_is_ahead(
    database: Database, client: Client, clock: DatabaseClock, child: Keep
) -> None:
    """B39: claimer and sweeper two hours apart, here and there."""

    def claim() -> None:
        be_host("an hour ahead")
        begin(attached(clock, Chatlock(database.url, tenant=TENANT, poller=False, limits=STILL)))

    def sweep() -> None:
        be_host("an hour behind")
        chat = attached(clock, Chatlock(database.url, tenant=TENANT, poller=False))
        print(f"reclaimed {reclaim_aged(chat)}")

    claimer = child(Child.fork(claim))
    assert claimer.wait() == 0
    for past_ms, reclaimed in ((LEASE_MS, 0), (1, 1)):
        clock.advance(past_ms)
        assert child(Child.fork(sweep)).wait_for("reclaimed") == f"reclaimed {reclaimed}"


def test_clock_is_read_after_the_lock(
    database: Database, client: Client, clock: DatabaseClock, callers: Callers
) -> None:
    """B39: a claim that waited five seconds for the row starts its lease when it got it."""
    chat = client(database, limits=STILL)
    clock.attach(chat)
    begin(chat).finish("answer")
    points = Points(chat)
    with parked_row(database, "thread") as row:
        waiting = callers.call(chat.begin, "thread", "two", message_id="m2")
        wait_blocked(database, points, "submit_hot")
        clock.advance(5_000)
        row.let_go()
    assert isinstance(waiting.result(SECONDS_MAX), Turn)
    assert thread_row(database, "thread")["claimed_at"] == clock.now_ms
    assert thread_row(database, "thread")["expires_at"] == clock.now_ms + LEASE_MS


def test_old_transaction_sees_the_present_time(pg_database: Database, client: Client) -> None:
    """B39: in a transaction that was opened long ago now() is old; a sweep judges by the time it is."""
    chat = client(pg_database, limits=STILL)
    begin(chat)
    with chat._executor.engine.connect() as old:
        old.exec_driver_sql("BEGIN")
        opened_ms = old.exec_driver_sql("SELECT (extract(epoch FROM now()) * 1000)::bigint").scalar_one()
        until(lambda: now_ms(pg_database) > opened_ms + 1, what="a clock that goes on")
        rows(pg_database, "UPDATE chatlock_threads SET expires_at = :at", at=opened_ms + 1)
        until(lambda: now_ms(pg_database) > opened_ms + 2, what="a lease that has passed")
        assert old.exec_driver_sql("SELECT (extract(epoch FROM now()) * 1000)::bigint").scalar_one() == opened_ms
        (seen,) = observe_running(old)
        assert seen.stale
        assert reclaim(old, seen, STILL, 1.0) is not None
        old.exec_driver_sql("COMMIT")
    row = thread_row(pg_database, "thread")
    assert (row["status"], row["token"]) == ("idle", 2)
    assert row["not_before"] > opened_ms + STILL.backoff_ms


# -- a clock that steps ------------------------------------------------------------------------------------------------
def test_claim_in_the_future_is_neither_stale_nor_immortal(
    database: Database, client: Client, clock: DatabaseClock
) -> None:
    """B39: the clock stepped back an hour: the claim lasts until the clock is there again, or until its next beat.

    A beat sets the lease by the clock as it is; a dead turn is freed that much later, or by an operator's force.
    """
    chat, sweeper = client(database, limits=STILL), client(database)
    for each in (chat, sweeper):
        clock.attach(each)
    live, dead, forced = (begin(chat, thread) for thread in ("live", "dead", "forced"))
    clock.advance(-HOUR_MS)
    assert reclaim_aged(sweeper) == 0
    assert beat(chat, live._core.claim)
    assert thread_row(database, "live")["expires_at"] == clock.now_ms + LEASE_MS
    assert sweeper.free("forced", turn=forced.token).reason == "alive"
    assert sweeper.free("forced", turn=forced.token, force=True).done
    clock.advance(LEASE_MS + 1)
    assert reclaim_aged(sweeper) == 1
    assert thread_row(database, "live")["status"] == "idle"
    clock.advance(HOUR_MS)
    assert reclaim_aged(sweeper) == 1
    assert thread_row(database, "dead")["status"] == "idle"
    assert dead.token < thread_row(database, "dead")["token"]


def test_step_forward_frees_the_dead_and_not_the_living(
    database: Database, client: Client, clock: DatabaseClock
) -> None:
    """B39: an hour's step makes every claim look stale; the second observation tells which turns still beat."""
    chat, sweeper = client(database, limits=STILL), client(database)
    for each in (chat, sweeper):
        clock.attach(each)
    live = begin(chat, "live")
    begin(chat, "dead")
    monotonic = SetClock()
    sweeper._sweep._monotonic = monotonic
    clock.advance(HOUR_MS // 12)
    assert sweeper._sweep.reclaim_stale() == 0
    assert beat(chat, live._core.claim)
    monotonic.now_s += sweeper._sweep._gap_s
    assert sweeper._sweep.reclaim_stale() == 1
    assert thread_row(database, "live")["status"] == "running"
    assert thread_row(database, "dead")["status"] == "idle"
    live.finish("answer")


def test_backoff_further_off_than_the_longest_counts_as_due(
    database: Database, client: Client, clock: DatabaseClock
) -> None:
    """B39: the clock stepped back an hour while a thread was in backoff; nobody waits an hour for it."""
    chat = client(database)
    clock.attach(chat)
    begin(chat).fail("failed")
    chat.handler()(lambda turn: "answer")
    assert chat.sweep_once().turns == 0
    clock.advance(-HOUR_MS)
    assert chat.sweep_once().turns == 1
    begin(chat, "other").fail("failed")
    clock.advance(-HOUR_MS)
    assert isinstance(chat.submit("other", "one", message_id="m1", wait_ms=0), Answered)
    assert thread_row(database, "other")["not_before"] == 0


# -- no other clock in the product -------------------------------------------------------------------------------------
EDGES = {"testing", "service", "middleware", "cli", "doctor.py"}
"""What signs requests, shows times to people or compares the clocks; no claim is judged there."""
HOST_CLOCKS = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime", "strftime"}
OTHER_SQL_CLOCKS = re.compile(
    r"\bnow\(\)|transaction_timestamp|current_timestamp|localtime|\bdatetime\('now'|'localtime'", re.I
)


def host_clock_reads(source: str) -> list[str]:
    """Every call in the source that reads the host's wall clock."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = {"time", "datetime", "date"}
    return [
        f"{call.value.id}.{call.attr}"
        for call in calls
        if isinstance(call, ast.Attribute)
        and call.attr in HOST_CLOCKS
        and isinstance(call.value, ast.Name)
        and call.value.id in names
    ]


def test_product_reads_no_wall_clock_of_the_host() -> None:
    """B39: what decides cannot come from the host."""
    found = {str(path): reads for path in _sources() if (reads := host_clock_reads(path.read_text()))}
    assert not found
    assert host_clock_reads("time.time(); datetime.now(tz); time.monotonic()") == ["time.time", "datetime.now"]


def test_statements_read_no_clock_of_the_transaction_or_the_session() -> None:
    """B39: clock_timestamp(), statement_timestamp() and julianday('now') alone."""
    statements = sorted((ROOT / "docs" / "sql").glob("*.sql"))
    assert any("clock_timestamp()" in path.read_text() for path in statements)
    found = {path.name: found for path in statements if (found := OTHER_SQL_CLOCKS.findall(path.read_text()))}
    assert not found
    for other in ("now()", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP", "datetime('now')"):
        assert OTHER_SQL_CLOCKS.search(f"SELECT {other}")


def _sources() -> list[Path]:
    return [path for path in sorted((ROOT / "chatlock").rglob("*.py")) if EDGES.isdisjoint(path.parts)]

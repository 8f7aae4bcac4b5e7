"""The poller as a service: it serves, shares, drains, survives bad threads, and says how it is."""

from __future__ import annotations

import re
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from click.testing import CliRunner

from chatlock import AsyncChatlock, Chatlock, InvalidInput, Limits, StoreUnavailable
from chatlock.cli import main
from chatlock.hosting import load_chat
from chatlock.inputs import Key
from chatlock.ops.due import Dispatched
from chatlock.protocol import Queued
from chatlock.schema import VERSION_TABLE
from chatlock.service import Service
from chatlock.service.dispatch import Remote
from chatlock.service.loop import Loop
from chatlock.settings import Settings
from chatlock.wake.postgres import PostgresWake
from chatlock.wake.redis import RedisWake
from tests.acceptance import served as application
from tests.acceptance.cases.recovery import statements_of
from tests.acceptance.cases.support import (
    TENANT,
    Points,
    SetClock,
    age_claim,
    message_rows,
    rows,
    thread_row,
    turn_rows,
    until,
)
from tests.acceptance.services import CHAT_MODULE, Served, address_of, asked
from tests.support.processes import Child
from tests.support.waiting import Gate, blocked_backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


@pytest.fixture
def served(database: Database, tmp_path: Path, child: Callable[[Child], Child]) -> Iterator[Served]:
    """The test's application on both databases."""
    made = Served(database, tmp_path, child)
    yield made
    made.client.close()


@pytest.fixture
def served_pg(pg_database: Database, tmp_path: Path, child: Callable[[Child], Child]) -> Iterator[Served]:
    """The test's application on PostgreSQL."""
    made = Served(pg_database, tmp_path, child)
    yield made
    made.client.close()


# -- as a process ------------------------------------------------------------------------------------------------------
def test_poller_serves_tells_systemd_and_ends_at_sigterm(served: Served) -> None:
    name = str(served.directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name)
        systemd.settimeout(20)
        environment = served.environment(NOTIFY_SOCKET=name)
        poller = served.begun(Child.python("-m", "poller", environment=environment), "poller")
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"WATCHDOG=1"
        address = address_of(poller)
        assert (asked(address, "/livez")[0], asked(address, "/readyz")) == (200, (200, "ready\n"))
        assert asked(address, "/nothing")[0] == 404

        served.store("thread", message_id="m1")
        served.answered("thread")
        until(lambda: served.delivered() == ["thread m1"], what="the delivery")
        status, text = asked(address, "/metrics")
        assert (status, 'chatlock_claims_total{by="poller"} 1.0' in text) == (200, True)

        poller.send(signal.SIGTERM)
        assert poller.wait() == 0
        until(lambda: systemd.recv(100) == b"STOPPING=1", what="the notice of the end")


@pytest.mark.parametrize("chat", ["chat", "async_chat"])
def test_sigterm_lets_the_turn_end_and_begins_no_other(served_pg: Served, chat: str) -> None:
    """B58 (a): what arrives during the drain waits for the next process."""
    poller = served_pg.start("poller", chat=f"{CHAT_MODULE}:{chat}", drain_ms=20_000)
    served_pg.hold("thread")
    served_pg.store("thread", message_id="m1")
    served_pg.journal.wait_enters(1)
    served_pg.store("thread", message_id="m2")
    poller.send(signal.SIGTERM)
    poller.wait_for("poller.draining")
    served_pg.store("other", message_id="m3")
    served_pg.let_go("thread")
    assert poller.wait() == 0
    assert [m["disposition"] for m in message_rows(served_pg.database, "thread")] == ["answered", "pending"]
    assert thread_row(served_pg.database, "other")["token"] == 0

    served_pg.start("poller", chat=f"{CHAT_MODULE}:{chat}")
    served_pg.answered("thread", "other")
    assert [e.ids for e in served_pg.journal.enters("thread")] == [("m1",), ("m2",)]


@pytest.mark.parametrize(
    ("chat", "again"),
    [("chat", False), ("chat", True), ("async_chat", True)],
    ids=["drain_ends", "second_sigterm", "second_sigterm_async"],
)
def test_sigterm_hands_back_uncharged_what_does_not_end(served: Served, chat: str, again: bool) -> None:
    """B58 (b) and (c): claimable at once, by nobody's lease and at nobody's cost."""
    poller = served.start("poller", chat=f"{CHAT_MODULE}:{chat}", drain_ms=600_000 if again else 100)
    served.hold("thread")
    served.store("thread", message_id="m1")
    served.journal.wait_enters(1)
    poller.send(signal.SIGTERM)
    if again:
        poller.wait_for("poller.draining")
        poller.send(signal.SIGTERM)
    assert poller.wait() == 0
    row = thread_row(served.database, "thread")
    assert (row["status"], row["attempts"], row["stalls"], row["not_before"]) == ("idle", 0, 0, 0)
    assert [turn["state"] for turn in turn_rows(served.database, "thread")] == ["released"]
    assert len(rows(served.database, "SELECT 1 AS due FROM chatlock_due")) == 1


def test_second_sigterm_ends_a_poller_whose_database_does_not_answer(served_pg: Served) -> None:
    """A pass of it waits for a lock that the test holds: nothing can be handed back, so the lease will free it."""
    poller = served_pg.start("poller")
    lock = served_pg.database.connect()
    lock.execute("BEGIN")
    lock.execute("LOCK TABLE chatlock_due IN ACCESS EXCLUSIVE MODE")
    watch = served_pg.database.connect()
    until(lambda: blocked_backends(watch), what="a pass that waits")
    poller.send(signal.SIGTERM)
    poller.wait_for("poller.draining")
    poller.send(signal.SIGTERM)
    assert poller.wait() == 1
    lock.execute("ROLLBACK")


def test_pollers_share_the_work(served: Served) -> None:
    """B50: each of two pollers has room for one turn, so each of two threads is held by another one."""
    for _ in range(2):
        served.start("poller", turns_max=1)
    for name in ("one", "two"):
        served.hold(name)
        served.store(name)
    assert len({entry.pid for entry in served.journal.wait_enters(2)}) == 2
    for name in ("one", "two"):
        served.let_go(name)
    served.answered("one", "two")
    assert {name: served.journal.overlap(name) for name in ("one", "two")} == {"one": 1, "two": 1}


# -- in this process: no signal is needed ------------------------------------------------------------------------------
@contextmanager
def serving(database: Database, chat: str | None = None, **options: Any) -> Iterator[Service]:
    """A service that has not begun; it is closed at the end."""
    given: dict[str, Any] = {"url": database.url, "chat": chat or "tests.acceptance.served:hosted", "port": 0}
    service = Service(Settings(_env_file=None, drain_ms=0, **given | options))  # type: ignore[call-arg]
    try:
        yield service
    finally:
        service.drain()


@pytest.fixture
def hosted(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chatlock]:
    """The chat object that an in-process service finds."""
    chat = Chatlock(database.url, tenant=TENANT, limits=Limits(beat_ms=60_000, lease_ms=180_000))
    monkeypatch.setattr(application, "hosted", chat, raising=False)
    yield chat
    chat.close()


def test_service_refuses_a_chat_object_of_another_database(
    hosted: Chatlock, database: Database, tmp_path: Path
) -> None:
    """It would wait for ever for turns that it never finds."""
    other = tmp_path / "other.db"
    other.touch()
    with (
        pytest.raises(InvalidInput, match="different databases") as refused,
        serving(database, url=f"sqlite:///{other}"),
    ):
        pass
    assert str(tmp_path) not in str(refused.value)
    assert hosted._executor._engine is None


def test_poller_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATLOCK_CHAT", "tests.acceptance.served:hosted")
    monkeypatch.delenv("CHATLOCK_URL", raising=False)
    result = CliRunner().invoke(main, ["poller", "--url", f"sqlite:///{tmp_path}/typo.db"])
    assert (result.exit_code, "there is no such SQLite file" in result.output) == (5, True), result.output
    assert list(tmp_path.iterdir()) == []


def echo(turn: Any) -> Any:
    return [m.payload for m in turn.messages]


def test_bad_threads_do_not_stop_the_others(
    hosted: Chatlock, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """B49: one fails at its claim, one hangs, one has an agent without a handler, one holds text that is no JSON."""
    gate = Gate()

    def handler(turn: Any) -> Any:
        if turn.key.thread == "hangs":
            gate.hold()
        return echo(turn)

    names = [f"good{i}" for i in range(46)]
    with Chatlock(database.url, tenant=TENANT, poller=False) as intake:
        for name in ["fails", "hangs", "no_json", *names]:
            intake.submit(name, "hello", wait_ms=0)
        intake.submit("unserved", "hello", agent="nobody", wait_ms=0)
    rows(database, "UPDATE chatlock_messages SET payload = '{\"half' WHERE thread_id = 'no_json'")
    rows(
        database,
        "INSERT INTO chatlock_turns (tenant, thread_id, incarnation, token, claim_id, owner, agent, from_seq, state,"
        " started_at, ended_at) VALUES ('t', 'fails', 1, 1, 'c', 'o', 'default', 0, 'failed', 0, 0)",
    )
    hosted.handler()(handler)
    with serving(database, turns_max=100) as service:
        clock = SetClock()
        hosted._sweep._monotonic = clock
        service.dispatcher.open(lambda: None)
        service._dispatch_once()
        for name in names:
            until(lambda name=name: thread_row(database, name)["done_seq"] == 1, what=name)
        assert thread_row(database, "hangs")["status"] == "running"
        failed = [r for r in caplog.records if r.message == "thread.not_served"]
        assert len(failed) == 2
        assert "due.no_handler_here" in caplog.messages

        with statements_of(hosted) as sent:
            for _ in range(20):
                service._dispatch_once()
        assert len(sent) == 20, "an idle pass asks once"
        for _ in range(120):
            clock.now_s += 1
            service._dispatch_once()
        attempts = [r for r in caplog.records if r.message == "thread.not_served"]
        assert len(attempts) == 2 * (1 + 6), "1, 2, 4, .. 32 and then 60 s apart"
        gate.open()
        until(lambda: thread_row(database, "hangs")["done_seq"] == 1, what="the turn that hung")


class Recorded:
    """A sender that keeps what it is given, and fails where it is told to."""

    def __init__(self, fails: Callable[[Dispatched], Exception | None] = lambda wake_up: None) -> None:
        self.sent: list[tuple[str, int, int, str]] = []
        self._fails = fails

    def room(self) -> int:
        return 100

    def send(self, wake_up: Dispatched, purpose: str) -> None:
        fault = self._fails(wake_up)
        if fault is not None:
            raise fault
        self.sent.append((wake_up.key.thread, wake_up.incarnation, wake_up.token, purpose))

    def maintain(self) -> None: ...

    def close(self) -> None: ...


def test_dispatch_lease_keeps_a_thread_from_being_sent_twice_and_passes(hosted: Chatlock, database: Database) -> None:
    """A wake-up that was lost (a flushed Redis) is sent again once its lease has passed; never before."""
    sender = Recorded()
    remote = Remote(hosted._executor, hosted._sweep, sender, lease_ms=15_000)
    hosted.submit("thread", "hello", wait_ms=0)
    for _ in range(3):
        remote.dispatch_due()
    assert sender.sent == [("thread", 1, 0, "turns")]
    rows(database, "UPDATE chatlock_due SET dispatched_until = dispatched_until - 15000")
    for _ in range(3):
        remote.dispatch_due()
    assert sender.sent == 2 * [("thread", 1, 0, "turns")]
    rows(database, "UPDATE chatlock_due SET dispatched_until = dispatched_until + 86400000")  # the clock stepped back
    remote.dispatch_due()
    assert len(sender.sent) == 3
    hosted.submit("thread", "again", wait_ms=0)  # a new message asks anew
    remote.dispatch_due()
    assert len(sender.sent) == 4


def test_thread_whose_turn_did_not_answer_is_dispatched_as_retried(hosted: Chatlock, database: Database) -> None:
    for thread in ("failed", "fresh"):
        hosted.submit(thread, "hello", wait_ms=0)
    with pytest.raises(RuntimeError), hosted.turn("failed", "more"):
        raise RuntimeError
    rows(database, "UPDATE chatlock_threads SET not_before = 0")
    sent = [hosted._sweep.dispatch(Key(TENANT, thread), 1_000) for thread in ("failed", "fresh")]
    assert [wake_up.retried for wake_up in sent if wake_up is not None] == [True, False]


def test_dispatch_leaves_what_is_not_due(hosted: Chatlock, database: Database) -> None:
    """Running, parked, backed off, locked by someone: nothing is sent; a surplus row goes."""
    sender = Recorded()
    remote = Remote(hosted._executor, hosted._sweep, sender, lease_ms=15_000)
    turn = hosted.begin("running", "hello")
    rows(database, "INSERT INTO chatlock_due VALUES ('t', 'running', 0, 0, 0)")
    hosted.submit("backed_off", "hello", wait_ms=0)
    rows(database, "UPDATE chatlock_threads SET not_before = 9e15 WHERE thread_id = 'backed_off'")
    far = thread_row(database, "backed_off")["not_before"]
    now = rows(database, "SELECT max(received_at) AS now FROM chatlock_messages")[0]["now"]
    assert far > now
    rows(database, "UPDATE chatlock_threads SET not_before = :soon WHERE thread_id = 'backed_off'", soon=now + 50_000)
    hosted.submit("parked", "hello", wait_ms=0)
    hosted.park("parked")
    remote.dispatch_due()
    assert sender.sent == []
    left = {row["thread_id"] for row in rows(database, "SELECT thread_id FROM chatlock_due")}
    assert left == {"backed_off"}
    assert not isinstance(turn, Queued)
    turn.release()


def test_fault_of_one_wake_up_or_of_the_sender_stops_no_pass(
    hosted: Chatlock, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "bad", "c"):
        hosted.submit(name, "hello", wait_ms=0)
    sender = Recorded(lambda wake_up: ValueError("no") if wake_up.key.thread == "bad" else None)
    remote = Remote(hosted._executor, hosted._sweep, sender, lease_ms=15_000)
    remote.dispatch_due()
    assert [name for name, *_ in sender.sent] == ["a", "c"]
    assert caplog.messages.count("dispatch.failed") == 1

    rows(database, "UPDATE chatlock_due SET dispatched_until = 0")
    away = Remote(hosted._executor, hosted._sweep, Recorded(lambda wake_up: ConnectionError()), lease_ms=15_000)
    away.dispatch_due()
    leased = rows(database, "SELECT 1 AS one FROM chatlock_due WHERE dispatched_until > 0")
    assert len(leased) == 1, "the rest of the pass waits until the sender can be reached"


def test_replies_are_dispatched_until_they_are_sent(hosted: Chatlock, database: Database) -> None:
    """In a process without the deliver function a reply is a wake-up too, under a lease of its own."""
    hosted.handler()(echo)

    @hosted.deliver()
    def deliver(delivery: Any) -> None:
        raise ConnectionError("the channel is away")

    hosted._poller = None
    hosted.submit("thread", "hello")
    sender = Recorded()
    remote = Remote(hosted._executor, hosted._sweep, sender, lease_ms=15_000)
    for _ in range(3):
        remote.dispatch_due()
    assert sender.sent == [("thread", 1, 1, "replies")]


def test_claims_of_turns_that_never_began_are_handed_back(hosted: Chatlock, database: Database) -> None:
    """B58: claimed, not started. The end of the process releases them uncharged, and at once."""
    hosted.handler()(echo)
    hosted._start_flow = lambda flow, claim_id: flow.close()  # type: ignore[method-assign, assignment, misc]
    with Chatlock(database.url, tenant=TENANT, poller=False) as intake:
        for name in ("one", "two", "three"):
            intake.submit(name, "hello", wait_ms=0)
    for granted in hosted._sweep.claim_due(["default"], 3):
        hosted._start(granted)
    assert [thread_row(database, name)["status"] for name in ("one", "two", "three")] == ["running"] * 3
    hosted.close()
    for name in ("one", "two", "three"):
        row = thread_row(database, name)
        assert (row["status"], row["attempts"], row["stalls"], row["not_before"]) == ("idle", 0, 0, 0)


def test_reclaim_goes_on_while_every_slot_is_busy(hosted: Chatlock, database: Database) -> None:
    """B43: a hung handler has the only slot, and another sweeper stands in the middle of a reclaim."""
    gate = Gate()
    hosted.handler()(lambda turn: gate.hold())
    with serving(database, turns_max=1) as service, serving(database, turns_max=1) as stuck:
        service.dispatcher.open(lambda: None)
        with Chatlock(database.url, tenant=TENANT, poller=False) as intake:
            intake.submit("hung", "hello", wait_ms=0)
            service._dispatch_once()
            gate.wait_entered()
            for name in ("first", "second"):
                begun = intake.begin(name, "hello")
                assert not isinstance(begun, Queued)
            clock = SetClock()
            for sweep in (service.sweep, stuck.sweep):
                sweep._monotonic = clock
                sweep.reclaim_stale()
            for name in ("first", "second"):
                age_claim(database, name)
            clock.now_s += service.sweep._gap_s
            held = Points(type("Stuck", (), {"_executor": stuck.executor})).hold("reclaim.commit")
            sweeper = threading.Thread(target=stuck.sweep.reclaim_stale)
            if database.kind == "postgresql":  # SQLite has one writer: there a sweeper waits for the other's commit
                sweeper.start()
                held.wait_entered()
            freed = service.sweep.reclaim_stale()
            assert freed == (1 if database.kind == "postgresql" else 2)
            held.open()
            if database.kind == "postgresql":
                sweeper.join()
            states = {thread_row(database, name)["status"] for name in ("first", "second")}
            assert states == {"idle"}
            assert thread_row(database, "hung")["status"] == "running"
        gate.open()
        until(lambda: thread_row(database, "hung")["status"] == "idle", what="the end of the hung turn")


def test_batches_of_claims_are_never_more_than_asked_for(pg_database: Database) -> None:
    """B09: 5,000 due threads, plans as bad as they get, 8 pollers that claim one at a time behind a barrier."""
    with Chatlock(pg_database.url, tenant=TENANT, poller=False) as chat:
        chat.submit("seed", "hello", wait_ms=0)
    for table in ("threads", "messages", "due"):
        columns = [
            row["name"]
            for row in rows(
                pg_database,
                "SELECT column_name AS name FROM information_schema.columns WHERE table_name = :name",
                name=f"chatlock_{table}",
            )
        ]
        made = ", ".join("'due-' || i" if name == "thread_id" else f"s.{name}" for name in columns)
        rows(
            pg_database,
            f"INSERT INTO chatlock_{table} ({', '.join(columns)}) SELECT {made}"
            f" FROM chatlock_{table} s, generate_series(1, 5000) i WHERE s.thread_id = 'seed'",
        )
    worst = "-c enable_hashjoin=off -c enable_hashagg=off -c enable_material=off"
    url = sqlalchemy.make_url(pg_database.url).update_query_dict({"options": worst}).render_as_string(False)
    barrier, took = threading.Barrier(8), []

    def poll() -> None:
        with Chatlock(url, tenant=TENANT, poller=False, pool_size=1) as poller:
            for _ in range(5):
                barrier.wait()
                granted = poller._sweep.claim_due(["default"], 1)
                assert len(granted) <= 1
                took.extend(claim.claim.claim_id for claim in granted)
            barrier.wait()

    pollers = [threading.Thread(target=poll) for _ in range(8)]
    for poller in pollers:
        poller.start()
    for poller in pollers:
        poller.join()
    running = rows(pg_database, "SELECT claim_id FROM chatlock_threads WHERE status = 'running'")
    assert sorted(row["claim_id"] for row in running) == sorted(took)
    assert len(took) >= 5


# -- loops and wakes ---------------------------------------------------------------------------------------------------
def test_loop_survives_what_its_work_raises_and_tells_it_once(caplog: pytest.LogCaptureFixture) -> None:
    faults: list[Exception | None] = [StoreUnavailable("away"), StoreUnavailable("away"), ValueError("bug"), None]
    passes = threading.Semaphore(0)

    def work() -> bool:
        fault = faults.pop(0) if faults else None
        passes.release()
        if fault is not None:
            raise fault
        return False

    loop = Loop("sweep", 1, work)
    loop.start()
    for _ in range(5):
        assert passes.acquire(timeout=20)
    loop.stop()
    told = [r.message for r in caplog.records]
    assert told == ["sweep.failed", "sweep.failed", "sweep.recovered"]
    assert loop.healthy


def test_nudge_begins_a_pass_at_once_and_more_work_another(caplog: pytest.LogCaptureFixture) -> None:
    passes, left = threading.Semaphore(0), [True, True, False]

    def work() -> bool:
        passes.release()
        return left.pop(0) if left else False

    loop = Loop("dispatch", 3_600_000, work)
    loop.start()
    for _ in range(3):
        assert passes.acquire(timeout=20)
    loop.nudge()
    assert passes.acquire(timeout=20)
    loop.stop()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_wake_from_elsewhere_begins_a_pass(
    kind: str, pg_database: Database, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sweep is an hour away: only the wake can have begun the pass."""
    chat = Chatlock(pg_database.url, tenant=TENANT)
    chat.handler()(echo)
    monkeypatch.setattr(application, "hosted", chat, raising=False)
    elsewhere = RedisWake(redis_url) if kind == "redis" else PostgresWake(pg_database.url)
    with (
        serving(pg_database, wake=kind, redis_url=redis_url, sweep_ms=60_000) as service,
        Chatlock(pg_database.url, tenant=TENANT, poller=False, wake=elsewhere) as web,
    ):
        service.start()
        until(lambda: service.dispatching.passes >= 1, what="the first pass")
        web.submit("thread", "hello", wait_ms=0)
        web.park("thread")

        def resumed() -> bool:
            web.resume("thread")
            return bool(thread_row(pg_database, "thread")["done_seq"])

        until(resumed, what="a turn that a wake began")
    assert service.dispatching.passes > 1


# -- health, readiness, metrics ----------------------------------------------------------------------------------------
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


# -- the chat object ---------------------------------------------------------------------------------------------------
def test_chat_object_is_found_by_its_path() -> None:
    assert load_chat("tests.acceptance.served:chat") is application.chat
    assert isinstance(load_chat("tests.acceptance.served:async_chat"), AsyncChatlock)


@pytest.mark.parametrize(
    "path",
    ["tests", "tests:", ":chat", "tests.acceptance.served:missing", "tests.acceptance.served:no_chat", "no.such:x"],
)
def test_path_to_no_chat_object_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="chat"):
        load_chat(path)


def test_error_inside_the_chat_module_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        load_chat("needs_more:chat")

"""The passes of a service: bad threads stop no others, and a thread is sent once until its dispatch lease passes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from chatlock import Chatlock
from chatlock.inputs import Key
from chatlock.ops.due import Dispatched
from chatlock.protocol import Queued
from chatlock.service.dispatch import Remote
from tests.acceptance.cases.recovery import statements_of
from tests.acceptance.cases.support import TENANT, Points, SetClock, age_claim, rows, thread_row, until
from tests.acceptance.services import echo, serving
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database


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

"""A poller and RQ workers as processes, on a real PostgreSQL and Valkey, while processes and servers die or pause.

After each the ledger is verified from logs outside the tables: nothing is lost and nothing is answered twice.
"""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis

from chatlock import Answered, Chatlock, Limits, Turn
from chatlock.service import Service
from chatlock.settings import Settings
from tests.acceptance.cases.recovery import STILL
from tests.acceptance.cases.support import (
    TENANT,
    age_claim,
    assert_invariants,
    message_rows,
    rows,
    stop_at_point,
    thread_row,
    turn_rows,
    until,
)
from tests.acceptance.services import Served
from tests.support import scaled, servers
from tests.support.databases import Database, create_schema
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

THREADS = ("a", "b", "c", "d")
QUICK: dict[str, Any] = {
    "beat_ms": 200,
    "lease_ms": 1000,
    "dispatch_lease_ms": 1000,
    "SERVED_BEAT_MS": 200,
    "SERVED_LEASE_MS": 1000,
}


class Fleet(Served):
    """A poller, workers, and the messages that were accepted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.accepted: dict[str, str] = {}

    def send(self, *threads: str) -> None:
        """A message into each thread, accepted and left to the workers."""
        for thread in threads:
            message_id = f"{thread}-{len(self.accepted)}"
            self.store(thread, message_id=message_id)
            self.accepted[message_id] = thread

    def until_taken(self, thread: str, count: int = 1) -> int:
        """The pid in which the thread's `count`-th turn runs."""
        return self.journal.wait_enters(count, thread)[-1].pid

    def judge(self) -> None:
        """Everything that was accepted is answered by one turn and sent; what was sent again says so."""
        self.answered(*sorted(set(self.accepted.values())))
        until(lambda: self._sent_ids() >= self.accepted.keys(), what="every reply")
        tokens: dict[str, set[int]] = defaultdict(set)
        first_sends: list[tuple[str, int]] = []
        for thread, token, attempt, ids in self.sent():
            for message_id in ids:
                assert self.accepted[message_id] == thread
                tokens[message_id].add(token)
            if attempt == 1:
                first_sends.append((thread, token))
        assert tokens.keys() == self.accepted.keys()
        assert all(len(turns) == 1 for turns in tokens.values()), f"answered twice: {tokens}"
        assert len(first_sends) == len(set(first_sends)), "sent twice, and not flagged"
        for thread in set(self.accepted.values()):
            order = [token for name, token, attempt, _ in self.sent() if name == thread and attempt == 1]
            assert order == sorted(order), "replies out of order"
        assert_invariants(self.database, self.client)

    def sent(self) -> list[Any]:
        """[thread, token, attempt, ids] of each reply, from the application's own log."""
        path = self.directory / "sent.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _sent_ids(self) -> set[str]:
        return {message_id for *_, ids in self.sent() for message_id in ids}


@pytest.fixture
def fleet(pg_database: Database, tmp_path: Path, child: Callable[[Child], Child], redis_url: str) -> Iterator[Fleet]:
    """No process runs yet."""
    made = Fleet(pg_database, tmp_path, child, {"dispatch": "rq", "redis_url": redis_url, **QUICK})
    yield made
    made.client.close()


def whole(process: Child) -> list[psutil.Process]:
    """A worker and its work-horses."""
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def signal_all(members: list[psutil.Process], number: signal.Signals) -> None:
    for member in members:
        with suppress(psutil.NoSuchProcess):
            member.send_signal(number)


def turn_states(fleet: Fleet, thread: str) -> list[str]:
    return [turn["state"] for turn in turn_rows(fleet.database, thread)]


# -- SIGKILL -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("victim", ["work-horse", "worker"])
def test_killed_worker_loses_nothing(fleet: Fleet, victim: str) -> None:
    fleet.start("poller")
    workers = {worker.pid: worker for worker in (fleet.start("worker"), fleet.start("worker"))}
    fleet.hold("a")
    fleet.send("a")
    horse = fleet.until_taken("a")
    parent = psutil.Process(horse).ppid()
    fleet.send(*THREADS)
    if victim == "worker":
        signal_all(whole(workers[parent]), signal.SIGKILL)
    else:
        os.kill(horse, signal.SIGKILL)
    fleet.until_taken("a", 2)
    fleet.let_go("a")
    fleet.send(*THREADS)
    fleet.judge()
    assert turn_states(fleet, "a")[:2] == ["reclaimed", "done"]
    other = next(worker for pid, worker in workers.items() if pid != parent)
    assert other.pid in psutil.pids()


def test_worker_killed_right_after_sigterm_is_recovered_by_the_lease(fleet: Fleet) -> None:
    """B58 (d): the new processes are up from the start; a message arrives in between."""
    fleet.start("poller")
    old = fleet.start("worker")
    fleet.hold("a")
    fleet.send("a")
    fleet.until_taken("a")
    fleet.start("worker")
    members = whole(old)
    signal_all(members[:1], signal.SIGTERM)
    signal_all(members, signal.SIGKILL)
    fleet.send("a", "b")
    fleet.until_taken("a", 2)
    fleet.let_go("a")
    fleet.judge()


def test_killed_poller_is_replaced_by_another(fleet: Fleet) -> None:
    first = fleet.start("poller")
    fleet.start("worker")
    fleet.send(*THREADS)
    first.kill()
    fleet.send(*THREADS)
    fleet.start("poller")
    fleet.judge()


def test_poller_killed_in_the_middle_of_a_reclaim_holds_up_no_other(fleet: Fleet) -> None:
    """B43: it stops with the row locked; another poller reclaims what is not locked, and after its death the rest."""
    with Chatlock(fleet.database.url, tenant=TENANT, poller=False, limits=STILL) as dead:
        for thread in ("a", "b"):
            assert isinstance(dead.begin(thread, "hello", message_id=f"{thread}-0"), Turn)
            fleet.accepted[f"{thread}-0"] = thread
            age_claim(fleet.database, thread)
        environment = fleet.environment(dispatch="rq")

        def stops() -> None:
            os.environ.update(environment)
            service = Service(Settings(_env_file=None))  # type: ignore[call-arg]
            stop_at_point(_Holder(service), "reclaim.commit")
            service.run()

        poller = fleet.keep(Child.fork(stops))
        poller.wait_for("stopped at reclaim.commit")
        fleet.start("poller")
        fleet.start("worker")
        until(lambda: len(free(fleet)) == 1, what="the thread that is not locked")
        poller.kill()
        until(lambda: len(free(fleet)) == 2, what="the other thread")
    fleet.judge()
    assert {thread: turn_states(fleet, thread) for thread in ("a", "b")} == {
        thread: ["reclaimed", "done"] for thread in ("a", "b")
    }


class _Holder:
    """What Points looks for in a client."""

    def __init__(self, service: Service) -> None:
        self._executor = service.executor


def free(fleet: Fleet) -> list[dict[str, Any]]:
    """Threads whose first turn was reclaimed."""
    return rows(fleet.database, "SELECT thread_id FROM chatlock_turns WHERE state = 'reclaimed'")


# -- SIGSTOP and SIGCONT -----------------------------------------------------------------------------------------------
def test_paused_worker_that_wakes_up_writes_and_sends_nothing(fleet: Fleet) -> None:
    """B44 (a) and (b): it is stopped in its handler past the lease; its fenced write and its reply are refused."""
    rows(fleet.database, "CREATE TABLE notes (thread text, token bigint)")
    (fleet.directory / "write").touch()
    fleet.start("poller")
    workers = {worker.pid: worker for worker in (fleet.start("worker"), fleet.start("worker"))}
    fleet.hold("a")
    fleet.send("a")
    horse = fleet.until_taken("a")
    paused = whole(workers[psutil.Process(horse).ppid()])
    signal_all(paused, signal.SIGSTOP)
    fleet.until_taken("a", 2)
    fleet.let_go("a")
    fleet.answered("a")
    signal_all(paused, signal.SIGCONT)
    until(lambda: turn_rows(fleet.database, "a")[0]["late_ended_at"], what="the late report")
    fleet.send(*THREADS)
    fleet.judge()
    assert turn_states(fleet, "a")[:2] == ["reclaimed", "done"]
    stale = turn_rows(fleet.database, "a")[0]["token"]
    written = {row["token"] for row in rows(fleet.database, "SELECT token FROM notes WHERE thread = 'a'")}
    assert written == {turn["token"] for turn in turn_rows(fleet.database, "a")} - {stale}
    intents = rows(fleet.database, "SELECT token FROM chatlock_intents WHERE thread_id = 'a'")
    assert stale not in {row["token"] for row in intents}


# -- Redis -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["flush", "restart"])
def test_redis_that_forgets_everything_costs_no_message(
    pg_database: Database, tmp_path: Path, child: Callable[[Child], Child], how: str
) -> None:
    """At five points: idle, before the wake-up is sent, while it is queued, in the turn, with more behind the turn."""
    with servers.Valkey() as valkey:
        fleet = Fleet(pg_database, tmp_path, child, {"dispatch": "rq", "redis_url": valkey.url, **QUICK})
        poller, worker = fleet.start("poller"), fleet.start("worker")

        def forget() -> None:
            if how == "restart":
                valkey.kill()
                valkey.start()
            else:
                with redis.Redis.from_url(valkey.url) as server:
                    server.flushall()

        fleet.send("a")
        fleet.answered("a")
        forget()  # idle
        fleet.send("b")
        fleet.answered("b")

        poller.send(signal.SIGSTOP)
        fleet.send("c")
        forget()  # before the wake-up is sent
        poller.send(signal.SIGCONT)
        fleet.answered("c")

        signal_all(whole(worker), signal.SIGSTOP)
        fleet.send("d")
        with redis.Redis.from_url(valkey.url) as server:
            until(lambda: rows(pg_database, "SELECT 1 AS x FROM chatlock_due WHERE dispatched_until > 0"))
            until(lambda: server.keys("rq:job:*"), what="the queued wake-up")
        forget()  # while it is queued
        signal_all(whole(worker), signal.SIGCONT)
        fleet.answered("d")

        for thread in ("e", "f"):
            fleet.hold(thread)
            fleet.send(thread)
            fleet.until_taken(thread)
            if thread == "f":
                fleet.send(thread)
            forget()  # in the turn; with more behind the turn
            fleet.let_go(thread)
            fleet.answered(thread)
        fleet.judge()
        for process in (poller, worker):
            process.send(signal.SIGTERM)
            assert process.wait() == 0
        fleet.client.close()


# -- PostgreSQL --------------------------------------------------------------------------------------------------------
def test_postgres_that_crashes_and_comes_back_loses_nothing(
    tmp_path: Path, child: Callable[[Child], Child], redis_url: str
) -> None:
    with servers.PostgreSQL() as server:
        create_schema(server.url)
        database = Database("postgresql", server.url, lambda: None)
        fleet = Fleet(database, tmp_path, child, {"dispatch": "rq", "redis_url": redis_url, **QUICK})
        poller, worker = fleet.start("poller"), fleet.start("worker")
        fleet.send(*THREADS)
        fleet.hold("a")
        fleet.send("a", "b")
        fleet.until_taken("a")
        server.kill()
        fleet.let_go("a")
        server.start()
        fleet.send(*THREADS)
        fleet.judge()
        for process in (poller, worker):
            process.send(signal.SIGTERM)
            assert process.wait() == 0
        fleet.client.close()


# -- SIGTERM of everything ---------------------------------------------------------------------------------------------
def test_rolling_deploy_charges_no_attempt_and_drops_no_message(fleet: Fleet) -> None:
    """B58: one turn never ends by itself, more wait; the old processes hand back, the new ones go on, in order."""
    old = [fleet.start("poller", drain_ms=200), *(fleet.start("worker", drain_ms=200) for _ in range(2))]
    fleet.hold("a")
    fleet.send(*THREADS, *THREADS)
    fleet.until_taken("a")
    for process in old:
        process.send(signal.SIGTERM)
        fleet.send(*THREADS)
    assert [process.wait() for process in old] == [0, 0, 0]
    assert thread_row(fleet.database, "a")["status"] == "idle"
    fleet.start("poller")
    fleet.start("worker")
    fleet.let_go("a")
    fleet.judge()
    assert {turn["state"] for thread in THREADS for turn in turn_rows(fleet.database, thread)} == {"done", "released"}
    assert all(row["attempts"] == row["stalls"] == 0 for row in rows(fleet.database, "SELECT * FROM chatlock_threads"))


# -- two pollers and a waiter ------------------------------------------------------------------------------------------
def test_pollers_and_a_waiter_race_for_one_thread(
    pg_database: Database, tmp_path: Path, child: Callable[[Child], Child], redis_url: str
) -> None:
    """B50: at each release one of them runs the message; the last release finds every connection cut."""
    fleet = Fleet(pg_database, tmp_path, child, {"redis_url": redis_url, **QUICK})
    pollers = [fleet.start("poller", pool_size=2) for _ in range(2)]
    rounds = scaled(8, 200)
    limits = Limits(beat_ms=200, lease_ms=1000, backoff_ms=100)
    with (
        Chatlock(pg_database.url, tenant=TENANT, poller=False, limits=limits) as web,
        ThreadPoolExecutor(2) as people,
    ):
        ran: list[str] = []

        @web.handler()
        def answer(turn: Turn) -> Any:
            ran.extend(m.message_id for m in turn.messages)
            return {"answers": [m.message_id for m in turn.messages]}

        for number in range(rounds):
            turn = web.begin("a", "hello", message_id=f"held-{number}")
            assert isinstance(turn, Turn), turn
            waiting = people.submit(web.submit, "a", "hello", message_id=f"waits-{number}")
            until(lambda n=number: (m := message_rows(pg_database, "a")) and m[-1]["message_id"] == f"waits-{n}")
            fresh = people.submit(web.submit, "a", "hello", message_id=f"fresh-{number}")
            if number == rounds - 1:
                assert not any("Traceback" in poller.text or " ERROR " in poller.text for poller in pollers)
                cut_all(pg_database)
            turn.finish({"answers": [f"held-{number}"]})
            answers = [waiting.result(20), fresh.result(20)]
            assert all(type(told).__name__ in ("Answered", "AlreadyAnswered") for told in answers), answers
            assert sum(isinstance(told, Answered) for told in answers) <= 2
    ids = [i for entry in fleet.journal.enters("a") for i in entry.ids] + ran
    assert sorted(ids) == sorted(f"{who}-{n}" for n in range(rounds) for who in ("waits", "fresh")), "one run each"
    fleet.answered("a")
    assert_invariants(pg_database, fleet.client)
    assert all(poller.pid in psutil.pids() for poller in pollers)
    fleet.client.close()


def cut_all(database: Database) -> None:
    """Every connection of everyone but the test's own one ends."""
    rows(
        database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )

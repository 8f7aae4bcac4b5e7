"""Turns on RQ workers: real Valkey, real worker processes, and wake-ups that are lost, doubled, early and late."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis
import rq
import rq.cli
import sqlalchemy
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from chatlock import AlreadyAnswered, Chatlock
from chatlock.inputs import PAYLOAD_BYTES_MAX, Key, key_hash
from chatlock.rq_jobs import ThreadJob
from chatlock.service import Service
from chatlock.settings import Settings
from chatlock.urls import checked_url
from chatlock.wake import waiters
from chatlock.wake.redis import RedisWake
from tests.acceptance.cases.support import TENANT, message_rows, rows, thread_row, until
from tests.acceptance.on_rq.poller import Poller, enqueue, lapse
from tests.acceptance.services import CHAT_MODULE, Served
from tests.support import servers
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.databases import Database


# -- one wake-up, from the poller to the reply -------------------------------------------------------------------------
def test_worker_answers_and_delivers_what_the_poller_dispatches(served: Served, server: redis.Redis) -> None:
    """B25: the largest payload never travels; the job holds the key and no more."""
    served.store("thread", "x" * (PAYLOAD_BYTES_MAX - 2), message_id="m1")
    Poller(served).dispatch()
    job_id = f"{key_hash(Key(TENANT, 'thread'))}-1-0"
    assert server.lrange("rq:queue:chatlock", 0, -1) == [job_id.encode()]
    stored: dict[bytes, bytes] = server.hgetall(f"rq:job:{job_id}")  # type: ignore[assignment]
    assert sum(map(len, stored.values())) < 1000

    worker = served.start("worker")
    served.answered("thread")
    until(lambda: served.delivered() == ["thread m1"], what="the delivery")
    assert served.journal.enters()[0].pid != worker.pid, "a work-horse runs the turn"
    until(lambda: not server.exists(f"rq:job:{job_id}"), what="the end of the job")

    served.start("poller")
    served.store("thread", "again", message_id="m2")
    served.answered("thread")
    until(lambda: served.delivered() == ["thread m1", "thread m2"], what="the second delivery")


def test_work_horses_of_a_worker_count_in_one_set_of_files(served_pg: Served) -> None:
    counts = served_pg.directory / "counts"
    counts.mkdir()
    worker = served_pg.start("worker", PROMETHEUS_MULTIPROC_DIR=counts)
    for thread in ("one", "two"):
        served_pg.store(thread)
    Poller(served_pg).dispatch()
    served_pg.answered("one", "two")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    registry, collector = CollectorRegistry(), cast("Any", MultiProcessCollector)
    collector(registry, path=str(counts))
    assert registry.get_sample_value("chatlock_claims_total", {"by": "rq"}) == 2
    assert sorted(path.name for path in counts.iterdir()) == [f"counter_{worker.pid}.db", f"histogram_{worker.pid}.db"]


def test_stock_rq_worker_runs_it_too(served_pg: Served) -> None:
    served_pg.store("thread")
    Poller(served_pg).dispatch()
    url = served_pg.settings["redis_url"]
    stock = ["worker", "chatlock", "--burst", "--serializer", "json", "--url", url]
    environment = served_pg.environment()

    def work() -> None:
        os.environ.update(environment)
        sys.modules.pop(CHAT_MODULE, None)
        rq.cli.main(stock, standalone_mode=False)

    assert served_pg.keep(Child.fork(work)).wait() == 0
    served_pg.answered("thread")


def test_async_chat_runs_in_a_work_horse(served_pg: Served) -> None:
    served_pg.store("thread")
    Poller(served_pg).dispatch()
    served_pg.start("worker", chat=f"{CHAT_MODULE}:async_chat")
    served_pg.answered("thread")


@pytest.mark.parametrize("name", ["chat", "async_chat"])
def test_chat_that_was_used_before_the_fork_serves_in_the_work_horse(served: Served, name: str) -> None:
    """B54 (c), B55: the worker's process has used the object, its connections and OS threads, before it forks."""
    for thread in ("one", "two"):
        served.store(thread)
    Poller(served).dispatch()
    served.start("worker", chat=f"{CHAT_MODULE}:{name}", SERVED_USED_BEFORE_FORK=1)
    served.answered("one", "two")
    assert len({entry.pid for entry in served.journal.enters()}) == 2
    assert served.client.verify().ok
    if served.database.kind == "sqlite":
        with closing(sqlite3.connect(served.database.url.removeprefix("sqlite:///"))) as file:
            assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_answer_of_a_worker_wakes_who_waits_elsewhere(
    served_pg: Served, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work-horse ends right after its turn, but not before its wake was sent: the next look is an hour away."""
    monkeypatch.setattr(waiters, "LOOK_EVERY_S", 3600)
    served_pg.start("worker")
    served_pg.hold("thread")
    with (
        Chatlock(served_pg.database.url, tenant=TENANT, poller=False, wake=RedisWake(redis_url)) as web,
        ThreadPoolExecutor(1) as beside,
    ):
        waiting = beside.submit(web.submit, "thread", "hello", message_id="m1", wait_ms=20_000)
        until(lambda: rows(served_pg.database, "SELECT 1 AS one FROM chatlock_due"), what="the stored message")
        Poller(served_pg).dispatch()
        served_pg.journal.wait_enters(1)
        until(lambda: any(waiter.waited for every in web._flows.waiters._by_key.values() for waiter in every))
        served_pg.let_go("thread")
        assert isinstance(waiting.result(), AlreadyAnswered)


# -- wake-ups are hints ------------------------------------------------------------------------------------------------
def test_wake_ups_may_be_lost_and_doubled(served_pg: Served, server: redis.Redis) -> None:
    """B46: nine messages, wake-ups under one id, one id that is not ours, and one that is swallowed."""
    poller = Poller(served_pg)
    served_pg.hold("thread")
    served_pg.store("thread", message_id="m1")
    poller.dispatch()
    lapse(served_pg.database)
    poller.dispatch()
    enqueue(server, "thread", "doubled")
    served_pg.start("worker")
    served_pg.start("worker")
    served_pg.journal.wait_enters(1)
    for i in range(2, 10):
        served_pg.store("thread", message_id=f"m{i}")
        lapse(served_pg.database)
        poller.dispatch()
        enqueue(server, "thread", f"again-{i}")
    until(lambda: server.llen("rq:queue:chatlock") == 0, what="the other worker, which finds nothing to do")
    served_pg.let_go("thread")
    served_pg.answered("thread")
    assert [entry.ids for entry in served_pg.journal.enters()] == [("m1",), tuple(f"m{i}" for i in range(2, 10))]
    assert served_pg.client.verify().ok


def test_message_between_the_turn_and_the_end_of_its_job_is_not_swallowed(
    served_pg: Served, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B46: the finished job still exists under its id. The next wake-up has the next token in its id."""
    poller = Poller(served_pg)
    served_pg.store("thread", message_id="m1")
    poller.dispatch()

    class Late(rq.SimpleWorker):
        job_class = ThreadJob

        def handle_job_success(self, *arguments: Any, **options: Any) -> None:
            if not message_rows(served_pg.database, "thread")[1:]:
                served_pg.store("thread", message_id="m2")
                poller.dispatch()
            super().handle_job_success(*arguments, **options)

    def work() -> None:
        os.environ.update(served_pg.environment())
        queue = rq.Queue("chatlock", connection=server, serializer="json", job_class=ThreadJob)
        Late([queue], connection=server, serializer="json").work(burst=True)

    monkeypatch.delitem(sys.modules, CHAT_MODULE, raising=False)
    assert served_pg.keep(Child.fork(work)).wait() == 0
    assert [entry.ids for entry in served_pg.journal.enters()] == [("m1",), ("m2",)]


@pytest.mark.parametrize("committed", [True, False])
def test_wake_up_before_the_commit_does_nothing_and_harms_nothing(
    served: Served, server: redis.Redis, committed: bool
) -> None:
    """B48: the message of the first wake-up is not committed when its job runs."""
    served.store("other")
    worker = served.start("worker")
    engine = sqlalchemy.create_engine(checked_url(served.database.url))
    with closing(engine.connect()) as connection:
        transaction = connection.begin()
        if served.database.kind == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        served.client.submit("thread", "hello", message_id="m1", conn=connection)
        enqueue(server, "thread")
        until(lambda: not server.exists("rq:job:early"), what="the end of the early job")
        assert served.journal.enters() == []
        if committed:
            transaction.commit()
        else:
            transaction.rollback()
    engine.dispose()
    Poller(served).dispatch()
    served.answered("other", *(["thread"] if committed else []))
    assert {entry.thread for entry in served.journal.enters()} == {"other", *(["thread"] if committed else [])}
    stored = rows(served.database, "SELECT 1 AS one FROM chatlock_threads WHERE thread_id = 'thread'")
    assert len(stored) == committed
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert "Traceback" not in worker.text


def test_pollers_enqueue_one_job(served_pg: Served, server: redis.Redis) -> None:
    """B50: the lease is one conditional write, and even without it the job's id is taken."""
    pollers = [Poller(served_pg) for _ in range(3)]
    served_pg.store("thread")
    for poller in pollers:
        poller.dispatch()
    assert server.llen("rq:queue:chatlock") == 1
    for poller in pollers:
        lapse(served_pg.database)
        poller.dispatch()
    assert server.llen("rq:queue:chatlock") == 1


def test_flushed_redis_costs_one_dispatch_lease(served_pg: Served, server: redis.Redis) -> None:
    poller = Poller(served_pg)
    served_pg.store("thread")
    poller.dispatch()
    server.flushdb()
    poller.dispatch()
    assert server.llen("rq:queue:chatlock") == 0, "the lease is still in force"
    lapse(served_pg.database)
    poller.dispatch()
    served_pg.start("worker")
    served_pg.answered("thread")


def test_redis_that_is_away_holds_up_no_sweep_and_leases_nothing(
    sqlite_database: Database, tmp_path: Path, child: Callable[[Child], Child], caplog: pytest.LogCaptureFixture
) -> None:
    with servers.Valkey() as own:
        served = Served(sqlite_database, tmp_path, child, {"dispatch": "rq", "redis_url": own.url})
        poller = Poller(served)
        served.store("thread")
        own.kill()
        for _ in range(3):
            poller.dispatch()
        assert caplog.messages.count("dispatch.redis_unreachable") == 1
        assert rows(sqlite_database, "SELECT dispatched_until FROM chatlock_due") == [{"dispatched_until": 0}]
        own.start()
        poller.dispatch()
        served.start("worker")
        served.answered("thread")
        served.client.close()


def test_redis_that_hangs_holds_up_no_sweep(sqlite_database: Database) -> None:
    with servers.Valkey() as own:
        given = {"dispatch": "rq", "redis_url": own.url, "wake": "polling", "sweep_ms": 100, "port": 0}
        service = Service(Settings(_env_file=None, url=sqlite_database.url, **given))
        assert own.process
        own.process.send_signal(signal.SIGSTOP)
        service.start()
        until(lambda: service.sweeping.passes >= 3 and service.sweeping.healthy, what="three sweeps")
        assert service.dispatching.passes == 0
        own.process.send_signal(signal.SIGCONT)
        until(lambda: service.dispatching.passes > 0, what="a pass")
        service.drain()


def test_thread_whose_agent_has_no_handler_is_left_alone(served_pg: Served, server: redis.Redis) -> None:
    """B49: it is neither claimed nor released: it comes again at the pace of the dispatch lease, not of the sweep."""
    served_pg.store("thread", agent="nobody")
    worker = served_pg.start("worker")
    Poller(served_pg).dispatch()
    worker.wait_for("due.no_handler")
    until(lambda: server.keys("rq:job:*") == [], what="the end of the job")
    row = thread_row(served_pg.database, "thread")
    assert (row["status"], row["token"]) == ("idle", 0)
    assert rows(served_pg.database, "SELECT dispatched_until > 0 AS leased FROM chatlock_due")[0]["leased"]

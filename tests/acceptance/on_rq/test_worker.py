"""An RQ worker at its end, and before jobs that somebody else wrote."""

from __future__ import annotations

import os
import pickle
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis
import rq
from rq.job import Job

from chatlock import rq_jobs
from chatlock.rq_jobs import FUNCTION
from tests.acceptance.cases.support import TENANT, thread_row, turn_rows, until
from tests.acceptance.on_rq.poller import Poller, lapse
from tests.acceptance.services import Served
from tests.support import servers
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.databases import Database


# -- the end of a worker -----------------------------------------------------------------------------------------------
def horse_of(worker: Child) -> int:
    """The work-horse's pid."""
    (horse,) = psutil.Process(worker.pid).children()
    return horse.pid


def test_sigterm_lets_the_turn_end_then_the_worker(served_pg: Served, server: redis.Redis) -> None:
    worker = served_pg.start("worker", drain_ms=600_000)
    served_pg.hold("thread")
    served_pg.store("thread")
    Poller(served_pg).dispatch()
    served_pg.journal.wait_enters(1)
    served_pg.store("other")
    Poller(served_pg).dispatch()
    worker.send(signal.SIGTERM)
    (registered,) = server.smembers("rq:workers")
    until(lambda: server.hexists(registered, "shutdown_requested_date"), what="a worker that takes no more jobs")
    served_pg.let_go("thread")
    assert worker.wait() == 0
    served_pg.answered("thread")
    assert thread_row(served_pg.database, "other")["token"] == 0


@pytest.mark.parametrize("who", ["worker_drain_ends", "worker_again", "horse_drain_ends"])
def test_sigterm_hands_the_turn_back_uncharged(served_pg: Served, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rq_jobs, "SAME_SIGNAL_S", 0.1)
    worker = served_pg.start("worker", drain_ms=600_000 if who == "worker_again" else 100)
    served_pg.hold("thread")
    served_pg.store("thread")
    Poller(served_pg).dispatch()
    served_pg.journal.wait_enters(1)
    horse = horse_of(worker)
    if who == "horse_drain_ends":
        os.kill(horse, signal.SIGTERM)
        until(lambda: not psutil.pid_exists(horse), what="the end of the work-horse")
    else:
        worker.send(signal.SIGTERM)

        def ended() -> bool:
            if who == "worker_again" and psutil.pid_exists(horse):
                worker.send(signal.SIGTERM)  # one that comes at once after the other is taken for the same
            return not psutil.pid_exists(horse)

        until(ended, what="the end of the work-horse")
        assert worker.wait() == 0
    row = thread_row(served_pg.database, "thread")
    assert (row["status"], row["attempts"], row["stalls"], row["not_before"]) == ("idle", 0, 0, 0)
    assert [turn["state"] for turn in turn_rows(served_pg.database, "thread")] == ["released"]
    served_pg.let_go("thread")
    if who == "horse_drain_ends":  # the worker goes on, and the released thread was due at once
        Poller(served_pg).dispatch()
        served_pg.answered("thread")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_that_waits_for_redis_ends_as_it_is_told(
    sqlite_database: Database, tmp_path: Path, child: Callable[[Child], Child], number: signal.Signals
) -> None:
    with servers.Valkey() as own:
        served = Served(sqlite_database, tmp_path, child, {"dispatch": "rq", "redis_url": own.url})
        own.kill()
        worker = child(served.forked("worker"))
        worker.wait_for("worker.redis_unreachable")
        worker.send(number)
        assert worker.wait() == 0, worker.text
        assert "Traceback" not in worker.text
        served.client.close()


# -- jobs that somebody else wrote -------------------------------------------------------------------------------------
class Touches:
    """A pickle that does something when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def forge(server: redis.Redis, marks: Path) -> list[str]:
    """Jobs as someone who can write to Redis would write them; each would leave a file among the marks."""
    queue = rq.Queue("chatlock", connection=server, serializer="json")
    touch = f"touch {marks}/"
    queue.enqueue("os.system", touch + "json", job_id="json")
    queue.enqueue(FUNCTION, TENANT, "thread", job_id="callback", on_failure=rq.Callback("os.system"))
    queue.enqueue(FUNCTION, [touch + "list"], {"x": 1}, job_id="arguments")
    pickled = rq.Queue("chatlock", connection=server, serializer="pickle")
    pickled.enqueue("os.system", touch + "pickled", job_id="pickled")
    job = Job.create(FUNCTION, (TENANT, "thread"), connection=server, serializer="json", id="bomb", origin="chatlock")
    job.save()
    server.hset("rq:job:bomb", "data", pickle.dumps(Touches(f"{marks}/bomb")))
    queue.push_job_id("bomb")
    job = Job.create(FUNCTION, (TENANT, "thread"), connection=server, serializer="json", id="meta", origin="chatlock")
    job.save()
    server.hset("rq:job:meta", mapping={"meta": pickle.dumps(Touches(f"{marks}/meta")), "result_ttl": "soon"})
    queue.push_job_id("meta")
    server.rpush("rq:queue:chatlock", b"\xff\xfe")
    return ["json", "callback", "arguments", "pickled", "bomb", "meta"]


def test_forged_jobs_are_refused_and_removed_and_the_worker_goes_on(served_pg: Served, server: redis.Redis) -> None:
    marks = served_pg.directory / "marks"
    marks.mkdir()
    forged = forge(server, marks)
    served_pg.store("thread")
    Poller(served_pg).dispatch()
    worker = served_pg.start("worker")
    served_pg.answered("thread")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert list(marks.iterdir()) == []
    assert worker.text.count("job.refused") == len(forged) + 1
    assert [name for name in forged if server.exists(f"rq:job:{name}")] == []
    assert "touch" not in worker.text

    # The control: RQ's own worker does what the first one asks for.
    rq.Queue("chatlock", connection=server, serializer="json").enqueue("os.system", f"touch {marks}/json")

    def work() -> None:
        rq.SimpleWorker(["chatlock"], connection=server, serializer="json").work(burst=True)

    assert served_pg.keep(Child.fork(work)).wait() == 0
    assert [path.name for path in marks.iterdir()] == ["json"]


def test_worker_that_was_killed_before_its_claim_is_replaced_after_the_lease(
    served_pg: Served, server: redis.Redis
) -> None:
    """The job stays `started` for RQ; the dispatch lease decides, not RQ's clean-up a minute later."""
    poller = Poller(served_pg, dispatch_lease_ms=1_000)
    served_pg.store("thread")
    poller.dispatch()
    (job_id,) = server.lrange("rq:queue:chatlock", 0, -1)
    server.lmove("rq:queue:chatlock", "rq:queue:chatlock:intermediate")
    server.hset(b"rq:job:" + job_id, mapping={"status": "started", "started_at": "2026-01-01T00:00:00.000000Z"})
    lapse(served_pg.database)
    poller.dispatch()
    served_pg.start("worker")
    served_pg.answered("thread")

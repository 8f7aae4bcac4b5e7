"""rq_jobs without a server: what a wake-up is, which jobs a worker accepts, when a job is replaced."""

from __future__ import annotations

import io
import json
import logging
import pickle
import signal
import sys
import threading
import zlib
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fakeredis
import pytest
import redis
import rq
from rq.exceptions import DuplicateJobError, NoSuchJobError, StopRequested
from rq.job import Job, JobStatus
from rq.utils import now
from rq.worker import WorkerStatus

from chatlock import Chatlock, InvalidInput, rq_jobs
from chatlock.hooks import Hooks
from chatlock.inputs import Key, key_hash
from chatlock.io import drive
from chatlock.ops.due import Dispatched
from chatlock.rq_jobs import FUNCTION, QUEUED_MAX, RqSender, ThreadJob, ThreadQueue, ThreadWorker, _serve, work
from chatlock.settings import Settings
from chatlock.wake.channel import Channel
from tests.acceptance import served as application
from tests.support.processes import Child
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = Key("t", "slack:C1:\N{SNOWMAN}")
WAKE_UP = Dispatched(KEY, 2, 41)
JOB_ID = f"{key_hash(KEY)}-2-41"


def settings(**given: Any) -> Settings:
    """Settings of a poller that dispatches over RQ, untouched by the environment."""
    told = {"url": "sqlite:///chat.db", "dispatch": "rq", "redis_url": "redis://nowhere:1/0", **given}
    return Settings(_env_file=None, **told)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """A Redis in memory, whatever URL is asked for."""
    connection = fakeredis.FakeStrictRedis(server=fakeredis.FakeServer())
    monkeypatch.setattr(redis.Redis, "from_url", lambda url, **options: connection)
    return connection


def fetched(server: redis.Redis, job_id: str = JOB_ID) -> Job:
    return ThreadJob.fetch(job_id, server, "json")


# -- the poller's side -------------------------------------------------------------------------------------------------
def test_job_names_the_wake_up_and_carries_the_key_alone(server: redis.Redis) -> None:
    RqSender(settings()).send(WAKE_UP, "turns")
    assert server.lrange("rq:queue:chatlock", 0, -1) == [JOB_ID.encode()]
    stored: dict[bytes, bytes] = server.hgetall(f"rq:job:{JOB_ID}")  # type: ignore[assignment]
    assert json.loads(zlib.decompress(stored[b"data"])) == [FUNCTION, None, ["t", KEY.thread], {}]
    assert (stored[b"timeout"], stored[b"result_ttl"], stored[b"failure_ttl"]) == (b"7200", b"0", b"60")
    others = b"".join(value for name, value in stored.items() if name != b"data")
    assert KEY.thread.encode() not in others, "descriptions are logged"


def test_retried_thread_goes_before_those_that_wait_for_their_first_turn(server: redis.Redis) -> None:
    """What a dead worker held has waited for a lease already."""
    sender = RqSender(settings())
    for number, retried in enumerate((False, True, False), start=1):
        sender.send(Dispatched(KEY, 1, number, retried), "turns")
    tokens = [name.decode().rpartition("-")[2] for name in server.lrange("rq:queue:chatlock", 0, -1)]
    assert tokens == ["2", "1", "3"]


def test_wake_up_that_is_queued_already_is_not_queued_again(server: redis.Redis) -> None:
    sender = RqSender(settings())
    for _ in range(3):
        sender.send(WAKE_UP, "turns")
    assert server.llen("rq:queue:chatlock") == 1
    sender.send(Dispatched(KEY, 2, 42), "turns")
    sender.send(WAKE_UP, "replies")
    assert server.llen("rq:queue:chatlock") == 3


@pytest.mark.parametrize(
    ("status", "age_s", "taken", "replaced"),
    [
        ("queued", 3600, False, False),
        ("queued", 3600, True, True),
        ("queued", 1, True, False),
        ("started", 3600, True, True),
        ("started", 1, True, False),
        ("failed", 3600, False, True),
        ("failed", 1, False, False),
    ],
)
def test_job_that_died_before_its_claim_is_replaced_after_a_dispatch_lease(
    status: str, age_s: int, taken: bool, replaced: bool, server: redis.Redis
) -> None:
    """A worker that is killed between dequeue and claim must not keep its thread waiting for RQ's own clean-up."""
    sender = RqSender(settings(dispatch_lease_ms=15_000))
    sender.send(WAKE_UP, "turns")
    job = fetched(server)
    job.enqueued_at = job.started_at = now() - timedelta(seconds=age_s)
    job.save()
    job.set_status(JobStatus(status))
    if taken or status != "queued":
        server.lmove("rq:queue:chatlock", "rq:queue:chatlock:intermediate")
    sender.send(WAKE_UP, "turns")
    assert server.llen("rq:queue:chatlock") == (1 if replaced or not (taken or status != "queued") else 0)
    assert (fetched(server).get_status() == JobStatus.QUEUED) is (replaced or status == "queued")
    if replaced:
        assert server.llen("rq:queue:chatlock:intermediate") == 0


def test_queue_takes_no_more_than_its_room(server: redis.Redis) -> None:
    sender = RqSender(settings())
    assert sender.room() == QUEUED_MAX
    server.rpush("rq:queue:chatlock", *range(QUEUED_MAX + 5))
    assert sender.room() == 0


def duplicate(*arguments: object) -> None:
    """Redis answered the enqueue, and went."""
    raise DuplicateJobError


def test_redis_that_is_away_is_told_once(server: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    sender = RqSender(settings())
    server.connection_pool.connection_kwargs["server"].connected = False
    assert [sender.room() for _ in range(3)] == [0, 0, 0]
    sender.maintain()
    with pytest.raises(ConnectionError):
        sender.send(WAKE_UP, "turns")
    sender._enqueue = duplicate  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        sender.send(WAKE_UP, "turns")
    assert caplog.messages == ["dispatch.redis_unreachable"]
    server.connection_pool.connection_kwargs["server"].connected = True
    assert sender.room() > 0
    assert caplog.messages == ["dispatch.redis_unreachable", "dispatch.redis_reachable"]


# -- the worker's side -------------------------------------------------------------------------------------------------
def made(server: redis.Redis, **changed: Any) -> Job:
    """A wake-up as the poller writes it, but for what is changed."""
    given: dict[str, Any] = {"func": FUNCTION, "args": ("t", "thread"), "serializer": "json", "id": "forged"}
    job = Job.create(**{**given, **changed}, connection=server)
    job.save()
    return job


def test_wake_up_is_accepted(server: redis.Redis) -> None:
    job = made(server)
    assert fetched(server, job.id).args == ["t", "thread"]


FORGED: dict[str, Callable[[redis.Redis], object]] = {
    "another_function": lambda server: made(server, func="os.system", args=("touch /tmp/forged",)),
    "another_function_of_ours": lambda server: made(server, func="chatlock.rq_jobs.work"),
    "a_method": lambda server: made(server, func="x".upper, args=("t", "thread")),
    "one_argument": lambda server: made(server, args=("t",)),
    "three_arguments": lambda server: made(server, args=("t", "thread", "x")),
    "a_number": lambda server: made(server, args=("t", 5)),
    "a_list": lambda server: made(server, args=("t", ["thread"])),
    "keywords": lambda server: made(server, args=("t", "thread"), kwargs={"x": 1}),
    "success_callback": lambda server: made(server, on_success=rq.Callback("os.system")),
    "failure_callback": lambda server: made(server, on_failure=rq.Callback("os.system")),
    "stopped_callback": lambda server: made(server, on_stopped=rq.Callback("os.system")),
    "pickled": lambda server: made(server, serializer="pickle"),
    "group": lambda server: made(server, group_id="g"),
    "retries": lambda server: made(server).connection.hset("rq:job:forged", "retries_left", 5),
    "repeats": lambda server: made(server).connection.hset("rq:job:forged", "repeats_left", 5),
    "dependency": lambda server: made(server).connection.hset("rq:job:forged", "dependency_ids", '["x"]'),
    "webhook": lambda server: made(server).connection.hset(
        "rq:job:forged", "webhooks", '[{"url": "http://inside/", "job_status": "finished"}]'
    ),
    "rate_limit": lambda server: made(server).connection.hset(
        "rq:job:forged", mapping={"rate_limit_key": "k", "rate_limit_concurrency": 1}
    ),
    "timeout_that_is_no_number": lambda server: made(server).connection.hset("rq:job:forged", "timeout", "soon"),
    "no_json": lambda server: made(server).connection.hset("rq:job:forged", "data", b"\xff\xfe"),
    "deep_json": lambda server: made(server).connection.hset("rq:job:forged", "data", b"[" * 100_000),
    "no_list": lambda server: made(server).connection.hset("rq:job:forged", "data", b"5"),
    "a_pickle": lambda server: made(server).connection.hset("rq:job:forged", "data", pickle.dumps(("f", None, (), {}))),
    "no_data": lambda server: server.hset("rq:job:forged", "origin", "chatlock"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_any_other_job_is_as_if_it_had_never_been_there(
    forged: str, server: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    FORGED[forged](server)
    with pytest.raises(NoSuchJobError):
        fetched(server, "forged")
    if forged != "no_data":  # what has no data is no job for RQ either
        assert not server.exists("rq:job:forged")
        assert caplog.messages == ["job.refused"]
        assert "touch" not in caplog.text


def test_id_that_cannot_be_one_is_dropped_and_the_next_is_taken(
    server: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    job = made(server, id="good")
    server.rpush("rq:queue:chatlock", b"\xff\xfe", "../x", "a:b", job.id)
    taken = ThreadQueue.lmove(server, "rq:queue:chatlock", None)
    assert taken[1] == b"good"
    assert server.lrange("rq:queue:chatlock:intermediate", 0, -1) == [b"good"]
    assert caplog.messages == ["job.refused"] * 3
    assert ThreadQueue.lmove(server, "rq:queue:chatlock", None) is None


def test_clean_up_of_dead_workers_jobs_calls_nothing(server: redis.Redis) -> None:
    """RQ runs an abandoned job's failure callback in the process that cleans up: here, the poller."""
    job = made(server, on_failure=rq.Callback("tests.unit.test_rq_jobs.never_called"), origin="chatlock")
    job.set_status(JobStatus.STARTED)
    server.zadd("rq:wip:chatlock", {f"{job.id}:execution": 1})
    RqSender(settings()).maintain()
    assert not server.exists("rq:job:forged")
    assert server.zcard("rq:wip:chatlock") == 0
    assert not called

    # The control: RQ's own registry calls it.
    job = made(server, on_failure=rq.Callback("tests.unit.test_rq_jobs.never_called"), origin="chatlock")
    job.set_status(JobStatus.STARTED)
    server.zadd("rq:wip:chatlock", {f"{job.id}:execution": 1})
    rq.Queue("chatlock", connection=server, serializer="json").started_job_registry.cleanup()
    assert called


called: list[object] = []


def never_called(*arguments: object) -> None:
    called.append(arguments)


class HeldChannel(Channel):
    """A wake whose sending the test holds."""

    def __init__(self) -> None:
        self.gate, self.sent = Gate(), list[str]()
        super().__init__()

    def _send(self, names: list[str]) -> None:
        self.gate.hold()
        self.sent += names

    def _listen(self) -> None: ...

    def _disconnect(self) -> None: ...


def test_work_horse_goes_only_when_its_wakes_were_sent() -> None:
    """It ends by os._exit: what its sender has not sent by then is lost."""
    wake = HeldChannel()
    wake.open(lambda name: None)
    wake.flush()

    async def run_due(key: Key, by: str) -> None:
        wake.send("name")

    flows = SimpleNamespace(config=SimpleNamespace(wake=wake), hooks=Hooks())
    client = SimpleNamespace(_run_due=run_due, _flows=flows)
    host = SimpleNamespace(client=client, run=drive)
    serving = threading.Thread(target=_serve, args=(host, KEY))
    serving.start()
    wake.gate.wait_entered()
    serving.join(0.1)
    assert serving.is_alive()
    wake.gate.open()
    serving.join()
    assert wake.sent == ["name"]
    wake.close()


@pytest.mark.parametrize("missing", ["chat", "redis_url"])
def test_worker_needs_a_chat_and_a_redis(missing: str) -> None:
    given = {"chat": "tests.acceptance.served:chat", "redis_url": "redis://nowhere:1/0", "dispatch": "http"}
    given |= {"http_url": "http://127.0.0.1/", "http_secret": "s"}
    with pytest.raises(InvalidInput, match="CHATLOCK_CHAT"):
        work(settings(**{**given, missing: None}))


def test_worker_refuses_a_chat_object_of_another_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its poller would dispatch threads that it does not find."""
    monkeypatch.setattr("chatlock.rq_jobs._work_until_redis_fails", lambda *given: True)
    ours, other = application.URL, "sqlite:///other.db"
    work(settings(url=ours, chat="tests.acceptance.served:chat"))
    with pytest.raises(InvalidInput, match="are of different databases"):
        work(settings(url=other, chat="tests.acceptance.served:chat"))


def test_driver_is_loaded_before_any_fork(child: Callable[[Child], Child]) -> None:
    """Else every work-horse would load it anew, which was half of its work."""

    def load() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "psycopg"]:
            del sys.modules[name]
        with Chatlock("postgresql+psycopg://nobody@nowhere:1/nothing", poller=False) as chat:
            assert "psycopg" not in sys.modules
            chat._executor.load_driver()
            assert "psycopg" in sys.modules

    assert child(Child.fork(load)).wait() == 0


@pytest.mark.parametrize("lost", ["heard while busy", "swallowed"])
def test_request_to_stop_that_did_not_end_the_worker_ends_its_next_wait(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """A worker that has just ended a job looks whether it is to stop, and then says that it is idle."""
    monkeypatch.setattr(ThreadQueue, "dequeue_any", lambda *given, **named: pytest.fail("it waits for another job"))
    monkeypatch.setattr(ThreadWorker, "_set_ip_address", lambda *given: None)  # older fakes know no CLIENT SETNAME
    worker = ThreadWorker([ThreadQueue("chatlock", connection=server)], connection=server)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        if lost == "heard while busy":
            worker.set_state(WorkerStatus.BUSY)
            worker.request_stop(signal.SIGTERM, None)
        else:
            with pytest.raises(StopRequested):
                worker.request_stop(signal.SIGTERM, None)
        with pytest.raises(StopRequested):
            worker.dequeue_job_and_maintain_ttl(5)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def test_stop_that_comes_while_a_line_is_logged_is_heeded() -> None:
    """Logging keeps every Exception of its handlers to itself."""

    class Stopping(io.StringIO):
        def write(self, text: str) -> int:
            signal.raise_signal(signal.SIGTERM)
            return len(text)

    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    rq_jobs._heed_stop()
    try:
        record = logging.makeLogRecord({"msg": "worker.redis_unreachable"})
        with pytest.raises(rq_jobs._Stopped):
            logging.StreamHandler(Stopping()).handle(record)
    finally:
        for number, handler in before:
            signal.signal(number, handler)

"""Turns on RQ workers.  A job is a wake-up for one thread and no more: whatever becomes of it, the tables decide.

RqSender is the poller's side, run_thread is what a job runs, and ThreadWorker is a worker that runs nothing else.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

import redis
import rq
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq.exceptions import DuplicateJobError, NoSuchJobError, StopRequested
from rq.job import Job, JobStatus
from rq.registry import StartedJobRegistry
from rq.utils import now
from rq.worker import WorkerStatus

from chatlock.errors import InvalidInput
from chatlock.hooks import JobEnded
from chatlock.hosting import Host, load_chat_of
from chatlock.inputs import Key, checked_key, key_hash
from chatlock.observe import SHARED_FILES, prometheus, share_files_as
from chatlock.ops.due import Dispatched
from chatlock.protocol import Limits
from chatlock.settings import Settings
from chatlock.termination import Termination

log = logging.getLogger("chatlock")

FUNCTION = "chatlock.rq_jobs.run_thread"
SERIALIZER = "json"
FAILED_S = 60
TURN_MAX_S = Limits().window_cap_ms // 1_000
"""When RQ gives a job up: no window is longer, so that the thread was freed before."""
QUEUED_MAX = 1_000
SOCKET_S = 2.0
SAME_SIGNAL_S = 1.0
AGAIN_S = 1.0
WORKER_TTL_S = 20
"""RQ waits for a job 15 s less at a time: a signal that came right before it began to wait is heard after that."""

_JOB_ID = re.compile(rb"[A-Za-z0-9_-]+")


# -- what a job runs ---------------------------------------------------------------------------------------------------
def run_thread(tenant: str, thread: str) -> None:
    """Runs what is due of a thread with the chat object of CHATLOCK_CHAT, then sends its replies that are ready.

    Returns quietly where there is nothing to do.  SIGTERM of a work-horse lets the turn run for drain_ms and then
    releases it uncharged; a second one, a second or more later, releases it at once.
    """
    settings = Settings()
    host = _host(settings.chat or "", settings.url.get_secret_value(), os.getpid())
    key = checked_key(tenant, thread)
    if not _in_horse():
        _serve(host, key)
        return
    drain = _Drain(host, settings.drain_ms)
    with Termination(drain.run, drain.hurry, apart_s=SAME_SIGNAL_S):
        if not _Early.terminated:
            _serve(host, key)
        drain.done()


@cache
def _host(path: str, url: str, pid: int) -> Host:
    """This process's own: connections, OS threads and counters are made after the fork."""
    host = Host(load_chat_of(path, url))
    if _in_horse():
        share_files_as(os.getppid())
    host.open()
    return host


def _serve(host: Host, key: Key) -> None:
    flows = host.client._flows
    try:
        host.run(host.client._run_due(key, "rq"))
        if flows.config.wake is not None:
            flows.config.wake.flush()
    finally:
        flows.hooks.tell(JobEnded())


class _Early:
    """SIGTERM between the fork and run_thread: no turn is begun."""

    terminated = False

    @classmethod
    def heard(cls, number: int, frame: Any) -> None:
        cls.terminated = True


def _in_horse() -> bool:
    """Whether SIGTERM is ours to handle here: in a worker that does not fork it is the worker's."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _Early.heard)


class _Drain:
    """The end of a work-horse whose turn may not have ended."""

    def __init__(self, host: Host, drain_ms: int) -> None:
        self._host, self._drain_s = host, drain_ms / 1000
        self._over, self._done = threading.Event(), False

    def run(self) -> None:
        self._host.client._flows.closing = True
        self._over.wait(self._drain_s)
        if not self._done:
            self._host.close(0)
            os._exit(1)

    def done(self) -> None:
        self._done = True
        self._over.set()

    def hurry(self) -> None:
        self._over.set()


# -- the worker --------------------------------------------------------------------------------------------------------
class Refused(Exception):
    """A job that is more, or other, than a wake-up."""


class ThreadJob(Job):
    """A job as ThreadWorker accepts it: FUNCTION with two strings, and nothing else to call, to send or to start."""

    @classmethod
    def fetch(cls, id: str, connection: Any = None, serializer: Any = None) -> Job:
        """A refused job is logged, deleted, and from then on as if it had never been there."""
        try:
            return super().fetch(id, connection, serializer)
        except (NoSuchJobError, redis.RedisError):
            raise
        except Exception as error:  # noqa: BLE001  whatever a forged hash makes RQ raise
            _log_refused(id, str(error) if isinstance(error, Refused) else type(error).__name__)
            with suppress(ValueError):
                connection.delete(cls.key_for(id))
            raise NoSuchJobError from None

    def restore(self, raw_data: Any) -> Any:
        """As RQ reads it; Refused unless it is a wake-up and no more."""
        super().restore(raw_data)
        if (self.func_name, self.instance, self.kwargs) != (FUNCTION, None, {}):
            raise Refused("another function")
        if len(self.args) != 2 or any(type(argument) is not str for argument in self.args):
            raise Refused("other arguments")
        if self._success_callback_name or self._failure_callback_name or self._stopped_callback_name or self.webhooks:
            raise Refused("a callback")
        if self._dependency_ids or self.group_id or self.has_rate_limit or self.repeats_left or self.retries_left:
            raise Refused("more than one run")


class ThreadQueue(rq.Queue):
    """A queue of wake-ups."""

    job_class = ThreadJob

    @classmethod
    def lmove(cls, connection: Any, queue_key: str, timeout: int | None) -> Any:
        """Takes the next id; what cannot be one is logged and dropped."""
        while True:
            taken = super().lmove(connection, queue_key, timeout)
            if taken is None or _JOB_ID.fullmatch(taken[1]):
                return taken
            _log_refused(repr(taken[1]), "no job id")
            connection.lrem(f"{queue_key}:intermediate", 1, taken[1])


class ThreadWorker(rq.Worker):
    """A worker that runs FUNCTION and nothing else, whoever wrote the job; its SIGTERM hands the turn back."""

    job_class = ThreadJob
    queue_class = ThreadQueue
    max_connection_wait_time = 5.0
    asked_to_stop = False

    def request_stop(self, signum: Any, frame: Any) -> None:
        """Takes no more jobs, and lets the work-horse drain."""
        self.asked_to_stop = True
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]  # RQ annotates a part of itself

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Comes before each wait for a job: a request that came while it was busy, or that was swallowed, is heeded."""
        super().heartbeat(timeout, pipeline)
        if self.asked_to_stop and self.get_state() == WorkerStatus.IDLE:
            raise StopRequested

    def handle_warm_shutdown_request(self) -> None:
        """See request_stop."""
        super().handle_warm_shutdown_request()  # type: ignore[no-untyped-call]  # RQ annotates a part of itself
        self._terminate_horse()

    def request_force_stop(self, signum: int, frame: Any) -> None:
        """The work-horse drains no longer; when it has ended, so do we."""
        self._terminate_horse()

    def _terminate_horse(self) -> None:
        if self.horse_pid:
            with suppress(ProcessLookupError):
                os.kill(self.horse_pid, signal.SIGTERM)

    def fork_work_horse(self, job: Job, queue: Any) -> None:
        """A work-horse that was forked while we were asked to stop is told so too."""
        super().fork_work_horse(job, queue)
        if self.asked_to_stop:
            self._terminate_horse()

    def setup_work_horse_signals(self) -> None:
        """run_thread drains; before it begins, SIGTERM only keeps it from beginning."""
        super().setup_work_horse_signals()  # type: ignore[no-untyped-call]  # RQ annotates a part of itself
        signal.signal(signal.SIGTERM, _Early.heard)

    def maintain_heartbeats(self, job: Job, execution: Any) -> None:
        """Redis may be away while the turn runs."""
        try:
            super().maintain_heartbeats(job, execution)
        except redis.RedisError as error:
            log.warning("worker.redis_unreachable", extra={"error": type(error).__name__})


def work(settings: Settings) -> None:
    """Runs a worker until SIGTERM.  The chat's module is imported once, before any fork; connections are made after."""
    if settings.chat is None or settings.redis_url is None:
        raise InvalidInput("bad_worker", "a worker needs CHATLOCK_CHAT=module:name and CHATLOCK_REDIS_URL")
    chat = load_chat_of(settings.chat, settings.url.get_secret_value())
    chat._executor.load_driver()
    if SHARED_FILES in os.environ:
        prometheus(chat)
    with suppress(StopRequested, _Stopped):
        while not _work_until_redis_fails(settings.redis_url.get_secret_value(), settings.queue):
            time.sleep(AGAIN_S)


def _work_until_redis_fails(redis_url: str, name: str) -> bool:
    """Whether the worker ended because it was asked to; raises if it was asked while it had no job."""
    _heed_stop()
    worker = None
    try:
        connection = redis.Redis.from_url(redis_url)
        queue = ThreadQueue(name, connection=connection, serializer=SERIALIZER)
        options: dict[str, Any] = {"serializer": SERIALIZER, "worker_ttl": WORKER_TTL_S, "log_job_description": False}
        worker = ThreadWorker([queue], connection=connection, **options)
        log.info("worker.started", extra={"queue": name})
        worker.work(logging_level="WARNING")
    except redis.RedisError as error:
        log.warning("worker.redis_unreachable", extra={"error": type(error).__name__})
    finally:
        _heed_stop()  # what RQ has installed belongs to a worker that is no more
    return worker is not None and worker.asked_to_stop


class _Stopped(BaseException):
    """We were asked to end.  No Exception: logging would swallow one that comes while it writes a line."""


def _heed_stop() -> None:
    def stop(*_: object) -> None:
        raise _Stopped

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _log_refused(job_id: str, reason: str) -> None:
    log.error("job.refused", extra={"job_id": ascii(job_id)[:80], "reason": reason})


# -- the poller's side -------------------------------------------------------------------------------------------------
class RqSender:
    """Enqueues one job for each wake-up.  Its id names thread, incarnation and token, so that a doubled one is seen."""

    def __init__(self, settings: Settings) -> None:
        if settings.redis_url is None:
            raise ValueError("dispatch=rq needs redis_url")
        self._redis = redis.Redis.from_url(
            settings.redis_url.get_secret_value(),
            socket_timeout=SOCKET_S,
            socket_connect_timeout=SOCKET_S,
            retry=Retry(NoBackoff(), 1),
        )
        self._queue = ThreadQueue(settings.queue, connection=self._redis, serializer=SERIALIZER)
        self._lease = timedelta(milliseconds=settings.dispatch_lease_ms)
        self._reachable = True

    def room(self) -> int:
        """See Sender.  What does not fit waits in SQL, where it can be seen, ordered and cancelled."""
        try:
            queued = self._queue.count
        except redis.RedisError as error:
            self._lost(error)
            return 0
        if not self._reachable:
            log.warning("dispatch.redis_reachable")
            self._reachable = True
        return max(0, QUEUED_MAX - queued)

    def send(self, wake_up: Dispatched, purpose: str) -> None:
        """See Sender.  Raises ConnectionError."""
        job_id = f"{key_hash(wake_up.key)}-{wake_up.incarnation}-{wake_up.token}"
        if purpose == "replies":  # a wake-up for turns with the same token must not be taken for this one
            job_id += "-replies"
        try:
            try:
                self._enqueue(job_id, wake_up)
            except DuplicateJobError:
                self._replace_abandoned(job_id, wake_up)
        except redis.RedisError as error:
            self._lost(error)
            raise ConnectionError("Redis cannot be reached") from None

    def _enqueue(self, job_id: str, wake_up: Dispatched) -> None:
        self._queue.enqueue(
            FUNCTION,
            wake_up.key.tenant,
            wake_up.key.thread,
            job_id=job_id,
            unique=True,
            result_ttl=0,
            failure_ttl=FAILED_S,
            job_timeout=TURN_MAX_S,
            description=job_id[:12],
            at_front=wake_up.retried,
        )

    def _replace_abandoned(self, job_id: str, wake_up: Dispatched) -> None:
        """A job that left the queue longer than a dispatch lease ago, and whose thread is still due under the same
        token, died before its claim.  One that only seems so runs twice: the second finds nothing to do.
        """
        try:
            job = ThreadJob.fetch(job_id, self._redis, self._queue.serializer)
            left_at = job.started_at or job.enqueued_at
            waiting = job.get_status(refresh=False) == JobStatus.QUEUED and not self._taken(job_id)
        except NoSuchJobError:  # it has ended, or was refused, this very moment
            left_at, waiting = None, False
        if waiting or (left_at is not None and now() - left_at < self._lease):
            return
        self._redis.delete(Job.key_for(job_id))
        self._redis.lrem(self._queue.intermediate_queue_key, 0, job_id)
        with suppress(DuplicateJobError):
            self._enqueue(job_id, wake_up)

    def _taken(self, job_id: str) -> bool:
        """Whether a worker has taken the id from the queue and not begun it."""
        return job_id.encode() in self._redis.lrange(self._queue.intermediate_queue_key, 0, -1)

    def maintain(self) -> None:
        """Jobs of workers that died are marked failed, so that they expire."""
        try:
            StartedJobRegistry(queue=self._queue, job_class=ThreadJob).cleanup()
        except redis.RedisError as error:
            self._lost(error)

    def close(self) -> None:
        """See Sender."""
        self._redis.close()

    def _lost(self, error: Exception) -> None:
        if self._reachable:
            log.error("dispatch.redis_unreachable", extra={"error": type(error).__name__})
        self._reachable = False

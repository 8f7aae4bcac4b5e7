"""Chatlock, the client for sync code: a shell of a few lines a method over the flows.  async_client.py is its twin."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from chatlock.admin import Admin, Swept, act
from chatlock.errors import InvalidInput, TurnNotGranted
from chatlock.executor import Executor
from chatlock.flows import Config, Flows
from chatlock.handlers import Event, handler_of
from chatlock.io import AsyncIo, Io, SyncIo, drive
from chatlock.ops.audit import Receipt
from chatlock.ops.claim import Granted
from chatlock.ops.submit import Submission
from chatlock.ops.verify import Verified
from chatlock.polling import BATCH, Poller
from chatlock.protocol import POLICIES, AlreadyAnswered, Answered, Limits, Outcome, PolicyName
from chatlock.sweep import Sweep
from chatlock.turn import Turn, TurnCore, enter_turn, exit_turn
from chatlock.wake.channel import Channel

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

WAIT_MS = 30_000


class SubmitOptions(TypedDict, total=False):
    """What submit, begin, turn and stream take beside the thread and the payload.

    message_id: the caller's own id, on which the message is deduped (default: a new one, in the outcome).  tenant: the
    owner, from trusted code.  agent: whose handler is to run ("default").  policy: what the message does while a turn
    runs.  wait_ms: how long to wait for the thread (default 30,000; 0 = not at all, None = until there is an outcome);
    it never cuts off a handler that runs.  recreate: start the next incarnation of a deleted thread.
    """

    message_id: str | None
    tenant: str | None
    agent: str
    policy: PolicyName | None
    wait_ms: int | None
    recreate: bool


class ClientOptions(TypedDict, total=False):
    """How a client is made.

    tenant: the default owner of threads.  policy: the default for submit ("enqueue").  poller: sweep in this
    process and run due turns of its handlers (True), at most turns_max at once (16).  pool_size: database
    connections (5). pooler="transaction": behind a transaction pooler.  heartbeat=False: the lease is the window.
    limits: times and bounds.
    wake: RedisWake or PostgresWake, so that waiters in other processes start at once (None: they look every second).
    """

    tenant: str | None
    policy: PolicyName
    poller: bool
    turns_max: int
    pool_size: int
    pooler: Literal["transaction"] | None
    heartbeat: bool
    limits: Limits
    wake: Channel | None


Source: TypeAlias = "str | URL | Engine | AsyncEngine"

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """What both shells share: construction, handlers, the poller's wiring."""

    def __init__(self, source: Source, io: Callable[[int], Io], options: ClientOptions) -> None:
        unknown = options.keys() - ClientOptions.__annotations__.keys()
        if unknown:
            raise InvalidInput("bad_option", f"unknown option: {', '.join(sorted(unknown))}")
        policy, pooler = options.get("policy", "enqueue"), options.get("pooler")
        pool_size, turns_max = options.get("pool_size", 5), options.get("turns_max", 16)
        if policy not in POLICIES:
            raise InvalidInput("bad_policy", f"policy must be one of {', '.join(POLICIES)}")
        if pooler not in (None, "transaction"):
            raise InvalidInput("bad_pooler", 'pooler must be None or "transaction"')
        if pool_size < 1 or turns_max < 1:
            raise InvalidInput("bad_size", "pool_size and turns_max must be at least 1")
        limits = options.get("limits") or Limits()
        config = Config(options.get("tenant"), policy, limits, options.get("heartbeat", True), options.get("wake"))
        self._executor = Executor(source, pool_size=pool_size, pooler=pooler)
        self._flows = Flows(io(pool_size), self._executor, config)
        self._sweep = Sweep(self._executor, limits, self._flows.windows)
        self._admin = Admin(self._flows, self._sweep)
        self._turns_max, self._started = turns_max, 0
        self._counting = threading.Lock()
        self._poller: Poller | None = None
        if options.get("poller", True):
            self._poller = Poller(self._sweep, self._agents, self._capacity, self._start, limits.sweep_ms)
            self._flows.nudge = self._poller.nudge
        _clients.add(self)

    def _after_fork(self) -> None:
        self._counting, self._started = threading.Lock(), 0
        self._flows.after_fork()
        if self._poller is not None:
            self._poller.after_fork()
        io = self._flows.store.io
        if isinstance(io, AsyncIo):
            io.after_fork()

    def handler(self, agent: str = "default") -> Callable[[F], F]:
        """Registers handler(turn) -> reply as the code that runs the turns of `agent`, in submit and in the poller.

        It may be sync, async, or an async generator whose chunks are streamed.  Its return value is the reply unless it
        called turn.finish; an exception charges the turn and its messages are retried.
        """

        def register(call: F) -> F:
            if agent in self._flows.handlers:
                raise InvalidInput("handler_exists", f"agent {agent!r} has a handler already")
            self._flows.handlers[agent] = handler_of(call, agent)
            return call

        return register

    def _agents(self) -> list[str]:
        return list(self._flows.handlers)

    def _capacity(self) -> int:
        with self._counting:
            return self._turns_max - self._started

    def _count(self, change: int) -> None:
        with self._counting:
            self._started += change

    def _start(self, granted: Granted) -> None:
        raise AssertionError("each shell starts turns in its own world")

    def _ready(self) -> None:
        """First use: the poller begins."""
        if self._poller is not None and not self._flows.closing:
            self._poller.ensure()
        if self._flows.config.wake is not None and not self._flows.closing:
            self._flows.config.wake.open(self._flows.woken)

    def _submission(self, thread: str, payload: object, options: SubmitOptions) -> tuple[Submission, int | None]:
        unknown = options.keys() - SubmitOptions.__annotations__.keys()
        if unknown:
            raise InvalidInput("bad_option", f"unknown option: {', '.join(sorted(unknown))}")
        self._ready()
        what = self._flows.submission(
            thread,
            payload,
            options.get("message_id"),
            options.get("tenant"),
            options.get("agent", "default"),
            options.get("policy"),
            options.get("recreate", False),
        )
        return what, options.get("wait_ms", WAIT_MS)

    def _close(self, drain_ms: int) -> None:
        if self._poller is not None:
            self._poller.close()
        self._flows.close_now(drain_ms)
        io = self._flows.store.io
        if isinstance(io, AsyncIo):
            io.close()


def last_events(outcome: Outcome, streamed: bool) -> list[Event]:
    """The reply, unless its chunks were streamed, and the outcome."""
    last = [Event(f"{outcome.message_id}-outcome", "outcome", outcome)]
    if isinstance(outcome, Answered | AlreadyAnswered) and not streamed:
        last.insert(0, Event(f"{outcome.message_id}-reply", "reply", outcome.reply))
    return last


class Chatlock(Client):
    """The client for sync code: one turn per thread.

    source: a database URL (sqlite:///chat.db, postgresql://..), or an Engine whose URL is used; it always has a pool of
    its own.  Opens nothing until first use.  The other options: see ClientOptions.
    """

    def __init__(self, source: Source, **options: Unpack[ClientOptions]) -> None:
        super().__init__(source, lambda threads: SyncIo(), options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self, drain_ms: int = 0) -> None:
        """Ends the client: waiters are told (Closed), turns get drain_ms to end, what still runs is released
        uncharged.
        """
        self._close(drain_ms)

    def _do(self, flow: Coroutine[Any, Any, T]) -> T:
        self._ready()
        return drive(flow)

    def _start(self, granted: Granted) -> None:
        def work() -> None:
            try:
                drive(self._flows.run_loop(granted))
            finally:
                self._count(-1)
                self._flows.nudge()

        self._count(1)
        threading.Thread(target=work, name="chatlock-turn", daemon=True).start()

    def setup(self) -> None:
        """Creates or upgrades the tables; any number of processes may call it at once.  Raises StoreUnavailable."""
        drive(self._admin.setup())

    def submit(self, thread: str, payload: object, *, conn: Any = None, **options: Unpack[SubmitOptions]) -> Outcome:
        """Stores a message, idempotent on message_id, and brings it to an outcome.

        Effect: if it wins the claim and its agent has a handler here, runs the turn; else waits up to wait_ms.
        Outcomes: Answered (this call ran the turn: show the reply), AlreadyAnswered (another did), Queued, Busy,
        Cancelled, Expired, Superseded, Dead, Parked, Gone, Conflict, Unknown.  conn: store in the caller's
        transaction, without a claim.  Raises InvalidInput, MissingTenant, SchemaMismatch, StoreUnavailable, Closed;
        never the handler's error.
        """
        what, wait_ms = self._submission(thread, payload, options)
        return drive(self._flows.submit_in(conn, what) if conn is not None else self._flows.submit(what, wait_ms))

    def begin(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> Turn | Outcome:
        """Stores a message and waits up to wait_ms for its thread.  A Turn is the caller's to run and to end.

        Prefer turn(), which ends it whatever happens.  A Turn that is dropped is reclaimed after its lease.
        """
        what, wait_ms = self._submission(thread, payload, options)
        got = drive(self._flows.begin(what, wait_ms))
        return Turn(got, self._flows.store) if isinstance(got, TurnCore) else got

    @contextmanager
    def turn(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> Iterator[Turn]:
        """begin() as a context manager.

        An exception fails the turn, charged, and is raised on; KeyboardInterrupt, SystemExit and GeneratorExit release
        it; leaving without finish fails it and raises TurnNotFinished.  Raises TurnNotGranted where there is no turn.
        """
        what, wait_ms = self._submission(thread, payload, options)
        core = drive(self._flows.begin(what, wait_ms))
        if not isinstance(core, TurnCore):
            raise TurnNotGranted(core)
        enter_turn(core)
        try:
            yield Turn(core, self._flows.store)
        except BaseException as error:
            drive(self._flows.leave_turn(core, error))
            raise
        else:
            drive(self._flows.leave_turn(core, None))
        finally:
            exit_turn(core)

    def stream(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> Iterator[Event]:
        """submit() as events: the chunks of an async-generator handler that runs in this process, then the outcome.

        Elsewhere, or later, the stored reply comes as one event.  Leaving early lets the turn run on.
        """
        what, wait_ms = self._submission(thread, payload, options)
        events: queue.SimpleQueue[Event | Outcome | BaseException] = queue.SimpleQueue()
        stop = self._flows.feeds.listen(what.key, what.message_id, events.put)

        def work() -> None:
            try:
                events.put(drive(self._flows.submit(what, wait_ms)))
            except BaseException as error:  # noqa: BLE001  raised again by the reader
                events.put(error)

        threading.Thread(target=work, name="chatlock-stream", daemon=True).start()
        try:
            streamed = False
            while isinstance(item := events.get(), Event):
                streamed = True
                yield item
            if isinstance(item, BaseException):
                raise item
            yield from last_events(item, streamed)
        finally:
            stop()

    def status(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome:
        """The message's outcome now; NotFound for one that this tenant's thread does not have."""
        return self._do(self._admin.status(self._flows.key(tenant, thread), message_id))

    def cancel(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome:
        """Resolves a pending message as Cancelled.  Refused("in_turn") if a turn has it; else its present outcome."""
        return self._do(self._admin.cancel(self._flows.key(tenant, thread), message_id))

    def park(
        self,
        thread: str,
        *,
        turn: int | None = None,
        tenant: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Receipt:
        """Takes the thread out of automatic service.  A running turn must be named, and is then released and fenced
        out.
        """
        return self._do(self._admin.park(self._flows.key(tenant, thread), turn, act("park", actor, reason)))

    def resume(self, thread: str, *, tenant: str | None = None, actor: str | None = None, reason: str = "") -> Receipt:
        """Puts a parked thread back into service, due at once, with its counters cleared."""
        return self._do(self._admin.resume(self._flows.key(tenant, thread), act("resume", actor, reason)))

    def free(
        self,
        thread: str,
        *,
        turn: int,
        force: bool = False,
        tenant: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Receipt:
        """Frees the named turn if it is stale, or, with force, although it lives: it can then commit nothing more."""
        return self._do(self._admin.free(self._flows.key(tenant, thread), turn, force, act("free", actor, reason)))

    def delete(self, thread: str, *, tenant: str | None = None, actor: str | None = None, reason: str = "") -> Receipt:
        """Deletes the thread: a running turn is fenced out, pending messages become deleted, later submits are Gone."""
        return self._do(self._admin.delete(self._flows.key(tenant, thread), act("delete", actor, reason)))

    def redrive(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome:
        """Sends a dead message again, as a new message that names it.  Repeating it does not send it twice."""
        return self._do(self._admin.redrive(self._flows.key(tenant, thread), message_id))

    def verify(self, *, tenant: str | None = None) -> Verified:
        """Checks every invariant in one read-only snapshot, for one tenant or all; `.ok` and `.breaches` tell."""
        return self._do(self._admin.verify(tenant))

    def purge(self, *, older_than_ms: int) -> int:
        """Forgets payloads, replies and unanswered turns that ended longer ago, in bounded batches; ids stay."""
        return self._do(self._admin.purge(older_than_ms))

    def sweep_once(self) -> Swept:
        """One bounded pass of the poller: reclaims what is stale, then runs what is due here, one turn after
        another.
        """
        reclaimed, turns = self._sweep.reclaim_stale(), 0
        while turns < BATCH and (granted := self._sweep.claim_due(self._agents(), 1)):
            drive(self._flows.run_loop(granted[0]))
            turns += 1
        self._sweep.observe_windows()
        return Swept(reclaimed, turns)


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


def _close_all() -> None:
    for client in list(_clients):
        if not client._flows.closing:
            client._close(0)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)

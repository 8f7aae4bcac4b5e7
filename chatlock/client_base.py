"""What both clients share: their options, how they are put together, handlers, and the end of the process."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from chatlock.admin import Admin
from chatlock.errors import ChatlockError, Closed, InvalidInput, place_of
from chatlock.executor import Executor
from chatlock.flows import Config, Flows
from chatlock.handlers import Event, agent_of_decorator, handler_of
from chatlock.hooks import By, Subscriber, Trace
from chatlock.inputs import (
    Key,
    check_callable,
    checked_flag,
    checked_id,
    checked_int,
    checked_limits,
    checked_ms,
    checked_priority,
    checked_wait,
    key_hash,
    new_id,
    payload_json,
)
from chatlock.intake import Choice, Intake
from chatlock.io import AsyncIo, Io
from chatlock.ops.claim import Granted, agent_of, claim_due
from chatlock.ops.submit import Submission
from chatlock.options import WAIT_MS, ClientOptions, Source, SubmitOptions
from chatlock.policies import Overflow
from chatlock.polling import BATCH, Poller
from chatlock.protocol import AlreadyAnswered, Answered, Limits, Outcome
from chatlock.sweep import Sweep
from chatlock.turn_core import TurnCore
from chatlock.writes.intents import Outbox, deliverer_of

if TYPE_CHECKING:
    pass

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

log = logging.getLogger("chatlock")

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """What both shells share: construction, handlers, the poller's wiring."""

    def __init__(self, source: Source, io: Callable[[int], Io], options: ClientOptions) -> None:
        unknown = options.keys() - ClientOptions.__annotations__.keys()
        if unknown:
            raise InvalidInput("bad_option", f"unknown option: {', '.join(sorted(unknown))}")
        pooler = options.get("pooler")
        if pooler not in (None, "transaction"):
            raise InvalidInput("bad_pooler", 'pooler must be None or "transaction"')
        pool_size = checked_int(options.get("pool_size", 5), "pool_size", least=1)
        turns_max = checked_int(options.get("turns_max", 16), "turns_max", least=1)
        if (tenant_turns_max := options.get("tenant_turns_max")) is not None:
            checked_int(tenant_turns_max, "tenant_turns_max", least=1)
        beats = checked_flag(options.get("heartbeat", True), "heartbeat")
        limits = checked_limits(options.get("limits", Limits()))
        intake = Intake(options.get("policy"), options.get("pending_max"), options.get("overflow"))
        config = Config(options.get("tenant"), intake, limits, beats, options.get("wake"))
        self._executor = Executor(source, pool_size=pool_size, pooler=pooler)
        self._flows = Flows(io(pool_size), self._executor, config)
        self._sweep = Sweep(
            self._executor, limits, self._flows.windows, self._flows.hooks, tenant_turns_max=tenant_turns_max
        )
        self._admin = Admin(self._flows, self._sweep)
        self._outbox = Outbox(self._flows.store, self._flows.hooks)
        self._flows.prepare = self._prepare
        self._turns_max, self._started = turns_max, set[object]()
        self._counting = threading.Condition()
        self._poller: Poller | None = None
        if checked_flag(options.get("poller", True), "poller"):
            self._poller = Poller(self._sweep, self._agents, self._capacity, self._start, limits.sweep_ms)
            self._poller.also = self._start_deliveries
            self._flows.nudge = self._poller.nudge
        _clients.add(self)

    def _after_fork(self) -> None:
        self._counting, self._started = threading.Condition(), set()
        self._flows.after_fork()
        if self._poller is not None:
            self._poller.after_fork()
        io = self._flows.store.io
        if isinstance(io, AsyncIo):
            io.after_fork()

    def handler(
        self,
        agent: str = "default",
        *,
        policy: Choice | None = None,
        pending_max: int | None = None,
        overflow: Overflow | None = None,
    ) -> Callable[[F], F]:
        """Registers handler(turn) -> reply as the code that runs the turns of `agent`, in submit and in the poller.

        It may be sync, async, or an async generator whose chunks are streamed.  Its return value is the reply unless it
        called turn.finish; an exception charges the turn and its messages are retried.  Raises InvalidInput where the
        agent has one.

        Args:
            agent: What submit(agent=) names.
            policy: The policy of messages to this agent whose call names none, before the client's.
            pending_max: How many messages to this agent may wait in a thread, before the client's.
            overflow: What becomes of one more, before the client's.
        """
        intake = Intake(policy, pending_max, overflow)
        agent = agent_of_decorator(agent, "handler")

        def register(call: F) -> F:
            if agent in self._flows.handlers:
                raise InvalidInput("handler_exists", f"agent {agent!r} has a handler already")
            self._flows.handlers[agent] = handler_of(call, agent, intake)
            return call

        return register

    def on_rollback(self, agent: str = "default") -> Callable[[F], F]:
        """Registers hook(turn, tokens) as the code that undoes what rolled back turns of `agent` left behind.

        It may be sync or async, and runs in the next turn, before its handler: at least once for each token, again
        until a turn has finished.  tokens: those of the turns that were rolled back since the thread's last done turn.
        An exception fails the turn.  Raises InvalidInput where the agent has one.

        Args:
            agent: Whose turns.
        """
        agent = agent_of_decorator(agent, "on_rollback")

        def register(call: F) -> F:
            if agent in self._flows.on_rollback:
                raise InvalidInput("on_rollback_exists", f"agent {agent!r} has an on_rollback hook already")
            hook = handler_of(call, agent)
            if hook.kind == "stream":
                raise InvalidInput("bad_handler", "an on_rollback hook cannot stream")
            self._flows.on_rollback[agent] = hook
            return call

        return register

    def deliver(self, agent: str = "default", *, expire_ms: int | None = None) -> Callable[[F], F]:
        """Registers deliver(delivery) as the way in which replies of `agent` reach people.

        From then on finish writes an intent in its own transaction, and the poller sends it: in the order of turns
        within a thread, retried with maybe_duplicate set, never for a turn that lost its claim.  Callers of submit then
        send nothing themselves, not even for Answered.  Raises InvalidInput where the agent has one.

        Args:
            agent: Whose replies.
            expire_ms: A reply is not sent any more so many ms after its turn has ended; at least 1.  None: always sent.
        """
        agent = agent_of_decorator(agent, "deliver")

        def register(call: F) -> F:
            if agent in self._outbox.deliverers:
                raise InvalidInput("deliver_exists", f"agent {agent!r} has a deliver function already")
            self._outbox.deliverers[agent] = deliverer_of(call, agent, expire_ms)
            return call

        return register

    def subscribe(self, subscriber: Subscriber, *, trace: Trace | None = None) -> None:
        """Calls subscriber(notice) for every notice of chatlock.hooks, where and when it happened: keep it short.

        What either of the two raises is logged and stops nothing.

        Args:
            subscriber: Called with one notice at a time; once, however often it is subscribed.
            trace: What trace() gives where a message is submitted or edited is stored with it (printable ASCII, at most
                512 characters; else nothing), and the turn finds it as Message.trace.
        """
        check_callable(subscriber, "subscriber")
        if trace is not None:
            check_callable(trace, "trace")
        self._flows.hooks.subscribe(subscriber, trace)

    def _prepare(self, core: TurnCore) -> None:
        deliverer = self._outbox.deliverers.get(core.claim.agent)
        if deliverer is not None:
            core.delivers, core.deliver_ms = True, deliverer.expire_ms

    def _start_deliveries(self) -> None:
        for seen in self._outbox.ready(min(BATCH, self._capacity())):
            self._start_flow(self._outbox.carry_out(seen))

    def _agents(self) -> list[str]:
        return list(self._flows.handlers)

    def _capacity(self) -> int:
        with self._counting:
            return self._turns_max - len(self._started)

    def _begins(self, started: object) -> None:
        with self._counting:
            self._started.add(started)

    def _ends(self, started: object) -> None:
        with self._counting:
            self._started.discard(started)
            self._counting.notify_all()
        self._flows.nudge()

    def _start(self, granted: Granted) -> None:
        self._flows.live.expect(granted.claim.key, granted.claim.claim_id)
        self._start_flow(self._flows.run_loop(granted, "poller", unattended=True), granted.claim.claim_id)

    async def _run_due(self, key: Key, by: By) -> bool:
        """What a worker does for a wake-up: runs the thread's turns if it is due, and sends the replies that are ready.

        Whether it ran a turn: there is nothing to do for a thread that someone else claimed meanwhile.
        """
        flows, store = self._flows, self._flows.store
        agent = await store.read("claim_due.agent", lambda c: agent_of(c, key))
        ran = False
        if agent in flows.handlers:
            request = await flows.request(agent)
            attempt = store.transaction("claim_due", lambda c: claim_due(c, key, request, skip_locked=False))
            granted = await flows.asking(key, request, attempt)
            if granted is not None:
                ran = True
                await flows.run_loop(granted, by)
        elif agent is not None:
            log.warning("due.no_handler", extra={"thread_hash": key_hash(key)[:12], "agent": agent})
        await self._outbox.flush(key)
        return ran

    def _start_flow(self, flow: Coroutine[Any, Any, Any], claim_id: str | None = None) -> None:
        """Runs the flow beside the caller.  claim_id: what it was granted, released if it cannot begin."""
        raise AssertionError("each shell starts flows in its own world")

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
        return self._checked(thread, payload, options), checked_wait(options.get("wait_ms", WAIT_MS))

    def _checked(self, thread: str, payload: object, options: SubmitOptions) -> Submission:
        """InvalidInput before anything is written."""
        if_idle = checked_flag(options.get("if_idle", False), "if_idle")
        recreate = checked_flag(options.get("recreate", False), "recreate")
        if_turn, if_awaiting = options.get("if_turn"), options.get("if_awaiting")
        expire_ms, message_id = options.get("expire_ms"), options.get("message_id")
        if (if_turn is not None and (if_idle or recreate)) or (if_awaiting is not None and recreate):
            raise InvalidInput("bad_precondition", "if_turn excludes if_idle and recreate, if_awaiting recreate")
        flows, agent = self._flows, checked_id(options.get("agent", "default"), "agent")
        handler = flows.handlers.get(agent)
        text, text_hash = payload_json(payload)
        intake = Intake(options.get("policy"), options.get("pending_max"), options.get("overflow"))
        intake = (intake.before(handler.intake) if handler is not None else intake).before(flows.config.intake)
        return Submission(
            flows.key(options.get("tenant"), thread),
            new_id() if message_id is None else checked_id(message_id, "message_id"),
            text,
            text_hash,
            agent,
            *intake.policy_for(payload),
            recreate,
            expire_ms=None if expire_ms is None else checked_ms(expire_ms, "expire_ms", least=1),
            priority=checked_priority(options.get("priority", "user")),
            if_idle=if_idle,
            if_turn=None if if_turn is None else checked_int(if_turn, "if_turn"),
            if_awaiting=None if if_awaiting is None else checked_id(if_awaiting, "if_awaiting"),
            pending_max=intake.pending_max,
            overflow=intake.overflow or "reject",
        )

    async def _answer(
        self, thread: str, question_id: str, decision: object, tenant: str | None, wait_ms: int | None
    ) -> Outcome:
        """A submit to the agent that the thread has, under the question's id, if that is open."""
        flows = self._flows
        key = flows.key(tenant, thread)
        agent = await flows.store.read("answer.agent", lambda c: agent_of(c, key))
        options: SubmitOptions = {"tenant": key.tenant, "agent": agent or "default", "policy": "enqueue"}
        options["priority"] = "resume"
        options |= {"message_id": checked_id(question_id, "question_id"), "if_awaiting": question_id}
        return await flows.submit(self._checked(thread, decision, options), checked_wait(wait_ms))

    def _hurry(self) -> None:
        """_close waits no longer."""
        self._flows.live.hurry()
        with self._counting:
            self._counting.notify_all()

    def _close(self, drain_ms: int) -> None:
        checked_ms(drain_ms, "drain_ms")
        if self._poller is not None:
            self._poller.close()
        deadline = time.monotonic() + drain_ms / 1000
        self._flows.closing = True
        with self._counting:  # what the poller started: turns, and replies that are being sent
            self._counting.wait_for(lambda: not self._started or self._flows.live.hurried, drain_ms / 1000)
        self._flows.close_now(max(0.0, deadline - time.monotonic()))
        io = self._flows.store.io
        if isinstance(io, AsyncIo):
            io.close()


def log_background(error: BaseException) -> None:
    """What the poller started has no caller to tell: the lease frees what it held."""
    if not isinstance(error, ChatlockError):
        log.error("background.failed: %s", place_of(error), extra={"error": type(error).__name__})
    elif not isinstance(error, Closed):
        log.warning("background.failed", extra={"error": type(error).__name__})


def begun_with(first: str, chunk: Event) -> str:
    """The id of the first chunk that was heard of the turn that streams now.  first: the one so far, "" for none."""
    return first if first.rpartition("-")[0] == chunk.id.rpartition("-")[0] else chunk.id


def last_events(outcome: Outcome, first: str) -> list[Event]:
    """The reply, unless all chunks of the turn that answered were heard, from its first on, and the outcome."""
    last = [Event(f"{outcome.message_id}-outcome", "outcome", outcome)]
    if isinstance(outcome, Answered | AlreadyAnswered) and first != f"{outcome.incarnation}-{outcome.turn}-1":
        last.insert(0, Event(f"{outcome.message_id}-reply", "reply", outcome.reply))
    return last


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


def _close_all() -> None:
    for client in list(_clients):
        try:
            if not client._flows.closing:
                client._close(0)
        except KeyboardInterrupt:  # whoever interrupts the end has no patience: the leases free what is left
            return
        except Exception as error:  # noqa: BLE001  one client's fault does not stop the others' end
            log_background(error)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)

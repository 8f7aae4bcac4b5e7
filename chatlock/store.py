"""The store as flows see it: each operation, run in its world, with its pause points, hot path and retries."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.engine import Connection

from chatlock.executor import Executor
from chatlock.inputs import Key, new_id
from chatlock.io import Io
from chatlock.ops import claim, fence, fetch, finish, hot, inspect, unanswered
from chatlock.ops import submit as submit_op
from chatlock.ops.base import Claim, Message
from chatlock.ops.submit import Submission, Submitted
from chatlock.protocol import Limits, Outcome

T = TypeVar("T")


def jitter() -> float:
    """Spreads backoffs: 0.5 to 1."""
    return random.uniform(0.5, 1.0)


def owner_name() -> str:
    """Who holds a claim, for people: host, process, and a part that tells one process life from another."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{new_id()[:8]}"


class Store:
    """Operations over one Io and one Executor."""

    def __init__(self, io: Io, executor: Executor, limits: Limits, owner: str) -> None:
        self.io, self.executor, self.limits, self.owner = io, executor, limits, owner

    def over(self, io: Io) -> Store:
        """The same store in another world."""
        return Store(io, self.executor, self.limits, self.owner)

    async def transaction(self, name: str, op: Callable[[Connection], T]) -> T:
        """One locked transaction."""
        return await self.io.run(lambda: self.executor.transaction(name, op))

    async def read(self, name: str, op: Callable[[Connection], T]) -> T:
        """Autocommit statements."""
        return await self.io.run(lambda: self.executor.read(name, op))

    async def submit(self, what: Submission, request: claim.Request | None) -> Submitted:
        """The hot statement, and for a thread's first message the row and the statement again; else the locked
        operation.
        """
        return await self.io.run(lambda: submit_once(self.executor, what, request, self.limits))

    async def redrive(self, what: Submission) -> Submitted:
        """The locked submit: the hot statement does not name the dead message."""
        return await self.transaction("submit", lambda c: submit_op.submit(c, what, None, self.limits))

    async def finish(self, what: finish.Finish, request: claim.Request | None) -> finish.Finished | None:
        """The hot statement, or the locked operation; with a request always the latter, which can hand off."""
        return await self.io.run(lambda: finish_once(self.executor, what, request))

    async def fetch(self, held: Claim, after: int) -> tuple[Message, ...]:
        """See ops.fetch."""
        return await self.transaction("fetch", lambda c: fetch.fetch(c, held, after, self.limits))

    async def claim_for(self, key: Key, request: claim.Request, incarnation: int, seq: int) -> claim.Granted | None:
        """See ops.claim."""
        return await self.transaction("claim", lambda c: claim.claim_for(c, key, request, incarnation, seq))

    async def release(self, key: Key, claim_id: str) -> bool:
        """See ops.unanswered."""
        return await self.transaction("release", lambda c: unanswered.release(c, key, claim_id))

    async def fail(self, held: Claim, count: int, error: str) -> unanswered.Ended | None:
        """See ops.unanswered."""
        spread = jitter()
        return await self.transaction(
            "fail", lambda c: unanswered.fail(c, held, held=count, error=error, limits=self.limits, jitter=spread)
        )

    async def report_late(self, held: Claim) -> bool:
        """See ops.finish."""
        return await self.transaction("report_late", lambda c: finish.report_late(c, held))

    async def outcome(self, key: Key, message_id: str) -> Outcome:
        """See ops.inspect."""
        return await self.read("status", lambda c: inspect.outcome_of(c, key, message_id))

    async def in_turn(self, key: Key) -> tuple[str, str | None]:
        """See ops.inspect."""
        return await self.read("in_turn", lambda c: inspect.in_turn(c, key))

    async def located(self, key: Key, message_id: str) -> tuple[int, int] | None:
        """See ops.inspect."""
        return await self.read("locate", lambda c: inspect.locate(c, key, message_id))

    async def kept_session(self, held: Claim, name: str) -> str | None:
        """See ops.fence."""
        return await self.read("session.read", lambda c: fence.kept_session(c, held, name))

    async def keep_session(self, held: Claim, name: str, value: str) -> str:
        """See ops.fence."""
        return await self.transaction("session", lambda c: fence.keep_session(c, held, name, value))

    async def mark(self, held: Claim, value: str) -> None:
        """See ops.fetch."""
        await self.transaction("mark", lambda c: fetch.mark(c, held, value))


def submit_once(executor: Executor, what: Submission, request: claim.Request | None, limits: Limits) -> Submitted:
    """S1 (for a thread's first message the row, and S1 again), or the locked submit where S1 stored nothing or
    the message is not plain.
    """

    def s1(cursor: Any) -> Submitted | None:
        return hot.hot_submit(cursor, what, request, limits.backoff_max_ms)

    stored = executor.hot("submit_hot", s1) if what.plain else None
    if stored is None:
        stored = executor.transaction("submit", lambda c: submit_op.submit(c, what, request, limits))
    return stored


def finish_once(executor: Executor, what: finish.Finish, request: claim.Request | None) -> finish.Finished | None:
    """S2, or the locked finish, which also decides every case that S2 did not match."""
    if request is None and what.effect is None and what.question is None:
        finished = executor.hot("finish_hot", lambda cursor: hot.hot_finish(cursor, what))
        if finished is not None:
            return finished
    return executor.transaction("finish", lambda c: finish.finish(c, what, request))

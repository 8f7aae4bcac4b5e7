"""One message's way to its outcome: stored, waited for, and claimed when its thread is free."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from chatlock.errors import ChatlockError, Closed, StoreUnavailable
from chatlock.hooks import By
from chatlock.inputs import Key, check_callable
from chatlock.inside import holds_turn_of, inside_turn_of
from chatlock.ops.claim import Granted, Request
from chatlock.ops.submit import Submission
from chatlock.policies import POLICIES
from chatlock.protocol import Answered, NotFound, Outcome, Queued, Refused, Unknown
from chatlock.turn_core import TurnCore
from chatlock.wake.waiters import Waiter

if TYPE_CHECKING:
    from chatlock.flows import Flows

T = TypeVar("T")


class Place:
    """Subscribed before the message is stored, judged by its disposition.

    Whoever leaves it by an exception gives back what its last attempt won, whether or not it was told of it.
    """

    def __init__(
        self,
        flows: Flows,
        what: Submission,
        wait_ms: int | None,
        *,
        claims: bool,
        on_stored: Callable[[Outcome], object] | None = None,
    ) -> None:
        inside = inside_turn_of(what.key)  # a turn that waits for its own thread would wait for ever
        if flows.closing:
            raise Closed
        if on_stored is not None:
            check_callable(on_stored, "on_stored")
        self._flows, self._what, self._on_stored = flows, what, on_stored
        self._began_at = time.monotonic()
        self._attaches = POLICIES[what.policy].store == "never"
        self._claims = claims and not inside and not self._attaches
        self._wait_ms = 0 if inside or holds_turn_of(what.key) else wait_ms
        self._deadline = None if self._wait_ms is None else self._began_at + self._wait_ms / 1000
        self._incarnation, self.seq = 0, 0
        self._asked: Request | None = None
        self._core: TurnCore | None = None
        self._waiter: Waiter | None = None
        if self._wait_ms != 0:
            self._waiter = flows.waiters.subscribe(what.key, flows.store.io.signal(), claims=self._claims)

    def leave(self) -> None:
        """Nobody waits here any more."""
        if self._waiter is not None:
            self._flows.waiters.unsubscribe(self._waiter)

    async def give_back(self) -> None:
        """Releases, by its claim_id, the claim that was last asked for here, unless its turn has ended."""
        if self._asked is None or (self._core is not None and self._core.ended is not None):
            return
        given = await self._flows.give_back(self._what.key, self._asked.claim_id)
        if given and self._core is not None:
            self._core.end("released")

    async def first(self) -> TurnCore | Outcome:
        """Stores the message; the turn if the claim was won, or the outcome once there is one or the wait is over."""
        if self._attaches:
            return await self._attached()
        request = await self._flows.request(self._what.agent) if self._claims else None
        try:
            stored = await self._asking(request, self._flows.store.submit(self._what, request))
        except StoreUnavailable as error:
            if error.commit_unknown:
                return Unknown(message_id=self._what.message_id)
            raise
        self._incarnation, self.seq = stored.incarnation, stored.seq or 0
        if stored.seq is not None and self._on_stored is not None:
            self._on_stored(stored.outcome)
        if stored.affected is not None:
            self._flows.told(self._what.key, stored.affected, POLICIES[self._what.policy].turn, self.seq)
        for_others = self._for_others(stored.outcome)
        if stored.superseding or for_others:
            self._flows.changed(self._what.key, due=for_others, elsewhere=True)
        if stored.granted is not None:
            return await self._opened(stored.granted, "submit")
        self._refused()
        if not isinstance(stored.outcome, Queued):
            return stored.outcome
        return stored.outcome if self._waiter is None else await self.next()

    def _for_others(self, stored: Outcome) -> bool:
        """Whether another client is to begin a turn now.  What stands behind others is told of by the end of theirs."""
        return not self._claims and isinstance(stored, Queued) and stored.position == 0 and stored.turn is None

    def answered(self, core: TurnCore) -> Answered:
        """The turn that this call ran answered its message."""
        ids: dict[str, Any] = {"message_id": self._what.message_id, "seq": self.seq, "incarnation": self._incarnation}
        return Answered(**ids, reply=core.reply, turn=core.claim.token, question=core.question)

    async def _attached(self) -> Outcome:
        """Stores nothing: what becomes of the oldest message that the running turn has."""
        status, message_id = await self._flows.store.in_turn(self._what.key)
        if message_id is None:
            return Refused(message_id=self._what.message_id, reason="no_turn", state=status)
        self._what = replace(self._what, message_id=message_id)
        return await self.found()

    async def found(self) -> Outcome:
        """The outcome of a message that is stored already, once there is one or the wait is over."""
        where = await self._flows.store.located(self._what.key, self._what.message_id)
        if where is None:
            return NotFound(message_id=self._what.message_id)
        self._incarnation, self.seq = where
        outcome = await self._flows.store.outcome(self._what.key, self._what.message_id)
        if self._waiter is None or not isinstance(outcome, Queued):
            return outcome
        later = await self.next()
        if isinstance(later, TurnCore):
            raise AssertionError("a claim was granted to a call that does not claim")
        return later

    async def _asking(self, request: Request | None, attempt: Awaitable[T]) -> T:
        """An attempt to claim: what it wins is known to `give_back` and to the end of the client before it begins."""
        if request is None:
            return await attempt
        self._asked, self._core = request, None
        self._flows.live.expect(self._what.key, request.claim_id)
        try:
            return await attempt
        except ChatlockError:
            self._refused()
            raise

    def _refused(self) -> None:
        if self._asked is not None:
            self._flows.live.forget(self._asked.claim_id)
            self._asked = None

    async def _opened(self, granted: Granted, by: By) -> TurnCore:
        self._core = self._flows.opened(granted, by, self._what.message_id, time.monotonic() - self._began_at)
        if self._flows.closing:
            await self.give_back()
            raise Closed
        return self._core

    async def next(self) -> TurnCore | Outcome:
        """Waits for the message's outcome, or for its thread to become free and claims it."""
        store, waiter = self._flows.store, self._waiter
        while waiter is not None:
            self._flows.waiters.arm(waiter, (self._what.key.tenant, self._what.key.thread, self._incarnation, self.seq))
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            signalled = await waiter.signal.wait(left)
            if waiter.closed:
                raise Closed
            look = waiter.look
            if signalled and look is not None and look.claimable:
                request = await self._flows.request(self._what.agent)
                attempt = store.claim_for(self._what.key, request, self._incarnation, self.seq)
                granted = await self._asking(request, attempt)
                if granted is not None:
                    self._flows.waiters.disarm(waiter)
                    return await self._opened(granted, "wait")
                self._refused()
            elif not signalled or (look is not None and look.resolved):
                outcome = await store.outcome(self._what.key, self._what.message_id)
                if not signalled or not isinstance(outcome, Queued):
                    return outcome
        return await store.outcome(self._what.key, self._what.message_id)


async def await_outcome(flows: Flows, key: Key, message_id: str, wait_ms: int | None) -> Outcome:
    """Waits for the outcome of a message that is stored already, without ever claiming its thread."""
    place = Place(flows, Submission(key, message_id, "", "", agent=""), wait_ms, claims=False)
    try:
        return await place.found()
    finally:
        place.leave()

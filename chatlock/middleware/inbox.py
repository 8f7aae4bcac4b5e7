"""What the adapters of chat platforms share: a message is stored before the platform hears that it has arrived."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from chatlock import (
    AsyncChatlock,
    Busy,
    Chatlock,
    Conflict,
    Gone,
    InvalidInput,
    NotFound,
    Outcome,
    Refused,
    StoreUnavailable,
    SubmitOptions,
    Superseded,
    Unknown,
)
from chatlock.middleware.detached import Detached, Submitting

log = logging.getLogger("chatlock")

TURNS_MAX = 100
"""How many turns an inbox runs at once; the platform is asked to deliver again what would be one more."""

EDITS_MAX = 50
UNSTORABLE = frozenset({"bad_text", "bad_number", "too_deep", "too_large"})
"""What makes a message one that no later delivery could store either."""


@dataclass(frozen=True)
class Inbound:
    """A platform's message.  message_id: the platform's own, the same over its retries.

    edited: this is its new text.  deleted: it is there no more, and there is no payload.
    """

    thread: str
    message_id: str
    payload: Any
    edited: bool = False
    deleted: bool = False

    def ids(self) -> Iterator[str]:
        """The id of the message, of its first edit, and so on."""
        yield self.message_id
        for number in range(1, EDITS_MAX + 1):
            yield f"{self.message_id}:{number}"

    def edits(self) -> Iterator[tuple[str, str]]:
        """The message and the id of its first edit, then that edit and the id of the next, and so on."""
        return pairwise(self.ids())


class AsyncInbox:
    """Takes messages in for an AsyncChatlock.  Their turns run in tasks of their own."""

    def __init__(self, chat: AsyncChatlock, options: SubmitOptions) -> None:
        self._chat, self._options = chat, options
        self._turns = Detached(TURNS_MAX)

    async def take(self, message: Inbound) -> bool:
        """Whether the message needs no further care: it is stored, has been before, or can never be.

        False for the edit or deletion of a message that is not known here.  Raises StoreUnavailable (have it delivered
        again), and InvalidInput for options that are wrong.
        """
        try:
            if message.deleted:
                return _taken(await self._deleted(message))
            return _taken(await (self._edited(message) if message.edited else self._stored(message)))
        except InvalidInput as error:
            return _never(error)

    async def _stored(self, message: Inbound) -> Outcome | None:
        submit = partial(self._chat.submit, message.thread, message.payload, **_submission(self._options, message))
        return await Submitting(self._turns, lambda on_stored: submit(on_stored=on_stored)).refused()

    async def _edited(self, message: Inbound) -> Outcome | None:
        outcome, tenant = None, self._options.get("tenant")
        for old, new in message.edits():
            outcome = await self._chat.edit(message.thread, old, message.payload, new, tenant=tenant)
            if not isinstance(outcome, Conflict):
                break
        return outcome

    async def _deleted(self, message: Inbound) -> Outcome | None:
        outcome, tenant = None, self._options.get("tenant")
        for message_id in message.ids():
            found = await self._chat.cancel(message.thread, message_id, tenant=tenant)
            outcome = _newer(outcome, found)
            if not isinstance(found, Superseded):
                break
        return outcome


class Inbox:
    """Takes messages in for a Chatlock.  Their turns run in OS threads of their own."""

    def __init__(self, chat: Chatlock, options: SubmitOptions) -> None:
        self._chat, self._options = chat, options
        self._turns = threading.BoundedSemaphore(TURNS_MAX)

    def take(self, message: Inbound) -> bool:
        """See AsyncInbox.take."""
        try:
            if message.deleted:
                return _taken(self._deleted(message))
            return _taken(self._edited(message) if message.edited else self._stored(message))
        except InvalidInput as error:
            return _never(error)

    def _stored(self, message: Inbound) -> Outcome | None:
        stored: Future[Outcome | None] = Future()
        if not self._turns.acquire(blocking=False):
            raise StoreUnavailable("this process takes no more turns; try again later")
        thread = threading.Thread(target=self._submit, args=(message, stored), name="chatlock-inbox", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more OS threads
            self._turns.release()
            raise StoreUnavailable("this process has no OS thread left; try again later") from None
        return stored.result()

    def _submit(self, message: Inbound, stored: Future[Outcome | None]) -> None:
        submit: Callable[..., Outcome] = partial(self._chat.submit, message.thread, message.payload)
        try:
            options = _submission(self._options, message)
            outcome = submit(**options, on_stored=lambda outcome: stored.set_result(None))
            if not stored.done():
                stored.set_result(outcome)
        except BaseException as error:  # noqa: BLE001  raised again by whoever waits; a turn's own end is stored
            if not stored.done():
                stored.set_exception(error)
        finally:
            self._turns.release()

    def _edited(self, message: Inbound) -> Outcome | None:
        outcome, tenant = None, self._options.get("tenant")
        for old, new in message.edits():
            outcome = self._chat.edit(message.thread, old, message.payload, new, tenant=tenant)
            if not isinstance(outcome, Conflict):
                break
        return outcome

    def _deleted(self, message: Inbound) -> Outcome | None:
        outcome, tenant = None, self._options.get("tenant")
        for message_id in message.ids():
            found = self._chat.cancel(message.thread, message_id, tenant=tenant)
            outcome = _newer(outcome, found)
            if not isinstance(found, Superseded):
                break
        return outcome


def _newer(told: Outcome | None, found: Outcome) -> Outcome:
    """A superseded message has an edit, or something else took its place."""
    return told if told is not None and isinstance(found, NotFound) else found


def _submission(options: SubmitOptions, message: Inbound) -> SubmitOptions:
    return {**options, "message_id": message.message_id, "wait_ms": 0}


def _taken(outcome: Outcome | None) -> bool:
    if isinstance(outcome, Unknown):
        raise StoreUnavailable("the result of the commit is not known; have the message delivered again")
    if isinstance(outcome, Busy | Conflict | Gone | Refused):
        log.warning("inbox.refused", extra={"outcome": type(outcome).__name__})
    return not isinstance(outcome, NotFound)


def _never(error: InvalidInput) -> bool:
    if error.reason not in UNSTORABLE:
        raise error
    log.error("inbox.unstorable", extra={"reason": error.reason})
    return True

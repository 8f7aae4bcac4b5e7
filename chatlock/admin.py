"""What callers and operators ask of threads outside a turn, as flows."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from typing import cast

from chatlock import migrations
from chatlock.errors import InvalidInput
from chatlock.flows import Flows
from chatlock.inputs import (
    Key,
    check_text,
    checked_flag,
    checked_id,
    checked_int,
    checked_ms,
    checked_word,
    digest,
    payload_json,
    plain,
)
from chatlock.ops import operate, purge, stop, unanswered, verify
from chatlock.ops.audit import Act, Receipt
from chatlock.ops.edit import Edit, edit
from chatlock.ops.purge import Page
from chatlock.ops.stop import CancelReceipt
from chatlock.ops.submit import Submission
from chatlock.ops.verify import Verified
from chatlock.policies import BACKLOGS, Backlog
from chatlock.protocol import Outcome
from chatlock.store import jitter
from chatlock.sweep import Sweep

REASON_CHARS_MAX = 1000
PURGE_BATCH = 200


@dataclass(frozen=True)
class Swept:
    """What one pass of a poller did."""

    reclaimed: int
    """How many stale turns it reclaimed."""
    turns: int
    """How many turns it ran."""


def act(action: str, actor: str | None, reason: str) -> Act:
    """A checked audit entry; the operating system's user where no actor is given."""
    check_text(reason, "reason")
    if len(reason) > REASON_CHARS_MAX:
        raise InvalidInput("bad_reason", f"reason must be at most {REASON_CHARS_MAX} characters")
    return Act(action, checked_id(actor if actor is not None else _user(), "actor"), plain(reason))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a passwd entry
        return "unknown"


class Admin:
    """Flows over one client's store."""

    def __init__(self, flows: Flows, sweep: Sweep) -> None:
        self.flows, self.store, self.sweep = flows, flows.store, sweep

    async def setup(self) -> None:
        await self.store.io.run(lambda: self.flows.executor.set_up(migrations.upgrade))

    async def cancel(self, key: Key, message_id: str) -> Outcome:
        message_id = checked_id(message_id, "message_id")
        far = self.flows.config.limits.backoff_max_ms
        outcome = await self.store.transaction("cancel", lambda c: operate.cancel(c, key, message_id, far))
        self._changed(key)
        return outcome

    async def edit(self, key: Key, message_id: str, payload: object, edit_id: str) -> Outcome:
        text, text_hash = payload_json(payload)
        ids = checked_id(message_id, "message_id"), checked_id(edit_id, "edit_id")
        what = Edit(*ids, text, text_hash, self.flows.hooks.trace())
        outcome = await self.store.transaction("edit", lambda c: edit(c, key, what, self.flows.config.limits))
        self._changed(key)
        return outcome

    async def stop(self, key: Key, turn: int, queued: Backlog, grace_ms: int) -> CancelReceipt:
        checked_int(turn, "turn")
        checked_ms(grace_ms, "grace_ms", least=1)
        checked_word(queued, "queued", BACKLOGS)
        far, backlog = self.flows.config.limits.backoff_max_ms, cast("Backlog", plain(queued))
        receipt = await self.store.transaction(
            "stop", lambda c: stop.stop(c, key, turn, backlog, grace_ms=grace_ms, backoff_max_ms=far)
        )
        if receipt.done:
            self.flows.told(key, turn, "interrupt")
            self._changed(key)
        return receipt

    async def promote(self, key: Key) -> Receipt:
        far = self.flows.config.limits.backoff_max_ms
        return self._told(key, await self.store.transaction("promote", lambda c: operate.promote(c, key, far)))

    async def status(self, key: Key, message_id: str) -> Outcome:
        return await self.store.outcome(key, checked_id(message_id, "message_id"))

    async def park(self, key: Key, turn: int | None, what: Act) -> Receipt:
        if turn is not None:
            checked_int(turn, "turn")
        return self._told(key, await self.store.transaction("park", lambda c: operate.park(c, key, turn, what)))

    async def resume(self, key: Key, what: Act) -> Receipt:
        return self._told(key, await self.store.transaction("resume", lambda c: operate.resume(c, key, what)))

    async def delete(self, key: Key, what: Act) -> Receipt:
        return self._told(key, await self.store.transaction("delete", lambda c: operate.delete(c, key, what)))

    async def free(self, key: Key, turn: int, force: bool, what: Act) -> Receipt:
        checked_int(turn, "turn")
        checked_flag(force, "force")
        limits, spread = self.flows.config.limits, jitter()
        receipt = await self.store.transaction(
            "free", lambda c: unanswered.free(c, key, turn, what, force=force, limits=limits, jitter=spread)
        )
        return self._told(key, receipt)

    async def redrive(self, key: Key, message_id: str) -> Outcome:
        message_id = checked_id(message_id, "message_id")
        dead = await self.store.read("redrive", lambda c: operate.find_dead(c, key, message_id))
        if isinstance(dead, Outcome):
            return dead
        again = f"redrive-{digest(key.tenant, key.thread, dead.incarnation, dead.seq)[:40]}"  # safe to repeat
        what = Submission(
            key,
            again,
            dead.payload,
            dead.payload_hash,
            dead.agent,
            policy="enqueue",
            redrive_of=message_id,
            trace=self.flows.hooks.trace(),
            answers=dead.answers,
        )
        stored = await self.store.redrive(what)
        self._changed(key)
        return stored.outcome

    async def verify(self, tenant: str | None) -> Verified:
        if tenant is not None:
            tenant = checked_id(tenant, "tenant")
        return await self.store.io.run(
            lambda: self.flows.executor.snapshot("verify", lambda c: verify.verify(c, tenant))
        )

    async def purge(self, older_than_ms: int) -> int:
        age = checked_ms(older_than_ms, "older_than_ms", least=1)
        changed = 0
        while True:
            batch = await self.store.read("purge.batch", lambda c: purge.next_batch(c, age, PURGE_BATCH))
            for key in batch.keys:
                changed += await self._purge_thread(key, age)
            if batch.until is None:
                return changed + await self._purge_left_behind(age)
            await self._mark_purged(batch.until)

    async def _purge_left_behind(self, age: int) -> int:
        changed, after = 0, None
        while True:
            page = await self._next_page(after, age)
            for key in page.keys:
                changed += await self._purge_thread(key, age)
            if page.last is None:
                return changed
            after = page.last

    async def _next_page(self, after: Key | None, age: int) -> Page:
        return await self.store.read("purge.page", lambda c: purge.next_page(c, after, age, PURGE_BATCH))

    async def _purge_thread(self, key: Key, age: int) -> int:
        return await self.store.transaction("purge", lambda c: purge.purge_thread(c, key, age))

    async def _mark_purged(self, until: int) -> None:
        await self.store.transaction("purge.mark", lambda c: purge.mark_purged(c, until))

    def _changed(self, key: Key) -> None:
        self.flows.changed(key, due=True, elsewhere=True)

    def _told(self, key: Key, receipt: Receipt) -> Receipt:
        if receipt.done:
            self._changed(key)
        return receipt

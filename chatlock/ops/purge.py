"""purge: forget payloads, replies and unanswered turns past the retention horizon, never the ids of a live
incarnation, nor a rolled back turn before a later one is done: an on_rollback hook is still to see it.

Old ends of turns lead to most of it, and are looked at once.  What no turn's end leads to (messages that were resolved
without a turn, replies that were sent late, what was left of a thread when it was deleted) a walk over the threads
finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, delete, not_, or_, select, tuple_, update
from sqlalchemy.engine import Connection

from chatlock.dialects import per_dialect, stable_ms
from chatlock.inputs import Key
from chatlock.ops.base import b, lock, named, of_incarnation, of_thread, run
from chatlock.ops.stop import rolled_back_since_done
from chatlock.protocol import Status
from chatlock.schema import intents, messages, meta, threads, turns

_dead_incarnation = or_(turns.c.incarnation < b("live"), b("deleted") == 1)

# one ahead of the clock was written before the clock stepped back
WATERMARK = named(
    "purge.watermark", select(meta.c.value).where(meta.c.name == "purged_through", meta.c.value <= stable_ms())
)
_old = (turns.c.ended_at >= b("since"), turns.c.ended_at < stable_ms() - b("age"))
_edge = (
    select(turns.c.ended_at).where(*_old).order_by(turns.c.ended_at).offset(b("limit") - 1).limit(1).scalar_subquery()
)
# the last millisecond of a batch is taken whole: the next one begins behind it
OLD_TURNS = named(
    "purge.old_turns",
    select(turns.c.tenant, turns.c.thread_id, turns.c.ended_at)
    .where(*_old, or_(_edge.is_(None), turns.c.ended_at <= _edge))
    .order_by(turns.c.ended_at),
)
FORGET_PAYLOADS = named(
    "purge.payloads",
    update(messages)
    .where(
        of_incarnation(messages),
        messages.c.seq <= b("done"),
        messages.c.received_at < b("horizon"),
        messages.c.disposition != "pending",
        messages.c.payload.is_not(None),
    )
    .values(payload=None),
)
FORGET_REPLIES = named(
    "purge.replies",
    update(turns)
    .where(
        of_incarnation(turns),
        turns.c.state.in_(["done", "gave_up"]),
        turns.c.ended_at < b("horizon"),
        or_(turns.c.reply.is_not(None), turns.c.mark.is_not(None)),
    )
    .values(reply=None, mark=None),
)
_hook_may_need = rolled_back_since_done(lambda table: and_(of_thread(table), table.c.incarnation == b("live")))
DROP_TURNS = named(
    "purge.turns",
    delete(turns).where(
        of_thread(turns),
        turns.c.ended_at < b("horizon"),
        or_(
            and_(turns.c.state.in_(["failed", "released", "reclaimed"]), not_(_hook_may_need)),
            _dead_incarnation,
        ),
    ),
)
DROP_MESSAGES = named(
    "purge.messages",
    delete(messages).where(
        and_(of_thread(messages), messages.c.received_at < b("horizon")),
        or_(messages.c.incarnation < b("live"), b("deleted") == 1),
    ),
)
FORGET_EFFECTS = named(
    "purge.effects",
    update(intents)
    .where(of_thread(intents), intents.c.ended_at < b("horizon"), intents.c.payload.is_not(None))
    .values(payload=None),
)
PAGE = named(
    "purge.page",
    select(threads.c.tenant, threads.c.thread_id, stable_ms().label("now"))
    .where(tuple_(threads.c.tenant, threads.c.thread_id) > tuple_(b("tenant"), b("thread")))
    .order_by(threads.c.tenant, threads.c.thread_id)
    .limit(b("limit")),
)


def _of_page(table: Any) -> Any:
    key = tuple_(table.c.tenant, table.c.thread_id)
    return and_(key > tuple_(b("tenant"), b("thread")), key <= tuple_(b("last_tenant"), b("last_thread")))


LEFT_MESSAGES = named(
    "purge.left_messages",
    select(messages.c.tenant, messages.c.thread_id)
    .distinct()
    .join(threads, and_(threads.c.tenant == messages.c.tenant, threads.c.thread_id == messages.c.thread_id))
    .where(
        _of_page(messages),
        messages.c.received_at < b("horizon"),
        or_(
            and_(
                messages.c.payload.is_not(None),
                messages.c.disposition.in_(["superseded", "cancelled", "expired", "deleted"]),
            ),
            messages.c.incarnation < threads.c.incarnation,
            threads.c.status == "deleted",
        ),
    ),
)
LEFT_EFFECTS = named(
    "purge.left_effects",
    select(intents.c.tenant, intents.c.thread_id)
    .distinct()
    .where(_of_page(intents), intents.c.ended_at < b("horizon"), intents.c.payload.is_not(None)),
)


def _mark(insert: Any) -> Any:
    new = insert(meta).values(name="purged_through", value=b("until"))
    return new.on_conflict_do_update(index_elements=[meta.c.name], set_={"value": new.excluded.value})


MARK = named("purge.mark", per_dialect(_mark))


@dataclass(frozen=True)
class Batch:
    """Threads with turns past the horizon, and the time up to which this batch has seen them."""

    keys: tuple[Key, ...]
    until: int | None


def next_batch(conn: Connection, age_ms: int, limit: int) -> Batch:
    """The next threads to purge, oldest ends first."""
    since = run(conn, WATERMARK).scalar_one_or_none() or 0
    rows = run(conn, OLD_TURNS, since=since, age=age_ms, limit=limit).all()
    keys = dict.fromkeys(Key(row.tenant, row.thread_id) for row in rows)
    return Batch(tuple(keys), int(rows[-1].ended_at) + 1 if rows else None)


@dataclass(frozen=True)
class Page:
    """Threads that hold something past the horizon to which no turn's end leads, and how far the walk has come."""

    keys: tuple[Key, ...]
    last: Key | None


def next_page(conn: Connection, after: Key | None, age_ms: int, limit: int) -> Page:
    """Looks through the next `limit` threads behind `after` (None: from the first one), in order of their keys."""
    seen = run(conn, PAGE, after or Key("", ""), limit=limit).all()
    if not seen:
        return Page((), None)
    last = Key(seen[-1].tenant, seen[-1].thread_id)
    bound = {"horizon": seen[-1].now - age_ms, "last_tenant": last.tenant, "last_thread": last.thread}
    left = [run(conn, statement, after or Key("", ""), **bound).all() for statement in (LEFT_MESSAGES, LEFT_EFFECTS)]
    return Page(tuple({Key(row.tenant, row.thread_id) for rows in left for row in rows}), last)


def purge_thread(conn: Connection, key: Key, age_ms: int) -> int:
    """Forgets what is older than age_ms in one thread; returns the number of rows changed.  Safe to repeat."""
    row = lock(conn, key)
    if row is None:
        return 0
    bound = {"horizon": row.now - age_ms, "incarnation": row.incarnation}
    whole = {"horizon": row.now - age_ms, "live": row.incarnation, "deleted": int(row.status == Status.DELETED)}
    changed = run(conn, FORGET_PAYLOADS, key, **bound, done=row.done_seq).rowcount
    changed += run(conn, FORGET_REPLIES, key, **bound).rowcount
    changed += run(conn, FORGET_EFFECTS, key, horizon=row.now - age_ms).rowcount
    changed += run(conn, DROP_TURNS, key, **whole).rowcount
    return int(changed + run(conn, DROP_MESSAGES, key, **whole).rowcount)


def mark_purged(conn: Connection, until: int) -> None:
    """Notes how far the purge has come."""
    run(conn, MARK, until=until)

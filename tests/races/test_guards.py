"""Each predicate of each conditional write of the protocol: it alone refuses, and without it the write goes through.

One test is the check and its control: the statement as it is touches no row, and with that one predicate replaced by
`true` it does. PostgreSQL's text, since there a statement meets rows that others change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
from sqlalchemy.dialects.postgresql import psycopg as dialect

from chatlock import Key
from chatlock.ops import hot
from chatlock.ops.base import CATALOG
from tests.races.arena import OF_THREAD, submission

if TYPE_CHECKING:
    from tests.races.arena import Arena

Values = Callable[[Any], dict[str, Any]]
"""Values to bind, from the thread's row and `lost`, the token of the thread's first turn, which was released."""

NEXT = count()
WRITTEN, REFUSED = "written", "refused"
DIVISION_BY_ZERO, CHECK_VIOLATED = "22012", "23514"
FAR_OFF = 9_000_000_000_000


class Wrong(NamedTuple):
    """A predicate, by a part of its text that no other has, and how to make it alone refuse.

    changed: other values; scene: start elsewhere; first: an UPDATE of a table's row of the thread beforehand.
    """

    predicate: str
    changed: Values = lambda t: {}
    scene: str = ""
    first: str = ""


RIGHT = Wrong("")


class Guarded(NamedTuple):
    """A conditional write: values under which it writes in the scene, and its predicates."""

    statement: str
    scene: str
    values: Values
    wrongs: tuple[Wrong, ...]
    first: str = ""


def claim_of(t: Any) -> dict[str, Any]:
    return {"incarnation": t.incarnation, "token": t.token}


OF_LIFE = Wrong("incarnation = ", lambda t: {"incarnation": t.incarnation + 1})
OF_CLAIM = (OF_LIFE, Wrong("token = ", lambda t: {"token": t.token - 1}))
OF_THE_RUNNING = (*OF_CLAIM, Wrong("status = ", scene="pending"))
PAST_WINDOW = Wrong(" < chatlock_threads.window_ends_at", first="UPDATE chatlock_threads SET window_ends_at = 1")
OF_ITS_TURN = (*OF_CLAIM, Wrong("state = ", lambda t: {"token": t.lost}))
ASKED = {"question": "q", "rule": "hold"}

STOP = "UPDATE chatlock_threads SET cancel_until ="

GUARDED = [
    Guarded(
        "claim.update",
        "pending",
        lambda t: claim_of(t) | {"claim_id": "c", "owner": "o", "lease": 1, "now": 1, "window_end": 1, "life_end": 1},
        (*OF_CLAIM, Wrong("status = ", scene="more"), Wrong("last_seq > ", scene="idle")),
    ),
    Guarded(
        "fetch.advance",
        "more",
        lambda t: claim_of(t) | {"fetched": t.last_seq},
        (*OF_THE_RUNNING, Wrong("fetched_seq <= ", lambda t: {"fetched": t.fetched_seq - 1})),
    ),
    Guarded("turn.mark", "running", lambda t: claim_of(t) | {"mark": "1"}, OF_ITS_TURN),
    Guarded("fence.lock", "running", claim_of, OF_THE_RUNNING),
    Guarded("fence.touch", "running", claim_of, OF_THE_RUNNING),
    Guarded(
        "fence.raise_highest",
        "fenced",
        lambda t: {"resource": "ledger", "token": t.token},
        (Wrong("highest <= ", lambda t: {"token": t.token - 1}),),
    ),
    Guarded(
        "finish.answer",
        "more",
        lambda t: claim_of(t) | {"from_seq": t.done_seq, "upto": t.fetched_seq},
        (
            OF_LIFE,
            Wrong("seq > ", lambda t: {"from_seq": t.fetched_seq}),
            Wrong("seq <= ", lambda t: {"upto": t.done_seq}),
            Wrong("disposition = ", lambda t: {"from_seq": 0, "upto": t.done_seq}),
        ),
    ),
    Guarded(
        "finish.thread",
        "more",
        lambda t: claim_of(t) | {"done": t.fetched_seq, "new_holes": 0, "new_status": "idle"} | ASKED,
        OF_THE_RUNNING,
    ),
    Guarded(
        "finish.turn",
        "more",
        lambda t: claim_of(t) | {"from_seq": t.done_seq, "upto": t.fetched_seq, "reply": "1", "silent": 0} | ASKED,
        OF_ITS_TURN,
    ),
    Guarded(
        "turn.report_late",
        "reclaimed",
        lambda t: {"incarnation": t.incarnation, "token": t.token - 1},
        (
            OF_LIFE,
            Wrong("token = ", lambda t: {"token": t.token}),
            Wrong("state = ", lambda t: {"token": t.lost}),
            Wrong("late_ended_at IS NULL", first="UPDATE chatlock_turns SET late_ended_at = 1"),
        ),
    ),
    Guarded(
        "unanswered.head_dead",
        "more",
        lambda t: claim_of(t) | {"head": t.done_seq + 1},
        (
            OF_LIFE,
            Wrong("seq = ", lambda t: {"head": t.last_seq + 1}),
            Wrong("disposition = ", lambda t: {"head": t.done_seq}),
        ),
    ),
    Guarded(
        "unanswered.thread",
        "more",
        lambda t: (
            claim_of(t)
            | {"new_status": "idle", "bump": 1, "done": t.done_seq, "delay": 0}
            | {"new_holes": 0, "new_attempts": 0, "new_stalls": 0}
        ),
        OF_THE_RUNNING,
    ),
    Guarded(
        "unanswered.turn",
        "more",
        lambda t: claim_of(t) | {"new_state": "failed", "to_seq": None, "error": None},
        OF_ITS_TURN,
    ),
    Guarded(
        "reclaim.lock_stale",
        "stale",
        lambda t: {"token": t.token, "beat": t.beat},
        (
            Wrong("expires_at < ", scene="more"),
            Wrong("token = ", lambda t: {"token": t.token - 1}),
            Wrong("beat = ", lambda t: {"beat": t.beat + 1}),
        ),
    ),
    Guarded(
        "heartbeat.beat",
        "running",
        claim_of,
        (
            *OF_CLAIM,
            PAST_WINDOW,
            Wrong(" <= chatlock_threads.expires_at", first="UPDATE chatlock_threads SET expires_at = 1"),
        ),
    ),
    Guarded("heartbeat.beat_late", "stale", claim_of, (*OF_CLAIM, PAST_WINDOW)),
    Guarded("heartbeat.note_silence", "stale", claim_of, OF_ITS_TURN),
    Guarded(
        "thread.recreate",
        "deleted",
        lambda t: {"incarnation": t.incarnation},
        (OF_LIFE, Wrong("status = ", scene="pending")),
    ),
    Guarded(
        "thread.advance_last",
        "pending",
        lambda t: {"incarnation": t.incarnation, "seq": t.last_seq + 1, "agent": "default", "priority": 0},
        (OF_LIFE, Wrong("last_seq = ", lambda t: {"seq": t.last_seq + 2})),
    ),
    Guarded(
        "thread.close_question",
        "pending",
        lambda t: {"question": "q"},
        (Wrong("awaiting = ", lambda t: {"question": "q0"}),),
        first="UPDATE chatlock_threads SET awaiting = 'q'",
    ),
    Guarded(
        "resolve.cancel",
        "more",
        lambda t: {"incarnation": t.incarnation, "seq": t.last_seq},
        (
            OF_LIFE,
            Wrong("seq = ", lambda t: {"seq": t.last_seq + 1}),
            Wrong("disposition = ", lambda t: {"seq": t.done_seq}),
        ),
    ),
    Guarded(
        "resolve.cancel_range",
        "more",
        lambda t: {"incarnation": t.incarnation, "above": t.fetched_seq, "upto": t.last_seq},
        (
            OF_LIFE,
            Wrong("seq > ", lambda t: {"above": t.last_seq}),
            Wrong("seq <= ", lambda t: {"upto": t.fetched_seq}),
            Wrong("disposition = ", lambda t: {"above": 0, "upto": t.done_seq}),
        ),
    ),
    Guarded(
        "stop.ask",
        "more",
        lambda t: claim_of(t) | {"until": 1, "queued": "keep", "upto": None, "spent": 1},
        OF_THE_RUNNING,
    ),
    Guarded(
        "stop.lock_overdue",
        "running",
        lambda t: {"token": t.token},
        (
            Wrong("status = ", scene="pending"),
            Wrong(
                "threads.token = ",
                lambda t: {"token": t.token - 1},
                first=f"{STOP} 1, cancel_token = token, token = token + 1",
            ),
            Wrong("cancel_token = ", first=f"{STOP} 1, cancel_token = token - 1"),
            Wrong("cancel_until < ", first=f"{STOP} {FAR_OFF}, cancel_token = token"),
        ),
        first=f"{STOP} 1, cancel_token = token",
    ),
    Guarded(
        "resolve.supersede",
        "more",
        lambda t: {"incarnation": t.incarnation, "above": t.fetched_seq, "upto": t.last_seq, "by": t.last_seq + 1},
        (
            OF_LIFE,
            Wrong("seq > ", lambda t: {"above": t.last_seq}),
            Wrong("seq <= ", lambda t: {"upto": t.fetched_seq}),
            Wrong("disposition = ", lambda t: {"above": 0, "upto": t.done_seq}),
        ),
    ),
    Guarded(
        "resolve.expire",
        "more",
        lambda t: {"incarnation": t.incarnation, "above": t.fetched_seq, "now": FAR_OFF, "last_end": 0},
        (
            OF_LIFE,
            Wrong("seq > ", lambda t: {"above": t.last_seq}),
            Wrong("expire_ms < ", lambda t: {"last_end": FAR_OFF}),
            Wrong("disposition = ", first="UPDATE chatlock_messages SET disposition = 'cancelled', expire_ms = 1"),
        ),
        first="UPDATE chatlock_messages SET expire_ms = 1",
    ),
    Guarded("resolve.thread", "pending", lambda t: claim_of(t) | {"done": t.done_seq, "new_holes": 0}, OF_CLAIM),
    Guarded("park.thread", "pending", lambda t: {}, (Wrong("status = ", scene="parked"),)),
    Guarded("resume.thread", "parked", lambda t: {}, (Wrong("status = ", scene="pending"),)),
    Guarded("delete.thread", "pending", lambda t: {}, (Wrong("status != ", scene="deleted"),)),
    Guarded(
        "delete.messages",
        "pending",
        lambda t: {"incarnation": t.incarnation},
        (OF_LIFE, Wrong("disposition = ", scene="idle")),
    ),
    Guarded(
        "delete.turn", "running", lambda t: {"incarnation": t.incarnation}, (OF_LIFE, Wrong("state = ", scene="idle"))
    ),
]
IMPLIED = {
    ("reclaim.lock_stale", "chatlock_threads.status = "): "only a running thread has expires_at, by its CHECK",
    ("heartbeat.beat", "chatlock_threads.status = "): "only a running thread has window_ends_at, by its CHECK",
    ("heartbeat.beat", "chatlock_threads.token = locked.token"): "the row that the CTE locked, found by its key",
    ("heartbeat.beat_late", "chatlock_threads.status = "): "only a running thread has window_ends_at, by its CHECK",
    ("heartbeat.beat_late", "chatlock_threads.token = locked.token"): "the row that the CTE locked, found by its key",
}
"""Predicates that no row can make refuse alone, and why."""
PROTOCOL = ("claim", "fetch", "fence", "finish", "turn", "unanswered", "reclaim", "heartbeat", "thread", "resolve")
OPERATORS = ("park", "resume", "delete", "stop")


# -- the statements' texts --
def text_of(name: str) -> str:
    """The statement as psycopg sends it."""
    statement = getattr(CATALOG[name], "postgresql", CATALOG[name])
    compiled = statement.compile(dialect=dialect.dialect())
    sql = " ".join(str(compiled).split())
    for bound, value in compiled.params.items():
        if not bound.startswith("b_"):
            sql = sql.replace(f"%({bound})s", "NULL" if value is None else repr(value))
    return sql.replace("%(b_", "%(")


def predicates(sql: str) -> list[str]:
    """The predicates of a statement's conditions, but for the key; what it returns is no condition."""
    conditions = re.findall(r"WHERE (.*?)(?= FOR NO KEY UPDATE|$)", sql.partition(" RETURNING ")[0])
    terms = [term for condition in conditions for term in condition.split(" AND ")]
    return [term for term in terms if not re.match(r"\w+\.(tenant|thread_id) = (%|locked)", term)]


def weakened(sql: str, predicate: str) -> str:
    """The statement without the one predicate that has this text."""
    matching = [term for term in predicates(sql) if predicate in term and not term.endswith("locked.token")]
    assert len(matching) == 1, f"{predicate!r} names {matching} of {predicates(sql)}"
    assert sql.count(matching[0]) == 1
    return sql.replace(matching[0], "true")


# -- the runs --
def row_of(arena: Arena, tenant: str) -> Any:
    """The thread's row, and `lost`."""
    cursor = arena.connection.execute(f"SELECT * FROM chatlock_threads{OF_THREAD.replace('?', '%s')}", (tenant, "t"))
    row = dict(zip([column.name for column in cursor.description], cursor.fetchone(), strict=True))
    ((lost,),) = arena.rows(f"SELECT min(token) FROM chatlock_turns{OF_THREAD}", tenant, "t")
    return SimpleNamespace(**row, lost=lost)


def touched(cursor: Any, tenant: str) -> str:
    return WRITTEN if cursor.rowcount else REFUSED


def outcome(
    arena: Arena,
    sql: str,
    scene: str,
    values: Values,
    wrong: Wrong = RIGHT,
    isolation: str = "READ COMMITTED",
    read: Callable[[Any, str], str] = touched,
    first: str = "",
) -> str:
    """Runs a statement on a fresh thread in the scene, and says what came of it; an error by its SQLSTATE."""
    tenant = f"guard-{next(NEXT)}"
    arena.build(wrong.scene or scene, tenant, ["t"])
    if wrong.first or first:
        arena.rows(f"{wrong.first or first}{OF_THREAD} RETURNING 1", tenant, "t")
    row = row_of(arena, tenant)
    bound = {"tenant": tenant, "thread": "t"} | values(row) | wrong.changed(row)
    arena.connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    try:
        return read(arena.connection.execute(sql, bound), tenant)
    except (psycopg.errors.DivisionByZero, psycopg.errors.IntegrityError) as error:
        return str(error.sqlstate)
    finally:
        arena.connection.execute("ROLLBACK")


@pytest.mark.parametrize("guarded", GUARDED, ids=lambda guarded: guarded.statement)
def test_statement_writes_in_its_scene(guarded: Guarded, pg_arena: Arena) -> None:
    first = guarded.first
    assert outcome(pg_arena, text_of(guarded.statement), guarded.scene, guarded.values, first=first) == WRITTEN


@pytest.mark.parametrize(
    ("guarded", "wrong"),
    [
        pytest.param(guarded, wrong, id=f"{guarded.statement}-{wrong.predicate.strip()}")
        for guarded in GUARDED
        for wrong in guarded.wrongs
    ],
)
def test_predicate_alone_refuses(guarded: Guarded, wrong: Wrong, pg_arena: Arena) -> None:
    sql = text_of(guarded.statement)
    assert outcome(pg_arena, sql, guarded.scene, guarded.values, wrong, first=guarded.first) == REFUSED
    without = weakened(sql, wrong.predicate)
    assert outcome(pg_arena, without, guarded.scene, guarded.values, wrong, first=guarded.first) == WRITTEN


def unguarded(guarded: list[Guarded]) -> list[str]:
    """The predicates of the protocol's conditional writes that no row of the table tests."""
    tested = {g.statement: [weakened(text_of(g.statement), wrong.predicate) for wrong in g.wrongs] for g in guarded}
    found = []
    for name, statement in CATALOG.items():
        if name.partition(".")[0] not in (*PROTOCOL, *OPERATORS) or isinstance(statement, dict):
            continue
        sql = text_of(name)
        if not re.search(r"\bUPDATE\b", sql):
            continue
        found += [
            f"{name}: {predicate}"
            for predicate in predicates(sql)
            if sql.replace(predicate, "true") not in tested.get(name, [])
            and not any(statement == name and predicate.startswith(start) for statement, start in IMPLIED)
        ]
    return found


def test_every_predicate_of_a_conditional_write_is_tested() -> None:
    assert unguarded(GUARDED) == []
    assert unguarded(GUARDED[1:]) == [f"claim.update: {term}" for term in predicates(text_of("claim.update"))]


# -- the two hot statements --
NOTHING, STORED, CLAIMED, HALF_WRITTEN = "nothing", "stored", "claimed", "half written"
REPEATABLE = "REPEATABLE READ"


class Fragment(NamedTuple):
    """A guard of a hot statement: its text, what stands in its place, and what comes out with it and without."""

    text: str
    instead: str
    wrong: Wrong
    guarded: str
    unguarded: str
    isolation: str = "READ COMMITTED"


def seen_by_s1(cursor: Any, tenant: str) -> str:
    row = cursor.fetchone()
    if row is None:
        return REFUSED
    _, _, seq, go, *_ = row
    return CLAIMED if go else NOTHING if seq is None else STORED


def seen_by_s2(cursor: Any, tenant: str) -> str:
    if cursor.rowcount:
        return WRITTEN
    statement = "SELECT 1 FROM chatlock_messages WHERE tenant = %s AND message_id = 'm1' AND disposition = 'answered'"
    return HALF_WRITTEN if cursor.connection.execute(statement, [tenant]).rowcount else REFUSED


def submitted(t: Any) -> dict[str, Any]:
    what = submission(Key(t.tenant, t.thread_id), "new")
    stored = {"message_id": what.message_id, "payload": what.payload, "payload_hash": what.payload_hash, "trace": None}
    asked = {"agent": what.agent, "policy": what.policy, "store": True, "may_claim": True, "backoff_max": 60_000}
    asked |= {"priority": what.priority}
    return stored | asked | {"claim_id": "c", "owner": "o", "lease": 1_000, "window": 1_000}


def finished(t: Any) -> dict[str, Any]:
    return claim_of(t) | {"from_seq": t.done_seq, "upto": t.fetched_seq, "held": 1, "reply": "1"}


def in_idle(column: str, value: Any) -> Wrong:
    return Wrong("", first=f"UPDATE chatlock_threads SET {column} = {value}")


ISOLATION = "current_setting('transaction_isolation')='read committed'"
QUEUE_IS_LEFT = "(l.status <> 'idle' OR NOT %(may_claim)s)"
S1 = [
    Fragment(ISOLATION, "true", RIGHT, REFUSED, CLAIMED, REPEATABLE),
    Fragment("l.status <> 'deleted'", "true", Wrong("", scene="deleted"), NOTHING, STORED),
    Fragment("%(store)s AND", "true AND", Wrong("", lambda t: {"store": False}, "more"), NOTHING, STORED),
    Fragment(QUEUE_IS_LEFT, "true", Wrong("", scene="pending"), NOTHING, STORED),
    Fragment("DO NOTHING", "DO UPDATE SET trace = ''", Wrong("", lambda t: {"message_id": "m0"}), NOTHING, CLAIMED),
    Fragment("(%(may_claim)s AND l.status", "(l.status", Wrong("", lambda t: {"may_claim": False}), STORED, CLAIMED),
    Fragment("s AND l.status='idle' AND", "s AND", in_idle("status", "'parked'"), STORED, CLAIMED),
    Fragment("AND l.attempts=0", "", in_idle("attempts", 1), STORED, CLAIMED),
    Fragment("AND l.stalls=0", "", in_idle("stalls", 1), STORED, CLAIMED),
    Fragment("AND l.not_before<=i.received_at", "", in_idle("not_before", FAR_OFF), STORED, CLAIMED),
    Fragment("AND l.quiet_until<=i.received_at", "", in_idle("quiet_until", FAR_OFF), STORED, CLAIMED),
    Fragment("AND l.awaiting IS NULL", "", in_idle("awaiting", "'question'"), NOTHING, CLAIMED),
]
CANCELLED_MEANWHILE = Wrong("", first="UPDATE chatlock_messages SET disposition = 'cancelled'")
ENDED_MEANWHILE = Wrong("", first="UPDATE chatlock_turns SET state = 'reclaimed', ended_at = 1")
S2 = [
    Fragment("AND incarnation=%(incarnation)s", "", OF_LIFE, REFUSED, DIVISION_BY_ZERO),
    Fragment("AND token=%(token)s", "", OF_CLAIM[1], REFUSED, HALF_WRITTEN),
    Fragment("AND status='running'", "", Wrong("", scene="pending"), REFUSED, DIVISION_BY_ZERO),
    Fragment("AND done_seq=%(from_seq)s", "", Wrong("", lambda t: {"from_seq": t.done_seq - 1}), REFUSED, WRITTEN),
    Fragment("AND done_seq<%(upto)s", "", Wrong("", lambda t: {"upto": t.done_seq}), REFUSED, DIVISION_BY_ZERO),
    Fragment(
        "AND %(upto)s<=fetched_seq", "", Wrong("", lambda t: {"upto": t.last_seq, "held": 2}), REFUSED, CHECK_VIOLATED
    ),
    Fragment("AND holes=0", "", Wrong("", first="UPDATE chatlock_threads SET holes = 1"), REFUSED, WRITTEN),
    Fragment(ISOLATION, "true", RIGHT, REFUSED, WRITTEN, REPEATABLE),
    Fragment("AND x.seq<=%(upto)s", "", RIGHT, WRITTEN, DIVISION_BY_ZERO),
    Fragment("AND x.disposition='pending'", "", CANCELLED_MEANWHILE, DIVISION_BY_ZERO, WRITTEN),
    Fragment("AND x.state='running'", "", ENDED_MEANWHILE, DIVISION_BY_ZERO, WRITTEN),
    Fragment("=%(held)s)::int", "=1)::int", Wrong("", lambda t: {"held": 2}), DIVISION_BY_ZERO, WRITTEN),
    Fragment("1/((SELECT count(*) FROM r)=1)::int", "1", ENDED_MEANWHILE, DIVISION_BY_ZERO, WRITTEN),
]


@pytest.mark.parametrize("fragment", S1, ids=lambda fragment: fragment.text)
def test_guard_of_the_hot_submit_decides_alone(fragment: Fragment, pg_arena: Arena) -> None:
    assert hot.S1_POSTGRESQL.count(fragment.text) == 1
    for sql, expected in (
        (hot.S1_POSTGRESQL, fragment.guarded),
        (hot.S1_POSTGRESQL.replace(fragment.text, fragment.instead), fragment.unguarded),
    ):
        assert outcome(pg_arena, sql, "idle", submitted, fragment.wrong, fragment.isolation, seen_by_s1) == expected


@pytest.mark.parametrize("fragment", S2, ids=lambda fragment: fragment.text)
def test_guard_of_the_hot_finish_decides_alone(fragment: Fragment, pg_arena: Arena) -> None:
    assert hot.S2_POSTGRESQL.count(fragment.text) == 1
    for sql, expected in (
        (hot.S2_POSTGRESQL, fragment.guarded),
        (hot.S2_POSTGRESQL.replace(fragment.text, fragment.instead), fragment.unguarded),
    ):
        assert outcome(pg_arena, sql, "more", finished, fragment.wrong, fragment.isolation, seen_by_s2) == expected

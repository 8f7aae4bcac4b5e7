"""Each predicate of each conditional write of the protocol: it alone refuses, and without it the write goes through.

One test is the check and its control: the statement as it is touches no row, and with that one predicate replaced by
`true` it does. PostgreSQL's text, since there a statement meets rows that others change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
from sqlalchemy.dialects.postgresql import psycopg as dialect

from chatlock import Key
from chatlock.ops import hot
from chatlock.ops.base import CATALOG
from tests.races.arena import OF_THREAD, submission
from tests.races.guarded import (
    CHECK_VIOLATED,
    DIVISION_BY_ZERO,
    FAR_OFF,
    GUARDED,
    IMPLIED,
    NEXT,
    OF_CLAIM,
    OF_LIFE,
    REFUSED,
    RIGHT,
    WRITTEN,
    Guarded,
    Values,
    Wrong,
    claim_of,
)

if TYPE_CHECKING:
    from tests.races.arena import Arena

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

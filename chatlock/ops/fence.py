"""fence and session: what a turn may do in the caller's own transaction, or keep for its thread, under its claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from sqlalchemy import delete, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import Compiled

from chatlock.dialects import per_dialect
from chatlock.errors import ClaimLost
from chatlock.ops.base import UNDER_CLAIM, Claim, b, mine, named, of_thread, run
from chatlock.schema import fences, sessions, threads

Kind: TypeAlias = Literal["postgresql", "sqlite"]

FENCE_PG = named("fence.lock", select(threads.c.token).where(UNDER_CLAIM).with_for_update(key_share=True))
FENCE_SQLITE = named(
    "fence.touch", update(threads).where(UNDER_CLAIM).values(beat=threads.c.beat).returning(threads.c.token)
)
BOUND_IDLE = named("fence.bound_idle", text("SET LOCAL idle_in_transaction_session_timeout = '10s'"))


def _raise_highest(insert: Any) -> Any:
    new = insert(fences).values(tenant=b("tenant"), thread_id=b("thread"), resource=b("resource"), highest=b("token"))
    return new.on_conflict_do_update(
        index_elements=[fences.c.tenant, fences.c.thread_id, fences.c.resource],
        set_={"highest": new.excluded.highest},
        where=fences.c.highest <= new.excluded.highest,
    ).returning(fences.c.highest)


RAISE_HIGHEST = named("fence.raise_highest", per_dialect(_raise_highest))


def _compiled(*statements: Any) -> list[Compiled]:
    psycopg: Any = postgresql.dialect
    return [statement.compile(dialect=psycopg(paramstyle="pyformat")) for statement in statements]


def _compiled_sqlite(statement: Any) -> list[Compiled]:
    return [statement.compile(dialect=sqlite.dialect(paramstyle="named"))]


_ON_DRIVERS: dict[Kind, list[Compiled]] = {
    "postgresql": _compiled(BOUND_IDLE, FENCE_PG),
    "sqlite": _compiled_sqlite(FENCE_SQLITE),
}
_RAISE_ON_DRIVERS: dict[Kind, list[Compiled]] = {
    "postgresql": _compiled(BOUND_IDLE, RAISE_HIGHEST.postgresql),
    "sqlite": _compiled_sqlite(RAISE_HIGHEST.sqlite),
}
KEEP = named(
    "session.insert",
    per_dialect(
        lambda insert: (
            insert(sessions)
            .values(tenant=b("tenant"), thread_id=b("thread"), name=b("name"), value=b("value"), token=b("token"))
            .on_conflict_do_nothing()
        )
    ),
)
KEPT = named("session.select", select(sessions.c.value).where(of_thread(sessions), sessions.c.name == b("name")))
FORGET = named("session.delete", delete(sessions).where(of_thread(sessions)))


def fence(conn: Connection, claim: Claim) -> None:
    """Locks the thread's row in the caller's open transaction until its commit.

    Guard: incarnation, token, running.  Raises ClaimLost.  On SQLite it takes the write lock; on PostgreSQL the
    row's, and the transaction's idle time is bounded to 10 s.
    """
    bound = {"incarnation": claim.incarnation, "token": claim.token}
    if conn.dialect.name == "postgresql":
        run(conn, BOUND_IDLE)
        held = run(conn, FENCE_PG, claim.key, **bound).all()
    else:
        held = run(conn, FENCE_SQLITE, claim.key, **bound).all()
    judge(held)


def judge(held: Sequence[Any]) -> None:
    """Raises ClaimLost unless the fence found the thread under its claim."""
    if len(held) != 1:
        raise ClaimLost


def on_driver(kind: Kind, claim: Claim, resource: str | None) -> list[tuple[str, dict[str, Any]]]:
    """The fence (of a resource: raise_highest) as statements for a connection of the driver itself; the last one's
    rows are to be judged.
    """
    bound: dict[str, Any] = {"b_tenant": claim.key.tenant, "b_thread": claim.key.thread, "b_resource": resource}
    bound |= {"b_incarnation": claim.incarnation, "b_token": claim.token}
    return [
        (str(compiled), {name: bound.get(name, value) for name, value in compiled.params.items()})
        for compiled in (_ON_DRIVERS if resource is None else _RAISE_ON_DRIVERS)[kind]
    ]


def raise_highest(conn: Connection, claim: Claim, resource: str) -> None:
    """Raises the highest token that `resource` has seen, in another store, and holds it until the transaction ends.

    One statement tests and raises: a takeover that begins with it shuts out the turn before, and what follows it in the
    transaction commits only under a token that no newer one has passed.  Guard: highest <= token.  Raises ClaimLost.
    """
    if conn.dialect.name == "postgresql":
        run(conn, BOUND_IDLE)
    judge(run(conn, RAISE_HIGHEST, claim.key, resource=resource, token=claim.token).all())


def kept_session(conn: Connection, claim: Claim, name: str) -> str | None:
    """The value retained for this thread under `name`."""
    return run(conn, KEPT, claim.key, name=name).scalar_one_or_none()


def keep_session(conn: Connection, claim: Claim, name: str, value: str) -> str:
    """Retains `value` if there is none yet, and returns what is retained.  Guard: locked and mine, else ClaimLost."""
    mine(conn, claim)
    run(conn, KEEP, claim.key, name=name, value=value, token=claim.token)
    return str(run(conn, KEPT, claim.key, name=name).scalar_one())

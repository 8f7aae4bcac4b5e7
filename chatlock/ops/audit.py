"""audit: what an operator did to a thread, written in the same transaction."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import insert
from sqlalchemy.engine import Connection

from chatlock.dialects import wall_ms
from chatlock.inputs import Key
from chatlock.ops.base import ThreadRow, b, named, run
from chatlock.schema import audit


@dataclass(frozen=True)
class Act:
    """An operator's act: the verb, who, and why."""

    action: str
    actor: str
    reason: str


@dataclass(frozen=True)
class Receipt:
    """What became of an operator's act."""

    done: bool
    """Whether it took effect."""
    reason: str
    """What was done (promoted, parked, resumed, freed, deleted), or why not: not_found, nothing_pending, running,
    not_running, other_turn, alive or not_parked.
    """
    state: str
    """The thread's status: absent, idle, running, parked or deleted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", str(self.state))  # plain text, whether a row or the machine gave it


WRITE = named(
    "audit.insert",
    insert(audit).values(
        at=wall_ms(),
        tenant=b("tenant"),
        thread_id=b("thread"),
        incarnation=b("incarnation"),
        token=b("token"),
        action=b("action"),
        actor=b("actor"),
        reason=b("reason"),
    ),
)


def write_audit(conn: Connection, key: Key, row: ThreadRow, act: Act) -> None:
    """Writes one audit row naming the incarnation and token that the operator acted on."""
    run(
        conn,
        WRITE,
        key,
        incarnation=row.incarnation,
        token=row.token,
        action=act.action,
        actor=act.actor,
        reason=act.reason,
    )

"""What happened, as it was seen from outside: events that clients, workers and tests note, for the checker to judge.

An event is a plain dict, one line of JSON: `event`, `tenant`, `thread`, and

| event | fields | noted |
|---|---|---|
| asked | call, what, message_id, payload | before a call is made (what: submit, status, cancel, delete, ..) |
| told | call, message_id, outcome, seq, turn, reply | when it has returned an outcome |
| began | token, messages, call | by who runs a turn, as soon as it has it (messages: pairs of seq and message_id) |
| fetched | token, messages | after a fetch in mid-turn, with what was new |
| finishing | token, upto, reply | before a turn is finished |
| finished | token | when finish or suspend has returned |
| asking | token, question, awaiting | when suspend has returned |
| stopping | token, queued | before a turn is asked to stop |
| stopped | token, queued, held, waiting | when it is told that the turn is asked |
| over | token, why | when someone is told that this turn's claim is no longer valid |
| effecting | token, effect | before an effect under the turn's token: a fence, a mark, a write in another store |
| effected | token, effect | when it was accepted |
| message | incarnation, seq, message_id, disposition, turn | at the end, from the tables |
| turn | incarnation, token, from_seq, to_seq, state, reply | at the end, from the tables |
| thread | incarnation, token, status, done_seq, last_seq | at the end, from the tables |
| drained | | at the end: nothing was left to do |

What is noted late only makes a check miss something; it never makes one refuse a sound history.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Connection

from chatlock.client_base import Client
from chatlock.inputs import Key, from_json
from chatlock.ops.base import Message
from chatlock.ops.stop import CancelReceipt
from chatlock.policies import Backlog
from chatlock.protocol import Outcome
from chatlock.schema import messages, threads, turns
from chatlock.turn import AsyncTurn, Turn

Event = dict[str, Any]


class History:
    """Notes events, in the order in which they are noted; safe to use from several OS threads.

    Histories of several processes of one machine are written to a file each and read together.

    Args:
        events: What was noted before.
        name: Tells the calls of several processes apart.  None: the process's id.
        now: The clock of the events, which several processes share.
        path: Each event is appended to this file when it is noted, and not kept in memory; it outlives a process that
            is killed.

    Other Parameters:
        key: The thread that it is about.
        turn: The turn that it is about.
        token: The token of the turn that it is about.
        call: What `asked` returned.
        message_id: The message that it is about.
        payload: What is submitted.
        reply: What the turn is finished with.
        effect: A name of the effect.
    """

    def __init__(
        self,
        events: Iterable[Event] = (),
        *,
        name: str | None = None,
        now: Callable[[], int] = time.monotonic_ns,
        path: Path | None = None,
    ) -> None:
        self.events = list(events)
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._name, self._now = name or f"{os.getpid()}", now
        self._noting = threading.Lock()
        self._calls = count(1)

    def note(self, event: str, key: Key, **fields: Any) -> None:
        """Adds one event.

        Args:
            event: Its name, of the table of events.
            fields: Its fields; those that are None are left out.
        """
        known = {name: value for name, value in fields.items() if value is not None}
        with self._noting:
            noted = {"event": event, "tenant": key.tenant, "thread": key.thread, "at": self._now(), **known}
            if self._file is None:
                self.events.append(noted)
            else:
                os.write(self._file, _line(noted).encode())

    # -- callers -----------------------------------------------------------------------------------------------------
    def asked(self, key: Key, what: str, message_id: str | None = None, payload: object = None) -> str:
        """A call is about to be made; returns its name for `told` and `began`.

        Args:
            what: The method: submit, status, cancel, delete, ..
        """
        call = f"{self._name}-{next(self._calls)}"
        self.note("asked", key, call=call, what=what, message_id=message_id, payload=payload)
        return call

    def told(self, key: Key, call: str, outcome: Outcome) -> None:
        """The call has returned an outcome.  A call that raised, or whose process died, is told nothing.

        Args:
            outcome: What it returned.
        """
        fields = {"turn": getattr(outcome, "turn", None), "reply": getattr(outcome, "reply", None)}
        name, message_id = type(outcome).__name__, outcome.message_id
        self.note("told", key, call=call, message_id=message_id, outcome=name, seq=outcome.seq, **fields)

    # -- workers -----------------------------------------------------------------------------------------------------
    def began(self, turn: Turn | AsyncTurn, call: str | None = None) -> None:
        """A handler has its turn.

        Args:
            call: The submit that runs it; None: a poller does.
        """
        self.note("began", turn.key, token=turn.token, messages=_pairs(turn.messages), call=call)

    def fetched(self, turn: Turn | AsyncTurn, new: Iterable[Message]) -> None:
        """A fetch in mid-turn has returned.

        Args:
            new: What it returned.
        """
        self.note("fetched", turn.key, token=turn.token, messages=_pairs(new))

    def finishing(self, turn: Turn | AsyncTurn, reply: object, upto: int | None = None) -> None:
        """The turn is about to be finished, by finish or by the handler's return.

        Args:
            upto: See Turn.finish.
        """
        last = turn.messages[-1].seq if upto is None else upto
        self.note("finishing", turn.key, token=turn.token, upto=last, reply=reply)

    def finished(self, turn: Turn | AsyncTurn) -> None:
        """finish has returned, or the transaction that it was part of has committed."""
        self.note("finished", turn.key, token=turn.token)

    def asking(self, turn: Turn | AsyncTurn, question: str, awaiting: str) -> None:
        """suspend has returned: the question is open, or was.

        Args:
            question: What it returned.
            awaiting: What it was given.
        """
        self.note("asking", turn.key, token=turn.token, question=question, awaiting=awaiting)

    def stopping(self, key: Key, token: int, queued: Backlog) -> None:
        """The turn with this token is about to be asked to stop.

        Args:
            queued: What cancel is given.
        """
        self.note("stopping", key, token=token, queued=queued)

    def stopped(self, key: Key, receipt: CancelReceipt) -> None:
        """It is asked to stop.

        Args:
            receipt: What cancel returned.
        """
        if receipt.done:
            held, waiting = list(receipt.held), list(receipt.waiting)
            self.note("stopped", key, token=receipt.turn, queued=receipt.queued, held=held, waiting=waiting)

    def over(self, key: Key, token: int, why: str) -> None:
        """Someone is told that the claim with this token is no longer valid.

        Args:
            why: freed, parked, deleted, lost or failed.
        """
        self.note("over", key, token=token, why=why)

    def effecting(self, turn: Turn | AsyncTurn, effect: str) -> None:
        """An effect under the turn's token is about to be made."""
        self.note("effecting", turn.key, token=turn.token, effect=effect)

    def effected(self, turn: Turn | AsyncTurn, effect: str) -> None:
        """It was accepted: its transaction has committed, or the other store has taken it."""
        self.note("effected", turn.key, token=turn.token, effect=effect)

    # -- the end -----------------------------------------------------------------------------------------------------
    def tables(self, chat: Client, *, drained: bool) -> None:
        """Notes what the tables hold, in one snapshot.

        Args:
            chat: A client of the database.
            drained: By now nothing should be left to do.
        """
        read = chat._executor.snapshot("history", _read_tables)  # which may be repeated: nothing is noted in it
        for (name, _, columns, _), rows in zip(_TABLES, read, strict=True):
            for row in rows:
                fields = dict(zip(columns, row[2:], strict=True))
                if "turn_token" in fields:
                    fields["turn"] = fields.pop("turn_token")
                if "reply" in fields:
                    fields["reply"] = from_json(fields["reply"])
                self.note(name, Key(row.tenant, row.thread_id), **fields)
        if drained:
            self.note("drained", Key("", ""))

    # -- files -------------------------------------------------------------------------------------------------------
    def write(self, path: Path) -> None:
        """Writes one line of JSON for each event.

        Args:
            path: The file, which is made anew.
        """
        with path.open("w") as lines:
            lines.writelines(map(_line, self.events))

    @classmethod
    def read(cls, *paths: Path) -> History:
        """The histories of several processes as one, in the order of their clock.

        A last line that is not whole is left out: its process was killed before it had noted the event.

        Args:
            paths: What they wrote.
        """
        events = [json.loads(line) for path in paths for line in path.read_text().split("\n")[:-1]]
        return cls(sorted(events, key=lambda event: event["at"]))


_TABLES: tuple[tuple[str, Any, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "message",
        messages,
        ("incarnation", "seq", "message_id", "disposition", "turn_token"),
        ("tenant", "thread_id", "incarnation", "seq"),
    ),
    (
        "turn",
        turns,
        ("incarnation", "token", "from_seq", "to_seq", "state", "reply"),
        ("tenant", "thread_id", "incarnation", "token"),
    ),
    (
        "thread",
        threads,
        ("incarnation", "token", "status", "done_seq", "last_seq"),
        ("tenant", "thread_id"),
    ),
)


def _read_tables(conn: Connection) -> list[Sequence[Any]]:
    """All rows of each table."""
    read: list[Sequence[Any]] = []
    for _, table, columns, order in _TABLES:
        chosen = [table.c.tenant, table.c.thread_id, *(table.c[column] for column in columns)]
        read.append(conn.execute(select(*chosen).order_by(*(table.c[column] for column in order))).all())
    return read


def _line(event: Event) -> str:
    return json.dumps(event) + "\n"


def _pairs(held: Iterable[Message]) -> list[list[Any]]:
    return [[message.seq, message.message_id] for message in held]

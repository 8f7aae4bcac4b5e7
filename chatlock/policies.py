"""Policies: what a message does when a turn is running, and the other choices that a caller makes by a word.

Standard library only, as protocol.py, whose transitions carry them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Policy(NamedTuple):
    """What a message does when a turn is running or messages are pending; submit applies the row.

    store: whether it is stored, if_free = only where no turn runs and nothing is pending.  pending: what becomes of the
    pending messages that no turn has.  quiet: whether the next turn waits until no more such messages come.  turn:
    what becomes of the running one: tell = its handler is told that there is something to fetch, interrupt = it is
    asked to stop, rollback = it ends and what it fetched is superseded, attach = the caller is told its outcome.
    """

    store: Literal["always", "if_free", "never"]
    pending: Literal["keep", "supersede"]
    text: str
    quiet: bool = False
    turn: Literal["leave", "tell", "interrupt", "rollback", "attach"] = "leave"


POLICIES: dict[str, Policy] = {
    "enqueue": Policy(
        "always", "keep", "stored behind what is pending; a later turn, or the running one by a fetch, takes it"
    ),
    "reject": Policy("if_free", "keep", "refused with Busy and not stored while a turn runs or messages are pending"),
    "latest": Policy("always", "supersede", "stored, and supersedes the pending messages that no turn has fetched"),
    "debounce": Policy("always", "keep", "stored; the next turn waits until no more such messages come", quiet=True),
    "steer": Policy("always", "keep", "stored; the running turn is told that there is something to fetch", turn="tell"),
    "interrupt": Policy("always", "keep", "stored; the running turn is asked to stop", turn="interrupt"),
    "rollback": Policy(
        "always", "keep", "stored; the running turn ends, and what it fetched is superseded", turn="rollback"
    ),
    "attach": Policy(
        "never", "keep", "not stored: its caller waits for the running turn and is told its outcome", turn="attach"
    ),
}


QUIET_MAX_MS = 3_600_000
"""The longest that a debounce may keep a thread.  A quiet time that ends further off means that the clock stepped."""


PolicyName = Literal["enqueue", "reject", "latest", "debounce", "steer", "interrupt", "rollback", "attach"]


@dataclass(frozen=True, kw_only=True)
class Debounce:
    """The policy debounce with its own times: the next turn waits until no more such messages come."""

    quiet_ms: int = 2_000
    """A turn starts so many ms after the last message; 1 to 3,600,000, an hour."""
    max_wait_ms: int = 10_000
    """And no later than so many ms after the oldest pending one; 1 to 3,600,000."""


@dataclass(frozen=True, kw_only=True)
class Interrupt:
    """The policy interrupt with its own bounds: the running turn is asked to stop."""

    grace_ms: int = 10_000
    """A turn that was asked and has not ended is released by force after so many ms; at least 1."""
    per_head_max: int = 3
    """How many turns over the same oldest message are asked at most; at least 1."""


BACKLOGS: dict[str, str] = {
    "keep": "all stays pending: the next turn takes it",
    "cancel": "all that was pending is cancelled: what waits now, what the turn has when it ends without an answer",
    "park": "all stays pending, and the thread is parked when the turn is over",
}
"""What becomes of the messages of a thread whose turn is stopped."""


Backlog = Literal["keep", "cancel", "park"]


PRIORITIES: dict[str, int] = {"user": 0, "resume": 10, "background": 20}
"""The classes of due threads: a lower number goes first, and background after all others."""


PriorityName = Literal["user", "resume", "background"]


OVERFLOWS: dict[str, str] = {
    "reject": 'the new message is Refused("full") and not stored',
    "drop_oldest": "the oldest pending messages that no turn has are superseded by the new one",
    "drop_newest": "the new message is stored as superseded",
}


Overflow = Literal["reject", "drop_oldest", "drop_newest"]


AWAITING_RULES: dict[str, str] = {
    "hold": "they are stored, and no turn begins until the question is closed",
    "run": "they get their turns, and the question stays open",
    "cancel": "the first of them closes the question: a later answer is refused",
}
"""What an open question does to new messages that do not answer it."""


ANSWER = "answer"
"""What messages.policy holds for the answer to a question, which no policy applies to."""


AwaitingRule = Literal["hold", "run", "cancel"]

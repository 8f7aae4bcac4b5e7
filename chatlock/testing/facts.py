"""What a check of a history stands on: the tables at its end, and the frame of one promise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chatlock.inputs import Key
from chatlock.protocol import Disposition, TurnState
from chatlock.testing.history import Event

RESOLVING = (TurnState.DONE, TurnState.GAVE_UP)
CHARGED = (TurnState.FAILED, TurnState.RECLAIMED, TurnState.GAVE_UP)
BY_TURN = (Disposition.ANSWERED, Disposition.DEAD)
DISPOSITION_TOLD = {
    "Answered": Disposition.ANSWERED,
    "AlreadyAnswered": Disposition.ANSWERED,
    "Cancelled": Disposition.CANCELLED,
    "Expired": Disposition.EXPIRED,
    "Superseded": Disposition.SUPERSEDED,
    "Dead": Disposition.DEAD,
}
ACCEPTED = (*DISPOSITION_TOLD, "Queued", "Parked")
NOT_STORED = ("Busy", "Gone", "NotFound")

MessageId = tuple[Key, str]
TurnId = tuple[Key, int]


@dataclass
class Facts:
    """What the tables hold at the end, and what is needed of the whole history before it is judged in order."""

    messages: dict[Key, list[Event]] = field(default_factory=lambda: defaultdict(list))
    by_id: dict[MessageId, list[Event]] = field(default_factory=lambda: defaultdict(list))
    turns: dict[TurnId, Event] = field(default_factory=dict)
    turns_of: dict[Key, list[Event]] = field(default_factory=lambda: defaultdict(list))
    threads: dict[Key, Event] = field(default_factory=dict)
    drained: bool = False
    attempts_max: int | None = None

    @classmethod
    def of(cls, events: Iterable[Event], attempts_max: int | None) -> Facts:
        facts = cls(attempts_max=attempts_max)
        for event in events:
            key = Key(event["tenant"], event["thread"])
            match event["event"]:
                case "message":
                    facts.messages[key].append(event)
                    facts.by_id[key, event["message_id"]].append(event)
                case "turn":
                    facts.turns[key, event["token"]] = event
                    facts.turns_of[key].append(event)
                case "thread":
                    facts.threads[key] = event
                case "drained":
                    facts.drained = True
        return facts

    @property
    def noted(self) -> bool:
        """Whether the tables are part of the history at all."""
        return bool(self.threads)


class Check(ABC):
    """One promise.  It sees every event in order, then the end; what it yields is a breach."""

    name: str
    text: str

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @abstractmethod
    def see(self, event: Event, key: Key) -> Iterator[str]:
        """What is wrong with this event, in words."""

    def end(self) -> Iterator[tuple[Key, str]]:
        """What is wrong with the whole."""
        yield from ()

"""A sound history: what clients and workers note of threads in which everything happens."""

from __future__ import annotations

from itertools import count
from typing import Any

from chatlock.inputs import Key
from chatlock.testing import History
from chatlock.testing.history import Event

TRIES = 3
T, GONE, STOPPED = Key("acme", "t"), Key("acme", "gone"), Key("acme", "stopped")


class Story:
    """Events as clients and workers note them, in few words."""

    def __init__(self) -> None:
        clock = count()
        self.history = History(name="c", now=lambda: next(clock))
        self.events = self.history.events

    def asked(self, message_id: str, what: str = "submit", key: Key = T, payload: object = "hi") -> str:
        return self.history.asked(key, what, message_id, payload if what == "submit" else None)

    def told(self, call: str, message_id: str, outcome: str, key: Key = T, **fields: Any) -> None:
        self.history.note("told", key, call=call, message_id=message_id, outcome=outcome, **fields)

    def note(self, event: str, token: int, key: Key = T, **fields: Any) -> None:
        self.history.note(event, key, token=token, **fields)

    def row(self, event: str, key: Key = T, **fields: Any) -> None:
        self.history.note(event, key, incarnation=1, **fields)


def stopped_twice(s: Story) -> None:
    """s11 and s12 are cancelled with their turn; another turn finishes with s13 although it is asked to stop."""
    s.note("began", 21, STOPPED, messages=[[11, "s11"]], call=s.asked("s11", key=STOPPED))
    s.told(s.asked("s12", key=STOPPED), "s12", "Queued", key=STOPPED, seq=12)
    s.note("stopping", 21, STOPPED, queued="cancel")
    s.note("stopped", 21, STOPPED, queued="cancel", held=["s11"], waiting=["s12"])
    s.note("over", 21, STOPPED, why="stopped")
    s.note("began", 22, STOPPED, messages=[[13, "s13"]], call=s.asked("s13", key=STOPPED))
    s.note("stopping", 22, STOPPED, queued="cancel")
    s.note("stopped", 22, STOPPED, queued="cancel", held=["s13"], waiting=[])
    s.note("finishing", 22, STOPPED, upto=13, reply="r22")
    s.note("finished", 22, STOPPED)


def sound() -> list[Event]:
    """m1 and m2 are answered together, m3 after a reclaim, m4 is cancelled, m5 dies, m6 is refused."""
    s = Story()
    c1 = s.asked("m1")
    s.note("began", 1, messages=[[1, "m1"]], call=c1)
    c2 = s.asked("m2")
    s.told(c2, "m2", "Queued", seq=2)
    s.note("effecting", 1, effect="mail")
    s.note("effected", 1, effect="mail")
    s.note("fetched", 1, messages=[[2, "m2"]])
    s.note("finishing", 1, upto=2, reply="r1")
    s.note("finished", 1)
    s.told(c1, "m1", "Answered", seq=1, turn=1, reply="r1")
    s.told(s.asked("m2"), "m2", "AlreadyAnswered", seq=2, turn=1, reply="r1")
    s.told(s.asked("m1", payload="other"), "m1", "Conflict", seq=1)
    c3 = s.asked("m3")
    s.note("began", 2, messages=[[3, "m3"]], call=c3)
    s.told(s.asked("m6"), "m6", "Busy")
    s.note("over", 2, why="lost")
    s.note("began", 4, messages=[[3, "m3"]], call=s.history.asked(T, "sweep"))
    s.note("finishing", 4, upto=3, reply="r4")
    s.note("finished", 4)
    s.told(c3, "m3", "AlreadyAnswered", seq=3, turn=4, reply="r4")
    s.told(s.asked("m4"), "m4", "Queued", seq=4)
    s.told(s.asked("m4", "cancel"), "m4", "Cancelled", seq=4)
    s.told(s.asked("m9", "status"), "m9", "NotFound")
    c5 = s.asked("m5")
    for token in (5, 6, 7):
        s.note("began", token, messages=[[5, "m5"]], call=c5)
        s.note("over", token, why="failed")
    s.told(c5, "m5", "Dead", seq=5)
    s.told(s.asked("n1", key=GONE), "n1", "Queued", key=GONE, seq=1)
    s.asked("n1", "delete", key=GONE)
    s.told(s.asked("n2", key=GONE), "n2", "Gone", key=GONE)
    stopped_twice(s)
    for seq, disposition, turn in ((1, "answered", 1), (2, "answered", 1), (3, "answered", 4), (5, "dead", 7)):
        s.row("message", seq=seq, message_id=f"m{seq}", disposition=disposition, turn=turn)
    s.row("message", seq=4, message_id="m4", disposition="cancelled")
    for seq, disposition, by in ((11, "cancelled", None), (12, "cancelled", None), (13, "answered", 22)):
        s.row("message", STOPPED, seq=seq, message_id=f"s{seq}", disposition=disposition, turn=by)
    s.row("turn", STOPPED, token=21, from_seq=10, state="released")
    s.row("turn", STOPPED, token=22, from_seq=12, to_seq=13, state="done", reply="r22")
    s.row("thread", STOPPED, token=22, status="idle", done_seq=13, last_seq=13)
    s.row("message", GONE, seq=1, message_id="n1", disposition="deleted")
    s.row("turn", token=1, from_seq=0, to_seq=2, state="done", reply="r1")
    s.row("turn", token=2, from_seq=2, state="reclaimed")
    s.row("turn", token=4, from_seq=2, to_seq=3, state="done", reply="r4")
    s.row("turn", token=5, from_seq=4, state="failed")
    s.row("turn", token=6, from_seq=4, state="failed")
    s.row("turn", token=7, from_seq=4, to_seq=5, state="gave_up")
    s.row("thread", token=7, status="idle", done_seq=5, last_seq=5)
    s.row("thread", GONE, token=1, status="deleted", done_seq=0, last_seq=1)
    s.history.note("drained", Key("", ""))
    return s.events

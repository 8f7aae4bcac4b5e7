"""Which turns the current context is in, or has to run: a submit to the thread of one would wait for itself."""

from __future__ import annotations

import contextvars
import weakref

from chatlock.hooks import Hooks, TurnEntered, TurnLeft
from chatlock.inputs import Key
from chatlock.turn_core import TurnCore

_entered: contextvars.ContextVar[frozenset[weakref.ref[TurnCore]]] = contextvars.ContextVar(
    "chatlock_entered", default=frozenset()
)
"""The turns that the current context was in; a task that a turn started has a copy, and may outlive it."""
_begun: contextvars.ContextVar[frozenset[weakref.ref[TurnCore]]] = contextvars.ContextVar(
    "chatlock_begun", default=frozenset()
)
"""The turns that begin() handed to the current context."""


def hold_turn(core: TurnCore) -> None:
    """The current context was handed the turn by begin(), and has it to run until it ends."""
    still_open = [other for other in _begun.get() if (held := other()) is not None and held.ended is None]
    _begun.set(frozenset([*still_open, weakref.ref(core)]))


def enter_turn(core: TurnCore, hooks: Hooks) -> None:
    """The current context runs inside the turn from now on, until the turn ends."""
    _entered.set(_entered.get() | {weakref.ref(core)})
    if hooks.subscribers:
        hooks.tell(TurnEntered(core.claim, core.messages))


def exit_turn(core: TurnCore, hooks: Hooks) -> None:
    """The current context has left the turn; safe in another context than the one that entered, or if none did."""
    entered = _entered.get()
    _entered.set(frozenset(other for other in entered if other() not in (None, core)))
    if hooks.subscribers and any(other() is core for other in entered):
        hooks.tell(TurnLeft(core.claim))


def inside_turn_of(key: Key) -> bool:
    """Whether the current context runs inside an open turn of the thread: a submit to it never waits, nor claims."""
    return _any_open(_entered.get(), key)


def holds_turn_of(key: Key) -> bool:
    """Whether the current context has an open turn of the thread from begin(): a submit to it never waits."""
    return _any_open(_begun.get(), key)


def _any_open(turns: frozenset[weakref.ref[TurnCore]], key: Key) -> bool:
    cores = [turn() for turn in turns]
    return any(core is not None and core.ended is None and core.claim.key == key for core in cores)

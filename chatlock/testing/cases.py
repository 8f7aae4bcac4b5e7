"""A case of a drill: one fault at one step of a handler, and what came of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from chatlock.errors import ClaimLost, place_of
from chatlock.handlers import Handler
from chatlock.protocol import Outcome

FAULTS: dict[str, str] = {
    "crash": "the process is gone at this step, and another one takes over",
    "arrival": "the process is gone at this step, another message arrives, and the next turn has both",
    "reclaim": "it stands still until another one has taken over and answered, and then goes on",
    "late": "it stands still until its claim is reclaimed, and then goes on before anyone has taken over",
    "duplicate": "the same message is delivered again at this step",
    "stop": "the caller is stopped at this step, as by Ctrl-C, and hands its turn back",
}
INSIDE = frozenset({"crash", "arrival", "stop"})


class DrillFailed(AssertionError):
    """The handler, or what it did to the world, does not survive a fault; the message names each case."""


@dataclass
class Case:
    """One fault at one step, and what came of it."""

    fault: str
    """crash, arrival, reclaim, late, duplicate or stop."""
    step: int
    """Where the fault came: the step's number, counted from 0."""
    point: str
    """The name of the point at that step."""
    thread: str
    """The case's own thread."""
    messages: dict[str, Any]
    """The payloads by message_id, that of `arrival` last."""
    own_id: str
    """The message whose caller runs the turn."""
    world: Any
    """What the `world` function made for this case; None without one."""
    runs: int = 0
    """How often the handler was entered."""
    reply: Any = None
    """What the caller's message is answered with in the end."""
    told: list[Outcome] = field(default_factory=list)
    """What its callers were told, in order."""
    errors: list[str] = field(default_factory=list)
    """What the handler raised besides ClaimLost, by name of its class."""
    failure: Exception | None = None
    """What is wrong; None: nothing."""
    _raised: Exception | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.fault} at step {self.step} ({self.point})"

    @property
    def _cause(self) -> Exception | None:
        """What the handler raised first, where the drill found something wrong; else what the check raised."""
        return self._raised if isinstance(self.failure, DrillFailed) else self.failure

    def _what_failed(self) -> str:
        raised = "" if self._raised is None else f"; the handler raised {_in_a_line(self._raised)}"
        return "" if self.failure is None else f"{_in_a_line(self.failure)}{raised}"


def _in_a_line(error: Exception) -> str:
    """What it says, or where it was raised if it says nothing."""
    text = str(error).partition("\n")[0]
    if isinstance(error, DrillFailed):
        return text
    return f"{type(error).__name__}: {text}" if text else place_of(error)


def noted(handler: Handler, case: Case) -> Callable[..., Any]:
    """The handler in its own shape; the case counts its runs and keeps what it raised."""

    @contextmanager
    def run() -> Iterator[None]:
        case.runs += 1
        try:
            yield
        except ClaimLost:
            raise
        except Exception as error:
            case.errors.append(type(error).__name__)
            case._raised = case._raised or error
            raise

    def call(turn: Any) -> Any:
        with run():
            return handler.call(turn)

    async def call_async(turn: Any) -> Any:
        with run():
            return await handler.call(turn)

    async def stream(turn: Any) -> AsyncIterator[Any]:
        with run():
            async with aclosing(handler.call(turn)) as chunks:
                async for chunk in chunks:
                    yield chunk

    return wraps(handler.call)({"sync": call, "async": call_async, "stream": stream}[handler.kind])

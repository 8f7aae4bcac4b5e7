"""H: the held handler, and the people who submit to it."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from chatlock import Answered
from tests.acceptance.cases.meters import Journal
from tests.support.waiting import SECONDS_MAX, Gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from chatlock import Chatlock, Outcome, Turn


class Holding(Protocol):
    """What an agent can be held by: a Gate, or one that reaches over processes."""

    def hold(self) -> None: ...


class ProcessGate:
    """A gate that reaches over a fork: make it before, hold at it in the child, open it in the test."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._entered, self._opened = context.Event(), context.Event()

    def hold(self) -> None:
        """See Gate.hold."""
        self._entered.set()
        assert self._opened.wait(SECONDS_MAX), "nobody opened the gate"

    def wait_entered(self) -> None:
        """See Gate.wait_entered."""
        assert self._entered.wait(SECONDS_MAX), "nobody reached the gate"

    def open(self) -> None:
        """See Gate.open."""
        self._opened.set()


class Agent:
    """H: a handler that enters its turn in the journal, holds where it was told to, and answers with the ids it holds.

    chat.handler()(agent);  gate = agent.hold("thread");  .. gate.wait_entered() .. gate.open()
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._gates: dict[str, deque[Holding]] = defaultdict(deque)
        self._made: list[Gate] = []

    def hold(self, thread: str) -> Gate:
        """A gate for one turn of the thread that is yet to come."""
        gate = Gate()
        self._made.append(gate)
        self.hold_by(thread, gate)
        return gate

    def let_go(self) -> None:
        """Opens every gate, so that a case that failed ends at once."""
        for gate in self._made:
            gate.open()

    def hold_by(self, thread: str, gate: Holding) -> None:
        """As `hold`, by a gate of the test's own."""
        self._gates[thread].append(gate)

    def __call__(self, turn: Turn) -> Any:
        self.journal.write("enter", turn)
        try:
            waiting = self._gates[turn.key.thread]
            if waiting:
                waiting.popleft().hold()
            return {"answers": [m.message_id for m in turn.messages]}
        finally:
            self.journal.write("leave", turn)


class Callers:
    """People who submit, each in an OS thread, and the list of what they were told."""

    def __init__(self, count: int = 40) -> None:
        self.told: list[tuple[str, Outcome]] = []
        self._pool = ThreadPoolExecutor(count)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        """Runs anything beside the test."""
        return self._pool.submit(function, *arguments, **options)

    def submit(self, chat: Chatlock, thread: str, payload: object, **options: Any) -> Future[Outcome]:
        """Submits beside the test; the outcome is noted as told."""
        return self._pool.submit(self.ask, chat, thread, payload, **options)

    def ask(self, chat: Chatlock, thread: str, payload: object, **options: Any) -> Outcome:
        """Submits, and notes the outcome as told."""
        outcome = chat.submit(thread, payload, **options)
        self.told.append((thread, outcome))
        return outcome

    def replies(self, thread: str) -> list[Answered]:
        """M: the reply sink. What was to be shown in the thread, in the order in which callers were told."""
        return [o for name, o in self.told if name == thread and isinstance(o, Answered)]

    def close(self) -> None:
        """Waits for everyone."""
        self._pool.shutdown()

"""What the examples share: who speaks, a scripted agent of bots, and what became of the messages."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chatlock import AlreadyAnswered, AsyncChatlock, AsyncTurn, Delivery

THINK_S = 0.2


class Said(NamedTuple):
    """One message of a person."""

    thread: str
    message_id: str
    text: str


class Clerk:
    """A scripted model that takes its time, for a bot whose replies are sent after the turn.

    replies_to: so many messages it answers.  remembers: what it has read.  all_sent: is set when all have their reply.
    """

    def __init__(self, replies_to: int) -> None:
        self.remembers: list[str] = []
        self.all_sent = asyncio.Event()
        self._left = replies_to

    async def answer(self, turn: AsyncTurn) -> str:
        """The handler."""
        said = [message.payload["text"] for message in turn.messages]
        print(f"turn {turn.token}: the agent reads {said}")
        await asyncio.sleep(THINK_S)
        self.remembers += said
        return "Noted: " + " / ".join(said)

    def has_sent(self, delivery: Delivery) -> None:
        """A reply was sent."""
        self._left -= len(delivery.message_ids)
        if not self._left:
            self.all_sent.set()


async def say_all(chat: AsyncChatlock, messages: Sequence[Said], *, every_s: float) -> None:
    """Each message is sent a moment after the one before; all are answered."""

    async def say(said: Said) -> None:
        await chat.submit(said.thread, said.text, message_id=said.message_id)

    async with asyncio.TaskGroup() as people:
        for said in messages:
            people.create_task(say(said))
            await asyncio.sleep(every_s)


async def ledger_of(chat: AsyncChatlock, messages: Sequence[Said], histories: Mapping[str, Sequence[Any]]) -> bool:
    """Prints the ledger line.  histories: what each thread's agent remembers as said by its person."""
    outcomes = [await chat.status(said.thread, said.message_id) for said in messages]
    pairs = zip(messages, outcomes, strict=True)
    turns = [(said.thread, outcome.turn) for said, outcome in pairs if isinstance(outcome, AlreadyAnswered)]
    times = [list(histories[said.thread]).count(said.text) for said in messages]
    lost, twice = times.count(0), sum(count > 1 for count in times)
    print(
        f"ledger: {len(messages)} messages, {len(turns)} answered in {len(set(turns))} turns, "
        f"{lost} lost, {twice} answered twice"
    )
    return (len(turns), lost, twice) == (len(messages), 0, 0)


def exit_code_of(serve: Callable[[Path], Awaitable[bool]]) -> int:
    """Runs an example in a folder of its own, which vanishes with it: 0 if its ledger is clean."""

    async def served(folder: str) -> bool:
        return await serve(Path(folder))

    with tempfile.TemporaryDirectory(prefix="chatlock-example-") as folder:
        return 0 if asyncio.run(served(folder)) else 1

"""A scripted agent: it reads a conversation, thinks, books a table and streams its reply word by word.

Both chats of the page run this code.  It does what agents do: it reads the whole history first, takes its time, acts on
the world, and writes the whole history back.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
AT = re.compile(r"\bat\s+(\d{1,2}(?::\d\d)?)", re.I)
SIZE = re.compile(rf"\b({'|'.join(NUMBERS)}|\d{{1,2}})\b", re.I)
PLACES = {"terrace": "on the terrace", "garden": "in the garden", "window": "by the window", "bar": "at the bar"}
PLACE = re.compile(rf"\b({'|'.join(PLACES)})\b", re.I)


@dataclass(frozen=True)
class Said:
    """A person's message."""

    message_id: str
    text: str


@dataclass(frozen=True)
class Reply:
    """What the agent said, the messages that it had read for it, and when it worked."""

    number: int
    text: str
    answers: tuple[str, ...]
    began_ms: int
    ended_ms: int


@dataclass(frozen=True)
class Booking:
    """A table; number 0 is not booked yet."""

    number: int = 0
    size: int | None = None
    at: str | None = None
    place: str | None = None

    def changed_by(self, text: str) -> Booking:
        """With what a message wants."""
        at, place = AT.search(text), PLACE.search(text)
        size = SIZE.search(AT.sub("", text))
        return replace(
            self,
            size=NUMBERS.get(size[1].lower()) or int(size[1]) if size and size[1] != "0" else self.size,
            at=at[1] if at else self.at,
            place=place[1].lower() if place else self.place,
        )

    def __str__(self) -> str:
        parts = (f"for {self.size}", f"at {self.at}" if self.at else "", PLACES.get(self.place or "", ""))
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Conversation:
    """The application's document of a chat: read whole and written whole."""

    lines: tuple[Said | Reply, ...] = ()
    booking: Booking = Booking()

    def open(self, new: list[Said]) -> list[Said]:
        """The new messages, and the others that no reply of this document has answered."""
        answered = {message_id for line in self.lines if isinstance(line, Reply) for message_id in line.answers}
        answered -= {said.message_id for said in new}
        return [line for line in self.lines if isinstance(line, Said) and line.message_id not in answered]


@dataclass
class Chat:
    """A chat's document, and beside it the record of what was really said and booked."""

    document: Conversation = Conversation()
    said: list[Said] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    bookings: int = 0
    running: int = 0

    def hear(self, said: Said) -> None:
        """A person's message came in, perhaps for the second time."""
        if said not in self.said:
            self.said.append(said)


class Work:
    """One turn of the agent: half of think_s until its first word, and as long again until its last."""

    def __init__(self, chat: Chat, new: list[Said], think_s: float) -> None:
        self._chat, self._new, self._think_s = chat, new, think_s
        self._began_ms = now_ms()
        unread = [said for said in new if said not in chat.document.lines]
        self._document = chat.document = replace(chat.document, lines=(*chat.document.lines, *unread))
        self.reply = Reply(0, "", (), 0, 0)

    async def words(self) -> AsyncIterator[str]:
        """Thinks, books, and says so."""
        self._chat.running += 1
        try:
            await asyncio.sleep(self._think_s / 2)
            words = self._act().split(" ")
            for number, word in enumerate(words):
                await asyncio.sleep(self._think_s / 2 / len(words))
                yield f" {word}" if number else word
            answers = tuple(said.message_id for said in self._document.open(self._new))
            self.reply = Reply(len(self._chat.replies) + 1, " ".join(words), answers, self._began_ms, now_ms())
        finally:
            self._chat.running -= 1

    def _act(self) -> str:
        booking = self._document.booking
        for said in self._document.open(self._new):
            booking = booking.changed_by(said.text)
        if booking.size is None:
            return "With pleasure. For how many people shall I book?"
        is_new, changed = not booking.number, booking != self._document.booking
        if is_new:
            self._chat.bookings += 1
            booking = replace(booking, number=self._chat.bookings)
        self._document = replace(self._document, booking=booking)
        if is_new:
            return f"Booked: a table {booking}. Your booking is number {booking.number}."
        return f"Done, booking {booking.number} is {'now ' if changed else ''}{booking}."

    def write(self) -> None:
        """The reply is sent, and the whole document written: what someone else wrote since it was read is gone."""
        self._chat.replies.append(self.reply)
        self._chat.document = replace(self._document, lines=(*self._document.lines, self.reply))


def now_ms() -> int:
    """Of this process's clock."""
    return int(time.time() * 1000)

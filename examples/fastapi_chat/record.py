"""What became of the messages of a chat, judged by the record alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from examples.demo.agent import Entry, Histories
from examples.demo.agent import Reply as Sent
from examples.demo.arrivals import Arrival
from examples.demo.ledger import Ledger, judge
from examples.fastapi_chat.agent import Chat, Reply, Said


def ledger_of(chats: Iterable[Chat]) -> Ledger:
    """The ledger of the demo, over these chats."""
    arrivals, sent, histories = [], [], Histories()
    for number, chat in enumerate(chats):
        thread = ("chat", str(number))
        arrivals += [Arrival(0, *thread, f"{number}:{said.message_id}", len(said.text)) for said in chat.said]
        sent += [Sent(thread, _entry(number, r), r.began_ms / 1000, r.ended_ms / 1000) for r in chat.replies]
        histories.write(thread, tuple(_entry(number, line) for line in chat.document.lines))
    return judge(arrivals, sent, histories)


def _entry(number: int, line: Said | Reply) -> Entry:
    if isinstance(line, Said):
        return Entry(f"{number}:{line.message_id}")
    return Entry(f"{number}:reply-{line.number}", tuple(f"{number}:{message_id}" for message_id in line.answers))


def view(chat: Chat) -> dict[str, Any]:
    """A chat for the page."""
    ledger = ledger_of([chat])
    return {
        "said": [{"id": said.message_id, "text": said.text} for said in chat.said],
        "replies": [vars(reply) for reply in chat.replies],
        "figures": {
            "messages": ledger.messages,
            "replies": ledger.turns,
            "bookings": chat.bookings,
            "overlapping": ledger.overlapping_turns,
            "twice": ledger.answered_twice,
            "forgotten": ledger.history_lost,
        },
    }

"""Drives the chat as people and their phones do, over HTTP and server-sent events, and judges both records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from fastapi import FastAPI

from chatlock import Chatlock
from examples.demo.ledger import Ledger
from examples.fastapi_chat.agent import Chat, Said
from examples.fastapi_chat.record import ledger_of

BURST = ("A table for two tonight, please", "sorry, three of us", "at 8, on the terrace if you can")
PEOPLE = 4
BETWEEN_S = 0.1


class Failed(Exception):
    """The chat did not do what it has to."""


class Person:
    """One person's thread, on one of the two sides."""

    def __init__(self, http: httpx.AsyncClient, side: str, thread: str) -> None:
        self._http, self._url = http, f"/{side}/threads/{thread}/messages"
        self.side, self.thread = side, thread

    async def events(self, key: str, text: str, stop_after: int | None = None) -> list[dict[str, Any]]:
        """Sends a message and listens; stop_after: goes away after so many events."""
        headers = {"Idempotency-Key": key, "Accept": "text/event-stream"}
        async with self._http.stream("POST", self._url, json={"text": text}, headers=headers) as answer:
            return await heard(answer, stop_after)

    async def follow(self, key: str, last_id: str) -> list[dict[str, Any]]:
        """Comes back, and goes on after the last event."""
        headers = {"Last-Event-ID": last_id}
        async with self._http.stream("GET", f"{self._url}/{key}/events", headers=headers) as answer:
            return await heard(answer, None)

    async def again(self, key: str, text: str) -> httpx.Response:
        """Sends a message for the second time."""
        return await self._http.post(self._url, json={"text": text}, headers={"Idempotency-Key": key})


async def heard(answer: httpx.Response, stop_after: int | None) -> list[dict[str, Any]]:
    """The events of a stream after the one that says that the message is stored."""
    if answer.status_code != 200:
        raise Failed(f"{answer.request.method} {answer.request.url.path} was answered {answer.status_code}")
    found: list[dict[str, Any]] = []
    async for event in events_of(answer):
        if event["event"] == "stored":
            continue
        found.append(event)
        if len(found) == stop_after:
            break
    return found


async def events_of(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events with data."""
    event: dict[str, Any] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if line:
            event[name] = json.loads(value) if name == "data" else value
        elif "data" in event:
            yield event
            event = {}


async def burst(person: Person, between_s: float = BETWEEN_S) -> None:
    """Three messages before the first is answered."""
    async with asyncio.TaskGroup() as group:
        for number, text in enumerate(BURST):
            group.create_task(person.events(f"m{number}", text))
            await asyncio.sleep(between_s)


async def drop(person: Person) -> None:
    """A phone that loses its connection after the first word, and comes back."""
    first = await person.events("dropped", "A table for five", stop_after=1)
    if person.side == "with":
        rest = await person.follow("dropped", first[-1]["id"])
        words = "".join(event["data"] for event in [*first, *rest] if event["event"] == "chunk")
        was_over = rest[0]["event"] == "reply"  # the turn ended meanwhile: its reply comes in one piece
        if not was_over and words != rest[-1]["data"]["reply"]["text"]:
            raise Failed(f"the words of a stream that was dropped do not make its reply: {words!r}")


async def retry(person: Person) -> None:
    """A phone that is not sure, and sends its message again: while it is answered, and afterwards."""
    answers = await asyncio.gather(*(person.again("again", "A table for six") for _ in range(2)))
    answers.append(await person.again("again", "A table for six"))
    if person.side == "with":
        replayed = [answer.headers.get("idempotency-replayed") for answer in answers]
        if (
            sorted(replayed, key=str) != [None, "true", "true"]
            or len({a.json()["reply"]["text"] for a in answers}) != 1
        ):
            raise Failed(f"a message that was sent again was not told its stored answer: {replayed}")


SENT = {burst: [(f"m{number}", text) for number, text in enumerate(BURST)]}
SENT |= {drop: [("dropped", "A table for five")], retry: [("again", "A table for six")]}


async def play(address: str, side: str, chats: dict[tuple[str, str], Chat]) -> Ledger:
    """Everything on one side, and its ledger."""
    async with httpx.AsyncClient(base_url=address, timeout=30) as http:
        await http.get("/")
        owner = http.cookies["visitor"]
        async with asyncio.TaskGroup() as group:
            for number in range(PEOPLE):
                for script in (burst, drop, retry):
                    thread = f"{script.__name__}-{number}"
                    group.create_task(script(Person(http, side, thread)))
                    for key, text in SENT[script]:
                        chats[owner, thread].hear(Said(key, text))
    return ledger_of(chats.values())


async def check(app: FastAPI, address: str) -> int:
    """1 where a message was lost or answered twice, or a client was told something wrong."""
    objections: list[str] = []
    without = await play(address, "without", app.state.without)
    try:
        with_ = await play(address, "with", app.state.with_)
    except* Failed as failed:
        with_ = ledger_of(app.state.with_.values())
        objections += [str(error) for error in failed.exceptions]
    with Chatlock(app.state.url, poller=False) as chat:
        objections += [f"chat.verify(): {breach}" for breach in chat.verify().breaches]
    for title, ledger in (("without chatlock", without), ("with chatlock", with_)):
        print(f"{title}:", *(f"{count:>5}  {name}" for name, count in ledger.figures().items()), sep="\n")
    print(*objections, sep="\n", end="\n" if objections else "")
    print(with_, flush=True)
    return 0 if with_.is_clean and not objections else 1

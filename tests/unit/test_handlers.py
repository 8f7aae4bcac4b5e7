"""The kinds of handlers, and the chunks of a running turn."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chatlock import Answered, Chatlock, Turn
from chatlock.client_base import begun_with, last_events
from chatlock.errors import InvalidInput
from chatlock.handlers import CHUNKS_MAX, Event, Feeds, handler_of, in_os_thread, joined
from chatlock.inputs import Key

KEY = Key("t", "c1")


# -- kinds -------------------------------------------------------------------------------------------------------------
def plain(turn: Any) -> str:
    return "ok"


async def coroutine(turn: Any) -> str:
    return "ok"


async def generator(turn: Any) -> AsyncIterator[str]:
    yield "ok"


def sync_generator(turn: Any) -> Any:
    yield "ok"


class Callable:
    def __call__(self, turn: Any) -> str:
        return "ok"


class AsyncCallable:
    async def __call__(self, turn: Any) -> str:
        return "ok"


class StreamCallable:
    async def __call__(self, turn: Any) -> AsyncIterator[str]:
        yield "ok"


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (plain, "sync"),
        (lambda turn: "ok", "sync"),
        (Callable(), "sync"),
        (functools.partial(plain), "sync"),
        (coroutine, "async"),
        (AsyncCallable(), "async"),
        (functools.partial(coroutine), "async"),
        (AsyncCallable().__call__, "async"),
        (generator, "stream"),
        (StreamCallable(), "stream"),
        (functools.partial(generator), "stream"),
    ],
)
def test_kind_of_a_handler_is_seen_in_its_code(call: Any, kind: str) -> None:
    assert handler_of(call, "default").kind == kind


@pytest.mark.parametrize("call", [None, "name", sync_generator, functools.partial(sync_generator)])
def test_what_cannot_run_a_turn_is_refused(call: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        handler_of(call, "default")
    assert refused.value.reason == "bad_handler"


def test_agent_of_a_handler_is_checked() -> None:
    with pytest.raises(InvalidInput) as refused:
        handler_of(plain, "")
    assert refused.value.reason == "bad_agent"


# -- replies -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("chunks", "reply"), [([], ""), (["a", "b"], "ab"), (["a", 1], ["a", 1]), ([{"a": 1}], [{"a": 1}])]
)
def test_text_is_joined_and_other_chunks_are_listed(chunks: list[Any], reply: Any) -> None:
    assert joined(chunks) == reply


# -- chunks ------------------------------------------------------------------------------------------------------------
def turn_over(*message_ids: str, token: int = 1) -> Any:
    messages = tuple(SimpleNamespace(message_id=message_id) for message_id in message_ids)
    return SimpleNamespace(claim=SimpleNamespace(key=KEY, incarnation=1, token=token), messages=messages)


class Listener(list[Event]):
    """Collects what it is told."""

    @property
    def data(self) -> list[Any]:
        return [event.data for event in self]


def test_listener_hears_the_turn_that_holds_its_message() -> None:
    feeds, mine, other = Feeds(), Listener(), Listener()
    feeds.listen(KEY, "m1", mine.append)
    feeds.listen(KEY, "m2", other.append)
    feeds.publish(feeds.open(turn_over("m1")), "chunk")
    assert (mine.data, other.data) == (["chunk"], [])


def test_chunks_are_named_by_incarnation_token_and_number() -> None:
    feeds, heard = Feeds(), Listener()
    feeds.listen(KEY, "m1", heard.append)
    feed = feeds.open(turn_over("m1", token=7))
    feeds.publish(feed, "a")
    feeds.publish(feed, "b")
    assert [event.id for event in heard] == ["1-7-1", "1-7-2"]


def test_late_listener_hears_what_is_kept_and_what_comes() -> None:
    feeds, heard = Feeds(), Listener()
    feed = feeds.open(turn_over("m1"))
    feeds.publish(feed, "early")
    feeds.listen(KEY, "m1", heard.append)
    feeds.publish(feed, "late")
    assert heard.data == ["early", "late"]


def test_chunks_are_handed_over_under_the_lock_so_that_none_overtakes() -> None:
    feeds = Feeds()
    feed = feeds.open(turn_over("m1"))
    feeds.publish(feed, "kept")
    locked: list[bool] = []
    feeds.listen(KEY, "m1", lambda event: locked.append(feeds._lock.locked()))
    feeds.publish(feed, "new")
    assert locked == [True, True]


def test_only_the_newest_chunks_are_kept() -> None:
    feeds, heard = Feeds(), Listener()
    feed = feeds.open(turn_over("m1"))
    for n in range(CHUNKS_MAX + 5):
        feeds.publish(feed, n)
    feeds.listen(KEY, "m1", heard.append)
    assert heard.data == list(range(5, CHUNKS_MAX + 5))
    assert heard[0].id == "1-1-6"


@pytest.mark.parametrize(
    ("heard", "replies"),
    [
        ([], True),
        (["1-7-1", "1-7-2"], False),
        (["1-7-2"], True),  # it was fetched in the middle of the turn, or more came than are kept
        (["1-6-1", "1-7-1"], False),
        (["1-6-1"], True),
    ],
)
def test_reply_comes_unless_every_chunk_of_its_turn_was_heard(heard: list[str], replies: bool) -> None:
    first = functools.reduce(begun_with, [Event(chunk_id, "chunk", "a") for chunk_id in heard], "")
    answered = Answered(message_id="m1", seq=1, incarnation=1, reply="a", turn=7)
    assert [event.kind for event in last_events(answered, first)] == ["reply"] * replies + ["outcome"]


def test_ended_turn_is_heard_no_more() -> None:
    feeds, heard = Feeds(), Listener()
    feed = feeds.open(turn_over("m1"))
    feeds.publish(feed, "chunk")
    feeds.close(feed)
    feeds.listen(KEY, "m1", heard.append)
    assert heard == []


def test_end_of_a_turn_does_not_close_the_next_one() -> None:
    feeds, heard = Feeds(), Listener()
    first, second = feeds.open(turn_over("m1")), feeds.open(turn_over("m1", token=2))
    feeds.close(first)
    feeds.publish(second, "chunk")
    feeds.listen(KEY, "m1", heard.append)
    assert [event.id for event in heard] == ["1-2-1"]


def test_listener_that_stopped_hears_nothing_and_leaves_nothing() -> None:
    feeds, heard, other = Feeds(), Listener(), Listener()
    stop = feeds.listen(KEY, "m1", heard.append)
    stop_other = feeds.listen(KEY, "m1", other.append)
    stop()
    feeds.publish(feeds.open(turn_over("m1")), "chunk")
    assert (heard.data, other.data) == ([], ["chunk"])
    stop_other()
    assert feeds._listeners == {}


@pytest.mark.parametrize("name", ["handler", "deliver"])
def test_decorator_without_parentheses_is_refused(name: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with Chatlock(url, poller=False) as chat, pytest.raises(InvalidInput, match=rf"write @chat\.{name}\(\)"):
        getattr(chat, name)(lambda turn: "ok")


def test_failed_turn_tells_where_it_was_raised_and_not_what_was_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Chatlock(f"sqlite:///{tmp_path / 'chat.db'}", tenant="t", poller=False) as chat:
        chat.setup()

        @chat.handler()
        def answer(turn: Turn) -> str:
            raise RuntimeError("canary")

        chat.submit("a", "hello", wait_ms=0)
    assert "RuntimeError at" in caplog.text
    assert "in answer" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    ("raised", "seen"), [(GeneratorExit, GeneratorExit), (StopIteration, RuntimeError), (SystemExit, SystemExit)]
)
def test_what_a_call_raises_reaches_a_flow_that_already_waits(
    raised: type[BaseException], seen: type[BaseException]
) -> None:
    """A GeneratorExit thrown into the flow would close it, and a StopIteration would never arrive."""

    async def flow() -> None:
        awaited = threading.Event()

        def call() -> None:
            awaited.wait()
            raise raised

        asyncio.get_running_loop().call_soon(awaited.set)  # the loop comes to it once the flow waits
        with pytest.raises(seen):
            await in_os_thread(call)
        await asyncio.sleep(0)  # what the flow does next may wait as well

    asyncio.run(flow())

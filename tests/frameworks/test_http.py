"""Outcomes as answers, streams, and retries as providers and phones do them."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import fastapi
import pytest

from chatlock import (
    AlreadyAnswered,
    Answered,
    Busy,
    Cancelled,
    ChatlockError,
    ClaimLost,
    Conflict,
    Dead,
    Event,
    Expired,
    Gone,
    InvalidInput,
    NotFound,
    Outcome,
    Parked,
    Queued,
    Refused,
    SchemaMismatch,
    StoreUnavailable,
    Superseded,
    Unknown,
)
from chatlock.middleware import events, openapi
from chatlock.middleware.detached import Detached, Submitting
from chatlock.middleware.http import answer_to_cancel, answer_to_edit, answer_to_status, answer_to_submit
from chatlock.middleware.problems import PROBLEM, answer_to_error
from tests.frameworks.conftest import Front
from tests.frameworks.served import Agent, serving
from tests.support.waiting import until

if TYPE_CHECKING:
    import httpx

    from tests.support.databases import Database

SECRET = "host-7:4711:deadbeef"
ASKED: dict[str, Any] = {"message_id": "m", "seq": 1, "incarnation": 1}
OUTCOMES: list[tuple[Outcome, int]] = [
    (Answered(**ASKED, reply="r", turn=1), 200),
    (AlreadyAnswered(**ASKED, reply="r", turn=1), 200),
    (Queued(**ASKED, position=0, turn=1), 202),
    (Parked(**ASKED), 202),
    (Busy(message_id="m", holder=SECRET, since_ms=5, live=True, position=2, eta_ms=4_100), 409),
    (Dead(**ASKED, reason=SECRET), 409),
    (Superseded(**ASKED, by=2), 409),
    (Cancelled(**ASKED), 409),
    (Expired(**ASKED), 409),
    (Gone(**ASKED), 410),
    (NotFound(message_id="m"), 404),
    (Conflict(**ASKED), 422),
    (Refused(message_id="m", reason="full", state="running"), 429),
    (Refused(message_id="m", reason="other_turn", state="running"), 412),
    (Refused(message_id="m", reason="not_awaiting", state="idle"), 409),
    (Unknown(message_id="m"), 503),
]


@pytest.mark.parametrize(
    ("outcome", "status"), OUTCOMES, ids=[f"{type(o).__name__}-{status}" for o, status in OUTCOMES]
)
def test_outcome_has_a_documented_answer_without_secrets(outcome: Outcome, status: int) -> None:
    told = answer_to_submit(outcome, "/where")
    assert told.status == status
    assert status in openapi.POST["responses"]
    assert told.headers["Cache-Control"] == "no-store"
    assert (told.media_type == PROBLEM) == (status >= 400)
    assert SECRET.encode() not in told.content() + answer_to_status(outcome).content()
    assert ("Retry-After" in told.headers) == (status in (202, 429, 503) or isinstance(outcome, Busy))


def test_every_outcome_is_answered() -> None:
    assert {type(outcome) for outcome, _ in OUTCOMES} == set(Outcome.__subclasses__())


def test_caller_in_the_way_of_a_turn_learns_how_its_holder_is() -> None:
    body = answer_to_submit(OUTCOMES[4][0], "/where").body
    assert body is not None
    assert {name: body[name] for name in ("since_ms", "live", "position", "eta_ms")} == {
        "since_ms": 5,
        "live": True,
        "position": 2,
        "eta_ms": 4_100,
    }


@pytest.mark.parametrize("ask", ["cancel", "edit"])
def test_turn_that_ends_while_it_is_looked_up_is_no_turn_in_the_way(ask: str) -> None:
    refused = Refused(message_id="m", reason="in_turn", state="running")
    now = AlreadyAnswered(message_id="m", seq=1, incarnation=1, reply="r", turn=1)
    told = answer_to_cancel(refused, now) if ask == "cancel" else answer_to_edit(refused, "e", "", now)
    assert told.body is not None
    assert told.status == (200 if ask == "cancel" else 409)
    assert told.body.get("reply", told.body.get("type")) in ("r", "urn:chatlock:problem:message-answered")


def test_broken_setup_is_500_and_says_nothing_of_it() -> None:
    told = answer_to_error(SchemaMismatch(f"run chatlock db upgrade on {SECRET}"))
    assert told.status == 500
    assert SECRET.encode() not in told.content()


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (StoreUnavailable(SECRET), "unavailable"),
        (StoreUnavailable(SECRET, commit_unknown=True), "unknown"),
        (ClaimLost(), "turn-lost"),
    ],
)
def test_what_is_to_be_sent_again_is_503_and_says_no_more_than_is_known(error: ChatlockError, name: str) -> None:
    told = answer_to_error(error)
    assert told.body is not None
    assert (told.status, told.body["type"]) == (503, f"urn:chatlock:problem:{name}")
    assert "Retry-After" in told.headers
    assert SECRET.encode() not in told.content()


@pytest.mark.parametrize(
    ("reason", "status", "title"),
    [
        ("not_json", 400, "The request is not valid"),
        ("too_large", 413, "Too large"),
        ("not_json_content_type", 415, "Not application/json"),
        ("precondition_required", 428, "If-Match is missing"),
    ],
)
def test_title_of_a_refused_request_says_what_is_wrong_with_it(reason: str, status: int, title: str) -> None:
    told = answer_to_error(InvalidInput(reason, "why"))
    assert told.body is not None
    assert (told.status, told.body["title"], told.body["detail"]) == (status, title, "why")


def parts_of(*told: Event | Exception, hold: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    async def source() -> AsyncIterator[Event]:
        for event in told:
            if isinstance(event, Exception):
                raise event
            yield event
        if hold is not None:
            await hold.wait()

    return events.as_sse(source())


def test_error_after_the_stream_began_is_an_event() -> None:
    async def play() -> list[bytes]:
        return [part async for part in parts_of(Event("1-1-1", "chunk", "one"), StoreUnavailable(SECRET))]

    heard = asyncio.run(play())
    assert heard[1].startswith(b"id: 1-1-1\nevent: chunk\n")
    assert heard[2].startswith(b"event: error\n")  # no id: whoever comes back goes on after the last chunk
    assert b'"status":503' in heard[2]
    assert SECRET.encode() not in heard[2]


def test_silent_stream_says_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUIET_S", 0.01)

    async def play() -> list[bytes]:
        parts: Any = parts_of(hold=asyncio.Event())
        heard = [await anext(parts) for _ in range(3)]
        await parts.aclose()
        return heard

    assert asyncio.run(play())[1:] == [b": still here\n\n"] * 2


def test_process_that_is_full_or_goes_down_takes_no_more_turns() -> None:
    async def play() -> None:
        detached, gate = Detached(1), asyncio.Event()

        async def turn() -> str:
            await gate.wait()
            return "answered"

        first = detached.start(turn())
        with pytest.raises(StoreUnavailable):
            detached.start(turn())
        gate.set()
        await detached.drain(60)
        assert first.result() == "answered"
        with pytest.raises(StoreUnavailable):
            detached.start(turn())

    asyncio.run(play())


def test_whoever_waits_for_a_turn_that_is_drained_is_not_cancelled_with_it() -> None:
    async def play() -> None:
        detached = Detached(2)

        async def turn(on_stored: Any) -> Outcome:
            on_stored(OUTCOMES[2][0])
            return await asyncio.Future()

        async def store(on_stored: Any) -> Outcome:
            return await asyncio.Future()

        told = asyncio.gather(
            Submitting(detached, turn).outcome(60), Submitting(detached, store).refused(), return_exceptions=True
        )
        await asyncio.sleep(0)
        await detached.drain(0)
        outcome, error = await told
        assert outcome is None
        assert isinstance(error, StoreUnavailable)
        assert error.commit_unknown

    asyncio.run(play())


def test_fastapi_that_ends_a_turn_before_its_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastapi, "__version__", "0.117.1")
    monkeypatch.delitem(sys.modules, "chatlock.middleware.fastapi")
    with pytest.raises(ChatlockError, match=r"0\.118"):
        import_module("chatlock.middleware.fastapi")


def test_provider_that_retries_a_slow_turn_gets_one_reply(front: Front, served: Database) -> None:
    """A webhook that is answered at once, whatever the turn takes; its retries, together and after a restart."""
    gate, retried = front.hold(), Barrier(2)
    told: list[httpx.Response] = []

    def deliver(number: int) -> None:
        told.append(front.post("hello", key="C1:171.001", Prefer="respond-async", X_Retry_Num=str(number)))

    def deliver_together(number: int) -> None:
        retried.wait()
        deliver(number)

    cut = front.http.base_url
    with socket.create_connection((cut.host, cut.port or 80)) as client:  # its answer is never read
        head = f"POST {front.messages} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(f'{head}Idempotency-Key: C1:171.001\r\nContent-Length: 7\r\n\r\n"hello"'.encode())
        gate.wait_entered()
    deliver(1)
    pair = [Thread(target=deliver_together, args=(number,)) for number in (2, 3)]
    for os_thread in pair:
        os_thread.start()
    for os_thread in pair:
        os_thread.join()
    assert [(answer.status_code, answer.json()["seq"], answer.json()["turn"]) for answer in told] == [(202, 1, 1)] * 3
    gate.open()
    until(lambda: front.get("C1:171.001").json()["outcome"] == "already_answered", what="the answer")
    deliver(4)
    restarted = Agent()
    with serving(served.url, restarted) as http:
        after = Front(http, front.base, front.thread, restarted).post("hello", key="C1:171.001")
    for answer in (told[-1], after):
        assert (answer.status_code, answer.headers["idempotency-replayed"]) == (200, "true")
    assert (front.runs, sum(restarted.runs.values())) == (1, 0)


@pytest.mark.parametrize("kinds", [("message", "app_mention"), ("app_mention", "message")])
def test_one_message_that_arrives_as_two_events_is_one_turn(front: Front, kinds: tuple[str, str]) -> None:
    """Its key is the message's, not the delivery's."""
    answers = [front.post("hello", key="C1:171.001", X_Event_Kind=kind, X_Event_Id=f"E-{kind}") for kind in kinds]
    assert [answer.json()["seq"] for answer in answers] == [1, 1]
    assert front.runs == 1

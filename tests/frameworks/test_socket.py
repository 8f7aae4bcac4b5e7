"""One WebSocket for a thread, on a real server."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.frameworks.conftest import Front, row_of
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX, until


class Talk:
    """A client of one socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def say(self, **wish: Any) -> None:
        self.socket.send(json.dumps(wish))

    def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self.socket.recv(SECONDS_MAX))
        return heard

    def hear_until(self, event: str, message_id: str) -> list[dict[str, Any]]:
        """What is said of a message, up to an event; what is said of others is passed by."""
        heard: list[dict[str, Any]] = []
        while not heard or heard[-1]["event"] != event:
            one = self.hear()
            heard += [one] if one["message_id"] == message_id else []
        return heard


@pytest.fixture
def talk(front: Front) -> Iterator[Callable[..., Talk]]:
    """Opens a socket of the test's thread."""
    with ExitStack() as stack:
        url = str(front.http.base_url.copy_with(scheme="ws")) + f"{front.base}/threads/{front.thread}/socket"

        def open_(**headers: str) -> Talk:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return Talk(stack.enter_context(connect(url, additional_headers=named, close_timeout=1)))

        yield open_


def test_message_is_stored_streamed_and_answered(front: Front, talk: Callable[..., Talk]) -> None:
    gate, one = front.hold(), talk()
    one.say(do="submit", message_id="m", payload="hello")
    heard = one.hear_until("chunk", "m")
    gate.open()
    heard += one.hear_until("outcome", "m")
    assert [event["event"] for event in heard] == ["stored", "chunk", "chunk", "outcome"]
    assert [event["data"] for event in heard[1:3]] == ["one ", "two"]
    assert heard[-1]["data"]["reply"] == "one two"
    assert heard[1]["id"] == "1-1-1"


def test_message_without_an_id_gets_one(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.say(do="submit", payload=None)
    assert len(one.hear()["message_id"]) == 32


def test_two_messages_are_followed_over_one_socket(front: Front, talk: Callable[..., Talk]) -> None:
    gate, one = front.hold(), talk()
    one.say(do="submit", message_id="a", payload=1)
    gate.wait_entered()
    one.say(do="submit", message_id="b", payload=2)
    one.hear_until("stored", "b")
    one.say(do="cancel", message_id="b")
    assert one.hear_until("outcome", "b")[-1]["data"]["outcome"] == "cancelled"
    gate.open()
    assert one.hear_until("outcome", "a")[-1]["data"]["reply"] == "one two"


def test_client_that_goes_away_does_not_stop_its_turn_and_follows_on(front: Front, talk: Callable[..., Talk]) -> None:
    gate, one = front.hold(), talk()
    one.say(do="submit", message_id="m", payload="hello")
    one.hear_until("chunk", "m")
    one.socket.socket.shutdown(socket.SHUT_RDWR)  # without a word
    two = talk()
    two.say(do="follow", message_id="m", last_event_id="1-1-0")
    assert two.hear_until("chunk", "m")[-1]["data"] == "one "
    gate.open()
    assert [event["data"] for event in two.hear_until("chunk", "m")] == ["two"]
    assert front.runs == 1


def test_repeated_id_is_told_the_stored_answer_and_another_payload_is_refused(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.say(do="submit", message_id="m", payload="hello")
    one.hear_until("outcome", "m")
    one.say(do="submit", message_id="m", payload="hello")
    heard = one.hear_until("outcome", "m")
    assert [event["event"] for event in heard] == ["stored", "reply", "outcome"]
    one.say(do="submit", message_id="m", payload="other")
    assert one.hear()["data"]["type"] == "urn:chatlock:problem:idempotency-key-reused"


def test_precondition_holds_over_the_socket(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.say(do="submit", message_id="m", payload="hello", if_match='"1-7"')
    assert one.hear()["data"]["status"] == 412


@pytest.mark.parametrize("do", ["follow", "cancel"])
def test_message_of_another_tenant_is_as_absent(front: Front, talk: Callable[..., Talk], do: str) -> None:
    front.post(key="k")
    bob = talk(X_User="bob")
    answers = []
    for key in ("k", "x"):
        bob.say(do=do, message_id=key)
        heard = bob.hear()
        heard["data"].pop("message_id", None)
        answers.append((heard["event"], heard["data"]))
    assert answers[0] == answers[1]


WRONG = [
    ("{", "not-json"),
    ("[]", "bad-wish"),
    ('{"do": "fly"}', "bad-wish"),
    ('{"do": ["submit"]}', "bad-wish"),
    ('{"do": "submit"}', "bad-wish"),
    ('{"do": "follow"}', "bad-wish"),
    ('{"do": "submit", "payload": 1, "message_id": 7}', "bad-wish"),
    ('{"do": "submit", "payload": 1, "message_id": "a/b"}', "bad-message-id"),
    ('{"do": "submit", "payload": 1, "message_id": "\\ud800"}', "bad-message-id"),
    ('{"do": "submit", "payload": 1, "message_id": ""}', "bad-message-id"),
    ('{"do": "submit", "payload": 1, "if_match": "x"}', "bad-if-match"),
    ('{"do": "submit", "payload": "\\u0000"}', "bad-text"),
    ('{"do": "submit", "payload": ' + "[" * 100 + "]" * 100 + "}", "too-deep"),
    ('{"do": "submit", "payload": "' + "a" * 300_000 + '"}', "too-large"),
    ('{"do": "submit", "payload": "' + "a" * 600_000 + '"}', "too-large"),
]


def test_wrong_words_are_problems_and_the_socket_lives(
    front: Front, talk: Callable[..., Talk], served: Database
) -> None:
    one = talk()
    for text, name in WRONG:
        one.socket.send(text)
        heard = one.hear()
        assert (heard["event"], heard["data"]["type"]) == ("problem", f"urn:chatlock:problem:{name}"), text
    assert row_of(served, front.thread, "last_seq") == ()
    one.say(do="submit", message_id="m", payload="hello")
    assert one.hear_until("outcome", "m")


def test_bytes_close_the_socket(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.socket.send(b"\x00")
    with pytest.raises(ConnectionClosedError) as closed:
        one.hear()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1003


def test_followers_of_one_socket_are_bounded(front: Front, talk: Callable[..., Talk]) -> None:
    gate, one = front.hold(), talk()
    front.post(key="k", Prefer="wait=0")
    gate.wait_entered()
    for _ in range(33):
        one.say(do="follow", message_id="k")
    assert one.hear_until("problem", "k")[-1]["data"]["type"] == "urn:chatlock:problem:too-many"
    gate.open()


@pytest.mark.parametrize("headers", [{"X_User": ""}, {"Origin": "https://elsewhere.example"}])
def test_stranger_and_page_of_another_site_get_no_socket(talk: Callable[..., Talk], headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        talk(**headers)
    assert refused.value.response.status_code == 403


def test_page_of_this_site_gets_one(front: Front, talk: Callable[..., Talk]) -> None:
    origin = str(httpx.URL(front.http.base_url).copy_with(path="/")).rstrip("/")
    one = talk(Origin=origin)
    one.say(do="submit", message_id="m", payload="hello")
    assert until(lambda: one.hear_until("outcome", "m"), what="the outcome")

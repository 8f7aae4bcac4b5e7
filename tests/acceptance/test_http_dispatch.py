"""dispatch=http: signed wake-ups, what a receiver accepts, and what becomes of a POST that is not."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import AsyncChatlock, Chatlock, InvalidInput
from chatlock.inputs import Key
from chatlock.service.dispatch import Remote
from chatlock.service.http import POSTS_AT_ONCE, HttpSender
from chatlock.service.receiver import accept, run, verify
from chatlock.service.signature import sign
from chatlock.settings import Settings
from tests.acceptance.cases.support import TENANT, rows, thread_row, turn_rows, until
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import Database

SECRET, OLD, WRONG = "the secret", "the one before", "somebody else's"
BODY = json.dumps({"tenant": TENANT, "thread": "thread", "incarnation": 1, "token": 0}).encode()
NOW = 1_800_000_000


# -- the signature -----------------------------------------------------------------------------------------------------
def test_signature_is_hmac_sha256_over_time_and_body() -> None:
    """The documented form, computed by hand: what another language has to do."""
    mac = hmac.new(SECRET.encode(), f"{NOW}.".encode() + BODY, hashlib.sha256).hexdigest()
    assert sign(SECRET, NOW, BODY) == f"t={NOW},v1={mac}"


@pytest.mark.parametrize("name", ["Chatlock-Signature", "chatlock-signature"])
@pytest.mark.parametrize("secret", [SECRET, OLD])
@pytest.mark.parametrize("later_s", [-300, 0, 300])
def test_body_signed_by_either_secret_within_five_minutes_is_accepted(name: str, secret: str, later_s: int) -> None:
    headers = {name: sign(secret, NOW, BODY)}
    assert verify(headers, BODY, [SECRET, OLD], NOW + later_s) == Key(TENANT, "thread")


GOOD = sign(SECRET, NOW, BODY)
REFUSED: dict[str, tuple[dict[str, str], bytes, float, str]] = {
    "no_header": ({}, BODY, NOW, "bad_signature"),
    "empty": ({"Chatlock-Signature": ""}, BODY, NOW, "bad_signature"),
    "wrong_secret": ({"Chatlock-Signature": sign(WRONG, NOW, BODY)}, BODY, NOW, "bad_signature"),
    "other_body": ({"Chatlock-Signature": GOOD}, BODY.replace(b"thread", b"threat"), NOW, "bad_signature"),
    "other_time": ({"Chatlock-Signature": GOOD.replace(f"{NOW}", f"{NOW + 1}")}, BODY, NOW, "bad_signature"),
    "too_old": ({"Chatlock-Signature": GOOD}, BODY, NOW + 301, "old_signature"),
    "from_the_future": ({"Chatlock-Signature": GOOD}, BODY, NOW - 301, "old_signature"),
    "another_version": ({"Chatlock-Signature": GOOD.replace("v1", "v0")}, BODY, NOW, "bad_signature"),
    "no_number": ({"Chatlock-Signature": f"t=now,{GOOD.partition(',')[2]}"}, BODY, NOW, "bad_signature"),
    "no_ascii": (
        {"Chatlock-Signature": GOOD.replace("t=1", "t=\N{ARABIC-INDIC DIGIT ONE}")},
        BODY,
        NOW,
        "bad_signature",
    ),
    "short": ({"Chatlock-Signature": GOOD[:-1]}, BODY, NOW, "bad_signature"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused(case: str) -> None:
    headers, body, now, reason = REFUSED[case]
    with pytest.raises(InvalidInput) as refused:
        verify(headers, body, [SECRET, OLD], now)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "body", [b"", b"5", b"[]", b"{}", b'{"tenant": "t"}', b"\xff", b'{"tenant": "t", "thread": 5}', b"[" * 100_000]
)
def test_signed_body_that_names_no_thread_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        verify({"Chatlock-Signature": sign(SECRET, NOW, body)}, body, [SECRET], NOW)


def test_no_secret_accepts_nothing() -> None:
    with pytest.raises(InvalidInput):
        verify({"Chatlock-Signature": GOOD}, BODY, [], NOW)


# -- the POST ----------------------------------------------------------------------------------------------------------
class Application:
    """An HTTP server of the test; `answer` is called with headers and body, and says the status."""

    def __init__(self, answer: Callable[[dict[str, str], bytes], int]) -> None:
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.seen.append((f"{self.command} {self.path}", dict(self.headers), body))
                status = answer(dict(self.headers), body)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                outer.seen.append((f"{self.command} {self.path}", {}, b""))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/chatlock"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@contextmanager
def applied(answer: Callable[[dict[str, str], bytes], int]) -> Iterator[Application]:
    made = Application(answer)
    yield made
    made.server.shutdown()
    made.server.server_close()


@contextmanager
def posting(database: Database, url: str, secret: str = SECRET) -> Iterator[tuple[Remote, HttpSender]]:
    """The poller's side; the test says when it dispatches."""
    settings = Settings(_env_file=None, url=database.url, dispatch="http", http_url=url, http_secret=secret)
    sender = HttpSender(settings)
    with Chatlock(database.url, tenant=TENANT, poller=False) as poller:
        yield Remote(poller._executor, poller._sweep, sender, settings.dispatch_lease_ms), sender
    sender.close()


def idle(sender: HttpSender) -> None:
    """Returns when no POST is under way."""
    until(lambda: sender.room() == POSTS_AT_ONCE, what="the end of the POSTs")


@pytest.fixture
def chat(database: Database) -> Iterator[Chatlock]:
    """The application's client."""
    with Chatlock(database.url, tenant=TENANT, poller=False) as made:
        made.handler()(lambda turn: [m.payload for m in turn.messages])
        yield made


def test_wake_up_is_posted_verified_and_run(chat: Chatlock, database: Database) -> None:
    delivered = []
    chat.deliver()(lambda delivery: delivered.append(delivery.reply))

    def endpoint(headers: dict[str, str], body: bytes) -> int:
        return 202 if accept(chat, verify(headers, body, [OLD, SECRET])) else 503

    with applied(endpoint) as application, posting(database, application.url) as (remote, sender):
        with Chatlock(database.url, tenant=TENANT, poller=False) as intake:
            intake.submit("thread", "hello", wait_ms=0)
        remote.dispatch_due()
        until(lambda: thread_row(database, "thread")["done_seq"] == 1, what="the answer")
        until(lambda: delivered == [["hello"]], what="the delivery")
        idle(sender)
        (called, headers, body) = application.seen[0]
        assert (called, headers["Content-Type"]) == ("POST /chatlock", "application/json")
        assert json.loads(body) == {"tenant": TENANT, "thread": "thread", "incarnation": 1, "token": 0}

        # Replayed within the five minutes: there is nothing to claim any more.
        assert endpoint(headers, body) == 202
        until(lambda: chat._capacity() == 16, what="the end of the replay")
        assert [turn["state"] for turn in turn_rows(database, "thread")] == ["done"]
        with pytest.raises(InvalidInput, match="away from now"):
            verify(headers, body, [SECRET], time.time() + 400)


def test_async_chat_runs_it_on_the_loop_that_accepts(pg_database: Database) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(pg_database.url, tenant=TENANT, poller=False) as chat:
            loops = []

            @chat.handler()
            async def handler(turn: Any) -> str:
                loops.append(asyncio.get_running_loop())
                return "answer"

            with Chatlock(pg_database.url, tenant=TENANT, poller=False) as intake:
                intake.submit("thread", "hello", message_id="m1", wait_ms=0)
            headers = {"Chatlock-Signature": sign(SECRET, int(time.time()), BODY)}
            assert accept(chat, verify(headers, BODY, [SECRET]))
            outcome = await chat.submit("thread", "hello", message_id="m1", wait_ms=20_000)
            assert getattr(outcome, "reply", None) == "answer"
            assert loops == [asyncio.get_running_loop()]

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [302, 401, 500, 503])
def test_refused_post_leaves_the_thread_to_its_dispatch_lease(
    status: int, pg_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        applied(lambda headers, body: status) as application,
        posting(pg_database, application.url) as (remote, sender),
    ):
        with Chatlock(pg_database.url, tenant=TENANT, poller=False) as intake:
            for name in ("one", "two"):
                intake.submit(name, "hello", wait_ms=0)
        for _ in range(3):
            remote.dispatch_due()
            idle(sender)
        assert [called for called, *_ in application.seen] == ["POST /chatlock"] * 2, "no redirect is followed"
        assert caplog.messages == ["dispatch.http_failed"], "told once"
        rows(pg_database, "UPDATE chatlock_due SET dispatched_until = 0")
        remote.dispatch_due()
        idle(sender)
        assert len(application.seen) == 4


def test_application_that_is_away_leaves_the_thread_to_its_dispatch_lease(
    pg_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with applied(lambda headers, body: 202) as application:
        url = application.url
    with posting(pg_database, url) as (remote, sender):
        with Chatlock(pg_database.url, tenant=TENANT, poller=False) as intake:
            intake.submit("thread", "hello", wait_ms=0)
        remote.dispatch_due()
        idle(sender)
        assert caplog.messages == ["dispatch.http_failed"]
        assert thread_row(pg_database, "thread")["token"] == 0
        assert SECRET not in caplog.text


def test_slow_application_holds_up_no_pass_and_nothing_is_leased_beyond_the_room(pg_database: Database) -> None:
    gate = Gate()

    def slow(headers: dict[str, str], body: bytes) -> int:
        gate.hold()
        return 202

    with applied(slow) as application, posting(pg_database, application.url) as (remote, sender):
        with Chatlock(pg_database.url, tenant=TENANT, poller=False) as intake:
            for number in range(POSTS_AT_ONCE + 4):
                intake.submit(f"thread-{number}", "hello", wait_ms=0)
        for _ in range(3):
            remote.dispatch_due()
        assert sender.room() == 0
        leased = rows(pg_database, "SELECT 1 AS one FROM chatlock_due WHERE dispatched_until > 0")
        assert len(leased) == POSTS_AT_ONCE
        gate.open()
        idle(sender)
        remote.dispatch_due()
        idle(sender)
        assert len(application.seen) == POSTS_AT_ONCE + 4


def test_full_or_closing_client_accepts_nothing(database: Database) -> None:
    gate = Gate()
    with Chatlock(database.url, tenant=TENANT, poller=False, turns_max=1) as chat:
        chat.handler()(lambda turn: gate.hold())
        with Chatlock(database.url, tenant=TENANT, poller=False) as intake:
            for name in ("one", "two"):
                intake.submit(name, "hello", wait_ms=0)
        assert accept(chat, Key(TENANT, "one"))
        gate.wait_entered()
        assert not accept(chat, Key(TENANT, "two"))
        gate.open()
        until(lambda: accept(chat, Key(TENANT, "two")), what="room for another turn")
        until(lambda: thread_row(database, "two")["done_seq"] == 1, what="the answer")
    assert not accept(chat, Key(TENANT, "one"))


def test_dispatched_key_that_is_unknown_does_nothing(chat: Chatlock, database: Database) -> None:
    assert accept(chat, Key(TENANT, "no such thread"))
    until(lambda: chat._capacity() == 16, what="the end")
    assert rows(database, "SELECT 1 AS one FROM chatlock_threads") == []


def test_run_returns_when_what_is_due_has_been_run(sqlite_database: Database) -> None:
    delivered = []
    with Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat:
        with Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as intake:
            for name in ("good", "bad"):
                intake.submit(name, name, wait_ms=0)

        @chat.handler()
        def handler(turn: Any) -> str:
            if turn.key.thread == "bad":
                raise RuntimeError("the handler's own")
            return "answer"

        chat.deliver()(lambda delivery: delivered.append(delivery.reply))
        assert run(chat, Key(TENANT, "good"))
        assert delivered == ["answer"]
        assert not run(chat, Key(TENANT, "good")), "there is nothing to do any more"
        assert run(chat, Key(TENANT, "bad"))
    assert [thread_row(sqlite_database, name)["done_seq"] for name in ("good", "bad")] == [1, 0]
    assert delivered == ["answer"]

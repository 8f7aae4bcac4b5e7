"""What users of other systems reported as lost, doubled, stuck or unsaid: one test for each, that it is not so here.

The reports are public issue threads, named as owner/repo#number; what they say is theirs. Each test stands for one line
of TABLE, which the tests themselves fill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from chatlock import (
    AlreadyAnswered,
    Answered,
    AsyncChatlock,
    Busy,
    Cancelled,
    Chatlock,
    ClaimLost,
    Conflict,
    Dead,
    Debounce,
    Expired,
    Interrupt,
    Limits,
    Queued,
    Refused,
    Superseded,
    Swept,
)
from chatlock.middleware.fastapi import router
from tests.conformance import rows
from tests.support.databases import Database


class Fault(NamedTuple):
    """What was reported, where, and the test that shows its absence."""

    reported: str
    where: str
    test: str


TABLE: list[Fault] = []
REPORTED = 20
"""Lines of the table: a test that loses its line is found."""


def fault(reported: str, where: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(test: Callable[..., None]) -> Callable[..., None]:
        TABLE.append(Fault(reported, where, test.__name__))
        return test

    return register


def payloads(turn: Any) -> list[Any]:
    return [message.payload for message in turn.messages]


@pytest.fixture
def chats(sqlite_database: Database) -> Iterator[Callable[..., Chatlock]]:
    """Clients of one database, each as another process would have."""
    opened: list[Chatlock] = []

    def make(**options: Any) -> Chatlock:
        opened.append(Chatlock(sqlite_database.url, **({"tenant": "t", "poller": False} | options)))
        return opened[-1]

    yield make
    assert opened[-1].verify().ok
    for chat in opened:
        chat.close()


@pytest.fixture
def chat(chats: Callable[..., Chatlock]) -> Chatlock:
    return chats()


@pytest.fixture
def front(sqlite_database: Database) -> Iterator[Callable[[Any], TestClient]]:
    """A front end's HTTP client of an application with this policy."""
    with ExitStack() as opened:

        def make(policy: Any) -> TestClient:
            chat = AsyncChatlock(sqlite_database.url, policy=policy, poller=False)
            app = FastAPI(on_shutdown=[chat.close])
            app.include_router(router(chat, tenant=lambda: "t"))
            return opened.enter_context(TestClient(app))

        yield make


def sent(chat: Chatlock, *names: str, **options: Any) -> list[Any]:
    """Messages whose payload is their id, stored without waiting."""
    return [chat.submit("c1", name, message_id=name, wait_ms=0, **options) for name in names]


# -- the boundary of a turn --
@fault("a message stored between the holder's last look and its release waits for ever", "vercel/chat#928")
def test_message_stored_as_a_turn_ends_is_answered(chat: Chatlock) -> None:
    with chat.turn("c1", "m1") as turn:
        assert turn.fetch() == []
        sent(chat, "m2")
        turn.finish("one")
    chat.handler()(payloads)
    assert chat.sweep_once().turns == 1
    assert chat.status("c1", "m2") == AlreadyAnswered(message_id="m2", seq=2, reply=["m2"], turn=2)


@fault("a sweeper that does not see turns in flight answers a second time", "getmunin/munin#814")
def test_sweep_leaves_a_turn_in_flight(chats: Callable[..., Chatlock]) -> None:
    ran: list[Any] = []
    chat, other = chats(), chats()
    other.handler()(lambda turn: ran.append(payloads(turn)))
    with chat.turn("c1", "m1") as turn:
        assert other.sweep_once() == Swept(0, 0)
        turn.finish("one")
    assert other.sweep_once().turns == 0
    assert ran == []


@fault("a redelivered message is a second run", "vstorm-co/agenticos#167")
def test_message_that_was_answered_is_told_its_reply(chat: Chatlock) -> None:
    ran: list[Any] = []
    chat.handler()(lambda turn: ran.append(turn.token) or "one")
    assert isinstance(chat.submit("c1", "m1", message_id="m1"), Answered)
    for _ in range(2):
        told = chat.submit("c1", "m1", message_id="m1")
        assert told == AlreadyAnswered(message_id="m1", seq=1, reply="one", turn=1)
    assert ran == [1]


@fault("after a restart queued input must be sent again", "openclaw/openclaw#51620")
def test_queue_outlives_its_process(chats: Callable[..., Chatlock]) -> None:
    first = chats()
    sent(first, "m1", "m2")
    first.close()
    second = chats()
    second.handler()(payloads)
    second.sweep_once()
    assert second.status("c1", "m2").reply == ["m1", "m2"]  # type: ignore[attr-defined]


@fault("what was steered into a turn that dies is lost", "first-tree-ai/opentag#216")
def test_steered_message_outlives_its_turn(chat: Chatlock, sqlite_database: Database) -> None:
    turn = chat.begin("c1", "m1")
    sent(chat, "m2", policy="steer")
    assert [m.payload for m in turn.fetch()] == ["m2"]  # type: ignore[union-attr]
    chat.free("c1", turn=1, force=True, actor="op")
    chat.handler()(payloads)
    chat.sweep_once()
    assert chat.status("c1", "m2").reply == ["m1", "m2"]  # type: ignore[attr-defined]


@fault("a turn that lost its claim posts a second reply", "fazer-ai/agents#499")
def test_late_turn_cannot_reply(chat: Chatlock) -> None:
    late = chat.begin("c1", "m1", message_id="m1")
    chat.free("c1", turn=1, force=True, actor="op")
    chat.handler()(lambda turn: "the reply")
    chat.sweep_once()
    with pytest.raises(ClaimLost):
        late.finish("another")  # type: ignore[union-attr]
    assert chat.status("c1", "m1").reply == "the reply"  # type: ignore[attr-defined]


# -- stop --
@fault("stop discards the queue, or sends it, and says neither", "archestra-ai/archestra#7411, #7884")
@pytest.mark.parametrize("queued", ["keep", "cancel", "park"])
def test_stop_says_what_becomes_of_the_queue(queued: Any, chat: Chatlock, sqlite_database: Database) -> None:
    turn = chat.begin("c1", "m1", message_id="m1")
    sent(chat, "m2")
    receipt = chat.cancel("c1", turn=1, queued=queued)
    assert (receipt.held, receipt.waiting) == (("m1",), ("m2",))
    turn.release()  # type: ignore[union-attr]
    assert rows.dispositions(sqlite_database) == ["cancelled" if queued == "cancel" else "pending"] * 2
    assert rows.thread_row(sqlite_database)["status"] == ("parked" if queued == "park" else "idle")


@fault("a stop that comes late hits the next turn", "MervinPraison/PraisonAI#5129")
def test_late_stop_leaves_the_next_turn(chat: Chatlock) -> None:
    with chat.turn("c1", "m1") as turn:
        turn.finish("one")
    with chat.turn("c1", "m2") as later:
        assert not chat.cancel("c1", turn=turn.token, queued="cancel").done
        assert not later.cancelled
        later.finish("two")


@fault("interrupted input is dropped instead of joining the next turn", "langchain-ai/langgraphjs#864")
def test_interrupted_input_joins_the_next_turn(chat: Chatlock) -> None:
    with chat.turn("c1", "m1") as turn:
        sent(chat, "m2", policy=Interrupt())
        assert turn.cancelled
        turn.release()
    chat.handler()(payloads)
    chat.sweep_once()
    assert chat.status("c1", "m2").reply == ["m1", "m2"]  # type: ignore[attr-defined]


@fault("of what is queued only the newest should run, and cannot", "hatchet-dev/hatchet#4639")
def test_only_the_newest_is_kept_where_that_is_asked(chat: Chatlock) -> None:
    with chat.turn("c1", "m1") as turn:
        sent(chat, "m2", "m3", policy="latest")
        turn.finish("one")
    chat.handler()(payloads)
    chat.sweep_once()
    assert isinstance(chat.status("c1", "m2"), Superseded)
    assert chat.status("c1", "m3").reply == ["m3"]  # type: ignore[attr-defined]


# -- people --
@fault("a question that waits for a person holds the lock, and two answers both run", "mindroom-ai/mindroom#1796")
def test_question_holds_no_claim_and_is_answered_once(chat: Chatlock, sqlite_database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        question = turn.suspend("really?")
    assert rows.thread_row(sqlite_database)["status"] == "idle"
    assert isinstance(chat.answer("c1", question, "yes", wait_ms=0), Queued)
    assert isinstance(chat.answer("c1", question, "no", wait_ms=0), Conflict)
    assert isinstance(chat.answer("c1", question, "yes", wait_ms=0), Queued)
    assert len(rows.messages(sqlite_database)) == 2


@fault("a queued message that was edited or removed is sent all the same", "microsoft/vscode#336466")
def test_edited_and_removed_messages_are_not_sent(chat: Chatlock) -> None:
    with chat.turn("c1", "m1") as turn:
        sent(chat, "m2", "m3")
        chat.edit("c1", "m2", "m2, corrected", "m2-edit")
        assert isinstance(chat.cancel("c1", "m3"), Cancelled)
        turn.finish("one")
    chat.handler()(payloads)
    chat.sweep_once()
    assert chat.status("c1", "m2-edit").reply == ["m2, corrected"]  # type: ignore[attr-defined]


@fault("start only if idle cannot be asked for, and busy says nothing", "openai/codex#38289")
def test_busy_names_its_holder_and_a_precondition_is_judged_at_once(chat: Chatlock) -> None:
    with chat.turn("c1", "m1") as turn:
        (busy,) = sent(chat, "m2", policy="reject")
        assert isinstance(busy, Busy)
        assert busy.holder is not None
        assert busy.since_ms is not None
        (refused,) = sent(chat, "m3", if_idle=True)
        assert refused == Refused(message_id="m3", reason="not_idle", state="running")
        turn.finish("one")


@fault(
    "busy over HTTP is a bare conflict, with nothing to attach to",
    "paperclipai/paperclip#10381, letta-ai/letta-code#2622",
)
def test_busy_over_http_tells_how_its_holder_is_and_leads_to_its_reply(
    chat: Chatlock, front: Callable[[Any], TestClient]
) -> None:
    rejecting, attaching = front("reject"), front("attach")
    with chat.turn("c1", "m1", message_id="m1") as turn:
        busy = rejecting.post("/threads/c1/messages", json="m2")
        assert (busy.status_code, busy.json()["type"]) == (409, "urn:chatlock:problem:thread-busy")
        assert (busy.json()["live"], busy.json()["position"], busy.headers["Retry-After"]) == (True, 1, "2")
        assert busy.json()["since_ms"] >= 0
        attached = attaching.post("/threads/c1/messages", json="m2", headers={"Prefer": "respond-async"})
        assert (attached.status_code, attached.headers["Location"]) == (202, "/threads/c1/messages/m1")
        turn.finish("one")
    assert attaching.get(attached.headers["Location"]).json()["reply"] == "one"


@fault("what is queued is not said: complete silence, no place in the queue", "NousResearch/hermes-agent#10068, #11118")
def test_queued_message_is_told_its_place_and_what_becomes_of_it(chat: Chatlock) -> None:
    with chat.turn("c1", "m1", message_id="m1") as turn:
        assert [outcome.position for outcome in sent(chat, "m2", "m3")] == [1, 2]
        assert chat.status("c1", "m1") == Queued(message_id="m1", seq=1, position=0, turn=turn.token)
        chat.cancel("c1", "m2")
        assert chat.status("c1", "m3") == Queued(message_id="m3", seq=3, position=1)
        turn.finish("one")
    assert isinstance(chat.status("c1", "m2"), Cancelled)
    assert chat.status("c1", "m3") == Queued(message_id="m3", seq=3, position=0)


@fault("three messages typed in a row are three turns", "vercel/chat#414")
def test_burst_is_one_turn(chat: Chatlock, sqlite_database: Database) -> None:
    ran: list[Any] = []
    chat.handler()(lambda turn: ran.append(payloads(turn)))
    sent(chat, "m1", "m2", "m3", policy=Debounce(quiet_ms=60_000, max_wait_ms=60_000))
    assert ran == []
    rows.execute(sqlite_database, "UPDATE chatlock_threads SET quiet_until = 0")
    rows.execute(sqlite_database, "UPDATE chatlock_due SET due_at = 0")
    chat.sweep_once()
    assert ran == [["m1", "m2", "m3"]]


@fault("background work makes a person wait", "openclaw/openclaw#14282")
def test_person_goes_before_background_work(chat: Chatlock) -> None:
    ran: list[Any] = []
    for thread, priority in (("nightly", "background"), ("person", "user")):
        chat.submit(thread, thread, wait_ms=0, priority=priority)  # type: ignore[misc]
    chat.handler()(lambda turn: ran.append(turn.key.thread))
    for _ in range(2):
        chat.sweep_once()
    assert ran == ["person", "nightly"]


# -- time --
@fault("a message that fails freezes those behind it, and stop is refused", "Untrivial-ai/agent-orchestrator#5642")
def test_failing_head_lets_the_others_pass_and_can_be_stopped(
    chats: Callable[..., Chatlock], sqlite_database: Database
) -> None:
    chat = chats(limits=Limits(attempts_max=1))
    with pytest.raises(RuntimeError), chat.turn("c1", "m1", message_id="m1"):
        raise RuntimeError
    sent(chat, "m2")
    chat.handler()(payloads)
    chat.sweep_once()
    assert isinstance(chat.status("c1", "m1"), Dead)
    assert chat.status("c1", "m2").reply == ["m2"]  # type: ignore[attr-defined]
    with chat.turn("c1", "m3") as turn:
        assert chat.cancel("c1", turn=turn.token, queued="cancel").done
        turn.finish("three")


@fault("a reply to a message of last month is delivered after a fix", "JKHeadley/instar#1603")
def test_message_that_waited_too_long_is_not_answered(chat: Chatlock, sqlite_database: Database) -> None:
    sent(chat, "m1", expire_ms=60_000)
    rows.expire_all(sqlite_database)
    ran: list[Any] = []
    chat.handler()(lambda turn: ran.append(payloads(turn)))
    chat.sweep_once()
    assert (ran, chat.status("c1", "m1")) == ([], Expired(message_id="m1", seq=1))


@fault("state that was read before the wait is stale in the turn", "agentscope-ai/agentscope#2226")
def test_turn_reads_its_messages_under_its_claim(chat: Chatlock) -> None:
    with chat.turn("c1", "m1") as turn:
        sent(chat, "m2")
        turn.finish("one")
    sent(chat, "m3", policy="latest")
    with chat.turn("c1", "m4") as turn:
        assert payloads(turn) == ["m3", "m4"]
        turn.finish("all")


def test_each_report_has_its_test() -> None:
    assert len(TABLE) == len({line.test for line in TABLE}) == REPORTED
    assert all(globals()[line.test] for line in TABLE)

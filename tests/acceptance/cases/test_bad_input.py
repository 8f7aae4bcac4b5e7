"""Text that cannot be stored, and too much of it: refused at intake, or the turn fails and the thread is free
(B23 to B26).
"""

from __future__ import annotations

import random
import string
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import Answered, Chatlock, Dead, InvalidInput, Limits, NotFound
from chatlock.inputs import ID_BYTES_MAX, PAYLOAD_BYTES_MAX, REPLY_BYTES_MAX
from chatlock.turn_core import MARK_BYTES_MAX
from tests.acceptance.cases.support import (
    assert_invariants,
    message_rows,
    quiesce,
    row_count,
    rows,
    thread_row,
    turn_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.cases.support import Callers
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]

BAD = {"lone_surrogate": "half an emoji: \ud83d", "nul": "cut\0off"}
HUGE = 64 * 1024 * 1024
QUICK = Limits(backoff_ms=1)


@pytest.fixture(params=BAD.values(), ids=BAD)
def bad(request: pytest.FixtureRequest) -> str:
    """Text that PostgreSQL, or UTF-8, cannot carry."""
    return str(request.param)


# -- B23, B24: a lone surrogate, a NUL ---------------------------------------------------------------------------------
def test_bad_text_is_refused_at_intake_wherever_it_stands(
    database: Database, serving: Client, callers: Callers, bad: str
) -> None:
    """B23, B24: text, metadata, their names and every id: one typed refusal, no row; then a normal message runs."""
    chat = serving(database)
    callers.ask(chat, "thread", "before")
    before = row_count(database)
    submits: list[dict[str, Any]] = [
        {"payload": bad},
        {"payload": {"text": "fine", "metadata": {"source": [bad]}}},
        {"payload": {bad: "a name"}},
        {"thread": bad},
        {"message_id": bad},
        {"tenant": bad},
        {"agent": bad},
    ]
    for options in submits:
        with pytest.raises(InvalidInput):
            chat.submit(**{"thread": "thread", "payload": "fine", **options})
    for call in (chat.status, chat.cancel, chat.redrive):
        for thread, message_id in (("thread", bad), (bad, "m")):
            with pytest.raises(InvalidInput):
                call(thread, message_id)
    assert row_count(database) == before
    assert isinstance(callers.ask(chat, "thread", "a normal message"), Answered)
    assert_invariants(database, chat, told=callers.told)


def test_bad_text_of_an_operator_is_refused(database: Database, client: Client, bad: str) -> None:
    """B23, B24: actor, reason and tenant of what an operator calls: refused, and nothing is done."""
    chat = client(database)
    chat.submit("thread", "hello", wait_ms=0)
    before = row_count(database)
    for options in ({"actor": bad}, {"reason": bad}, {"tenant": bad}):
        for call in (chat.park, chat.resume, chat.delete):
            with pytest.raises(InvalidInput):
                call("thread", **options)
        with pytest.raises(InvalidInput):
            chat.free("thread", turn=1, **options)
    with pytest.raises(InvalidInput):
        chat.verify(tenant=bad)
    assert row_count(database) == before
    assert thread_row(database, "thread")["status"] == "idle"


def test_bad_text_of_a_turn_is_refused_and_the_turn_goes_on(
    database: Database, client: Client, callers: Callers, bad: str
) -> None:
    """B23, B24: a reply, mark, session or key that cannot be stored is told at once; the turn may still end well."""
    chat = client(database)
    with chat.turn("thread", "hello") as turn:
        for call in (
            lambda: turn.finish(bad),
            lambda: turn.finish({bad: 1}),
            lambda: turn.mark([bad]),
            lambda: turn.session(bad, lambda key: "value"),
            lambda: turn.session("name", lambda key: bad),
            lambda: turn.step_key(bad),
        ):
            with pytest.raises(InvalidInput):
                call()
        turn.finish("fine")
    assert not rows(database, "SELECT 1 FROM chatlock_sessions")
    assert_invariants(database, chat)


def test_handler_whose_reply_cannot_be_stored_fails_and_frees_the_thread(
    database: Database, client: Client, callers: Callers, bad: str
) -> None:
    """B23, B24: the turn is charged, the message is kept and retried, and the thread serves the next one."""
    chat = client(database, limits=QUICK)
    replies = [bad, "fine", "fine too"]
    chat.handler()(lambda turn: replies.pop(0))
    callers.ask(chat, "thread", "hello", message_id="m1", wait_ms=0)
    (first,) = turn_rows(database, "thread")
    assert (first["state"], first["error"], first["reply"]) == ("failed", "InvalidInput", None)
    row = thread_row(database, "thread")
    assert (row["status"], row["attempts"]) == ("idle", 1)
    assert message_rows(database, "thread")[0]["disposition"] == "pending"
    quiesce(chat, database)
    assert isinstance(callers.ask(chat, "thread", "next"), Answered)
    assert [turn["reply"] for turn in turn_rows(database, "thread")] == [None, '"fine"', '"fine too"']
    assert_invariants(database, chat, told=callers.told)


def test_handler_that_never_gives_a_storable_reply_ends_as_dead(
    database: Database, client: Client, callers: Callers, bad: str
) -> None:
    """B23, B24: per retry policy the message is dead with its reason; the thread is not bricked."""
    chat = client(database, limits=Limits(backoff_ms=1, attempts_max=2))
    chat.handler()(lambda turn: "fine" if turn.messages[0].payload == "next" else bad)
    callers.ask(chat, "thread", "hello", message_id="m1", wait_ms=0)
    quiesce(chat, database)
    assert callers.ask(chat, "thread", "hello", message_id="m1") == Dead(message_id="m1", seq=1, reason="InvalidInput")
    assert isinstance(callers.ask(chat, "thread", "next"), Answered)
    assert_invariants(database, chat, told=callers.told)


def test_error_with_bad_text_still_fails_the_turn(database: Database, client: Client, bad: str) -> None:
    """B23, B24: what an error says never keeps its turn from ending."""
    chat = client(database, limits=QUICK)
    turn: Any = chat.begin("thread", "hello")
    turn.fail(f"broken: {bad}")
    (failed,) = turn_rows(database, "thread")
    assert (failed["state"], failed["error"][:8]) == ("failed", "broken: ")
    assert bad not in failed["error"]
    assert thread_row(database, "thread")["status"] == "idle"


def test_bad_text_that_reached_the_database_anyway_frees_the_thread(
    database: Database, client: Client, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """Negative control of B24: without the check the driver (or nothing) refuses it; the turn fails, none is stuck."""
    monkeypatch.setattr("chatlock.inputs.check_text", lambda text, what: None)
    chat = client(database, limits=QUICK)
    chat.handler()(lambda turn: bad)
    chat.submit("thread", "hello", wait_ms=0)
    states = [turn["state"] for turn in turn_rows(database, "thread")]
    # a NUL is escaped by JSON itself, and only so can it be stored
    assert states == (["done"] if bad == BAD["nul"] else ["failed"])
    assert thread_row(database, "thread")["status"] == "idle"


# -- B25: size ---------------------------------------------------------------------------------------------------------
def json_of(size: int) -> str:
    """A text whose JSON has so many bytes."""
    return "x" * (size - 2)


def test_message_is_accepted_up_to_the_limit_and_refused_above(
    database: Database, serving: Client, callers: Callers
) -> None:
    """B25: one byte decides, in bytes of UTF-8; 64 MiB are refused as well, and nothing is written."""
    chat = serving(database)
    for payload in (json_of(PAYLOAD_BYTES_MAX - 1), json_of(PAYLOAD_BYTES_MAX), "ä" * (PAYLOAD_BYTES_MAX // 2 - 1)):
        assert isinstance(callers.ask(chat, "thread", payload), Answered)
    before = row_count(database)
    for payload in (
        json_of(PAYLOAD_BYTES_MAX + 1),
        "ä" * (PAYLOAD_BYTES_MAX // 2),
        {"text": json_of(HUGE)},
        [0] * HUGE,
    ):
        with pytest.raises(InvalidInput) as refused:
            chat.submit("thread", payload)
        assert refused.value.reason == "too_large"
    assert row_count(database) == before
    assert_invariants(database, chat, told=callers.told)


def test_reply_is_stored_up_to_the_limit_and_fails_its_turn_above(
    database: Database, client: Client, callers: Callers
) -> None:
    """B25: a reply that is too large is a typed failure of its turn; the message is retried, the thread usable."""
    chat = client(database, limits=QUICK)
    replies = [json_of(REPLY_BYTES_MAX + 1), {"text": json_of(HUGE)}, json_of(REPLY_BYTES_MAX)]
    chat.handler()(lambda turn: replies.pop(0))
    callers.ask(chat, "thread", "hello", message_id="m1", wait_ms=0)
    quiesce(chat, database)
    told = callers.ask(chat, "thread", "hello", message_id="m1")
    assert told.reply == json_of(REPLY_BYTES_MAX)  # type: ignore[attr-defined]
    assert [(turn["state"], turn["error"]) for turn in turn_rows(database, "thread")] == [
        ("failed", "InvalidInput"),
        ("failed", "InvalidInput"),
        ("done", None),
    ]
    assert_invariants(database, chat, told=callers.told)


def test_turn_is_told_what_is_too_large_and_goes_on(database: Database, client: Client) -> None:
    """B25: the same for what a turn stores itself."""
    chat = client(database)
    with chat.turn("thread", "hello") as turn:
        turn.mark(json_of(MARK_BYTES_MAX))
        for call in (
            lambda: turn.mark(json_of(MARK_BYTES_MAX + 1)),
            lambda: turn.finish(json_of(REPLY_BYTES_MAX + 1)),
            lambda: turn.finish(json_of(HUGE)),
        ):
            with pytest.raises(InvalidInput) as refused:
                call()
            assert refused.value.reason == "too_large"
        turn.finish(json_of(REPLY_BYTES_MAX))
    assert_invariants(database, chat)


# -- B26: long ids -----------------------------------------------------------------------------------------------------
def random_id(size: int, seed: int = 0) -> str:
    """Text that does not compress: an index takes 200,000 equal characters, but not 4,000 random ones."""
    return "".join(random.Random(size + seed).choices(string.ascii_letters + string.digits, k=size))


def test_long_id_is_refused_at_intake(database: Database, serving: Client) -> None:
    """B26: the same limit on both databases, before a row is written; also for ids that differ only at their end."""
    chat = serving(database)
    chat.setup()
    before = row_count(database)
    for size in (ID_BYTES_MAX + 1, 255, 256, 2_600, 2_704, 4_000, 100_000):
        for twin in (random_id(size), random_id(size)[:-1] + "!"):
            for name in ("thread", "message_id", "tenant", "agent"):
                with pytest.raises(InvalidInput) as refused:
                    chat.submit(**{"thread": "thread", "payload": "hello", name: twin})
                assert refused.value.reason == f"bad_{name}"
            with pytest.raises(InvalidInput):
                chat.status("thread", twin)
    assert row_count(database) == before


def test_longest_ids_are_stored_and_never_collide(database: Database, serving: Client, callers: Callers) -> None:
    """B26: random ids of the greatest length in every column; those that differ in one byte are two threads."""
    chat = serving(database)
    longest = random_id(ID_BYTES_MAX)
    names = [longest, longest[:-1] + "!", "ä" * (ID_BYTES_MAX // 2), "ä" * (ID_BYTES_MAX // 2 - 1) + "ü"]
    for name in names:
        tenant, message_id, agent = (random_id(ID_BYTES_MAX, seed) for seed in (1, 2, 3))
        chat.handler(name)(lambda turn: "served")
        told = chat.submit(name, "hello", message_id=message_id, tenant=tenant, agent=name)
        assert told == Answered(message_id=message_id, seq=1, reply="served", turn=1), agent
    assert len(rows(database, "SELECT 1 FROM chatlock_threads")) == len(names)
    assert_invariants(database, chat)


SPELLINGS = [
    "thread",
    "Thread",
    "THREAD",
    "thread ",
    " thread",
    "thread\u200b",
    "caf\u00e9",
    "cafe\u0301",
    "\u212b",
    "\u00c5",
]


def test_ids_are_compared_bytewise(database: Database, serving: Client, callers: Callers) -> None:
    """B26: case, blanks and Unicode forms make different threads, alike on both databases."""
    chat = serving(database)
    for name in SPELLINGS:
        callers.ask(chat, name, name, message_id="m")
    assert len(rows(database, "SELECT 1 FROM chatlock_threads")) == len(SPELLINGS)
    assert [thread_row(database, name)["last_seq"] for name in SPELLINGS] == [1] * len(SPELLINGS)
    assert isinstance(chat.status("ThReAd", "m"), NotFound)
    assert_invariants(database, chat, told=callers.told)

"""What breaks a limit is refused before anything is written; what is within comes back equal from both databases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatlock import AlreadyAnswered, Answered, Chatlock, Debounce, InvalidInput, Limits
from chatlock.inputs import (
    DEPTH_MAX,
    INTEGER_MAX,
    MS_MAX,
    PAYLOAD_BYTES_MAX,
    REPLY_BYTES_MAX,
    REPLY_DEPTH_MAX,
    Key,
    key_hash,
)
from chatlock.io import SyncSignal, drive
from chatlock.policies import QUIET_MAX_MS
from tests.conformance import rows
from tests.conformance.conftest import NewChat
from tests.support import scaled
from tests.support.databases import Database

EXAMPLES = settings(max_examples=scaled(12, 300))

plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_text,
    lambda inner: st.lists(inner) | st.dictionaries(plain_text, inner),
    max_leaves=8,
)
ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=50)
bad_ids = (
    st.just("")
    | st.text(st.characters(categories=["Cc", "Cs"]), min_size=1, max_size=3)
    | st.text("a€", min_size=201, max_size=300)
    | st.integers()
    | st.binary()
)

WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "submit": lambda chat, wrong: chat.submit(wrong, "hello", wait_ms=0),
    "begin": lambda chat, wrong: chat.begin(wrong, "hello", wait_ms=0),
    "submit message_id": lambda chat, wrong: chat.submit("c1", "hello", message_id=wrong, wait_ms=0),
    "submit agent": lambda chat, wrong: chat.submit("c1", "hello", agent=wrong, wait_ms=0),
    "submit tenant": lambda chat, wrong: chat.submit("c1", "hello", tenant=wrong, wait_ms=0),
    "status": lambda chat, wrong: chat.status("c1", wrong),
    "cancel": lambda chat, wrong: chat.cancel("c1", wrong),
    "redrive": lambda chat, wrong: chat.redrive("c1", wrong),
    "park": lambda chat, wrong: chat.park(wrong),
    "resume": lambda chat, wrong: chat.resume(wrong),
    "delete": lambda chat, wrong: chat.delete(wrong),
    "free": lambda chat, wrong: chat.free(wrong, turn=1),
    "park actor": lambda chat, wrong: chat.park("c1", actor=wrong),
}


@pytest.mark.parametrize("call", WRITES)
def test_bad_id_is_refused_and_nothing_is_written(chat: Any, database: Database, call: str) -> None:
    chat.begin("c1", "hello").finish("ok")
    before = rows.dump(database)

    @EXAMPLES
    @given(bad_ids)
    def refused(wrong: Any) -> None:
        with pytest.raises(InvalidInput):
            WRITES[call](chat, wrong)

    refused()
    assert rows.dump(database) == before


BAD_PAYLOADS: dict[str, Any] = {
    "a byte too long": "x" * (PAYLOAD_BYTES_MAX - 1),
    "too deep": [[]],
    "NaN": float("nan"),
    "NUL": {"a": "\0"},
    "lone surrogate": ["\ud800"],
    "big integer": INTEGER_MAX + 1,
    "bytes": b"x",
    "set": {1},
    "key": {1: 2},
    "itself": [],
}
for _ in range(REPLY_DEPTH_MAX):
    BAD_PAYLOADS["too deep"] = [BAD_PAYLOADS["too deep"]]
ODD: list[Any] = [[], {}, 10**30, 2.5, "no such word", Debounce, Debounce(quiet_ms=QUIET_MAX_MS + 1)]
SUBMIT_OPTIONS = [
    *("policy", "overflow", "pending_max", "priority", "wait_ms", "expire_ms", "if_turn", "if_idle", "recreate"),
]
CLIENT_OPTIONS = [
    *("policy", "overflow", "pending_max", "pool_size", "turns_max", "tenant_turns_max", "limits", "pooler", "wake"),
]
BAD_PAYLOADS["itself"].append(BAD_PAYLOADS["itself"])


@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_bad_payload_is_refused_and_nothing_is_written(chat: Any, database: Database, name: str) -> None:
    before = rows.dump(database)
    for call in (chat.submit, chat.begin):
        with pytest.raises(InvalidInput):
            call("c1", BAD_PAYLOADS[name])
    assert rows.dump(database) == before


@pytest.mark.parametrize("name", [name for name in BAD_PAYLOADS if name != "a byte too long"])
def test_bad_reply_is_refused_and_the_turn_goes_on(chat: Any, database: Database, name: str) -> None:
    turn = chat.begin("c1", "hello")
    before = rows.dump(database)
    with pytest.raises(InvalidInput):
        turn.finish(BAD_PAYLOADS[name])
    assert rows.dump(database) == before
    turn.finish("ok")


@pytest.mark.parametrize("char", ["x", "é", "😀", '"'])
def test_payload_and_reply_at_their_limits_come_back(chat: Any, char: str) -> None:
    size = len(char.encode()) + (char == '"')
    payload, reply = (char * ((limit - 2) // size) for limit in (PAYLOAD_BYTES_MAX, REPLY_BYTES_MAX))
    turn = chat.begin("c1", payload, message_id="m1")
    assert turn.messages[0].payload == payload
    turn.finish(reply)
    assert chat.submit("c1", payload, message_id="m1") == AlreadyAnswered(message_id="m1", seq=1, reply=reply, turn=1)


def test_deepest_payload_comes_back(chat: Any) -> None:
    deepest: Any = []
    for _ in range(DEPTH_MAX - 1):
        deepest = [deepest]
    chat.submit("c1", deepest, wait_ms=0)
    turn = chat.begin("c1", {"a": 1})
    assert turn.messages[0].payload == deepest
    turn.finish([deepest])  # what holds a payload is a reply


def test_any_payload_reply_and_mark_come_back_equal(new_chat: NewChat) -> None:
    chat = new_chat(heartbeat=False)
    thread = count()

    @EXAMPLES
    @given(values, values, values)
    def round_trip(payload: Any, reply: Any, mark: Any) -> None:
        name = f"c{next(thread)}"
        hot = chat.begin(name, payload, message_id="m1")
        assert hot.messages[0].payload == payload
        hot.mark(mark)
        hot.release()
        read = chat.begin(name, payload, message_id="m1")
        assert read.messages[0].payload == payload
        assert read.previous_incomplete.mark == mark
        read.finish(reply)
        assert chat.status(name, "m1").reply == reply

    round_trip()


def test_any_id_comes_back_equal_and_names_one_thing(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(heartbeat=False)
    seen: set[tuple[str, str, str]] = set()

    @EXAMPLES
    @given(ids, ids, ids)
    def stored(tenant: str, thread: str, message_id: str) -> None:
        if (tenant, thread, message_id) not in seen:
            seen.add((tenant, thread, message_id))
            outcome = chat.submit(thread, "hello", tenant=tenant, message_id=message_id, wait_ms=0)
            assert chat.status(thread, message_id, tenant=tenant) == outcome

    stored()
    found = {(row["tenant"], row["thread_id"], row["message_id"]) for row in rows.table(database, "chatlock_messages")}
    assert found == seen
    hashes = {key_hash(Key(tenant, thread)) for tenant, thread, _ in seen}
    assert len(hashes) == len({(tenant, thread) for tenant, thread, _ in seen})


@pytest.mark.parametrize(("one", "other"), [("é", "e\u0301"), ("A", "a"), ("a ", "a"), ("ß", "ss"), ("\uff11", "1")])
def test_ids_are_compared_bytewise(chat: Any, one: str, other: str) -> None:
    first = chat.submit(one, "hello", message_id=one, wait_ms=0)
    second = chat.submit(other, "hello", message_id=other, wait_ms=0)
    assert (first.seq, second.seq) == (1, 1)
    assert chat.submit(one, "hello", message_id=other, wait_ms=0).seq == 2


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "no_such_policy"},
        {"policy": 7},
        {"wait_ms": "1"},
        {"wait_ms": 1.5},
        {"if_idle": "no"},
        {"recreate": 1},
        {"if_turn": "1"},
        {"on_stored": 7},
        {"no_such_option": 1},
    ],
)
def test_bad_option_is_refused_and_nothing_is_written(chat: Any, database: Database, options: dict[str, Any]) -> None:
    before = rows.dump(database)
    with pytest.raises(InvalidInput):
        chat.submit("c1", "hello", **options)
    assert rows.dump(database) == before


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "no_such_policy"},
        {"pooler": "session"},
        {"pool_size": 0},
        {"turns_max": 0},
        {"turns_max": "3"},
        {"turns_max": True},
        {"pool_size": None},
        {"heartbeat": "no"},
        {"poller": "no"},
        {"wake": "redis"},
        {"no_such_option": 1},
    ],
)
def test_client_with_a_bad_option_is_refused(new_chat: NewChat, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        new_chat(**options)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"attempts_max": 0}, "attempts_max"),
        ({"sweep_ms": -1}, "sweep_ms"),
        ({"batch_max": 2**53 + 1}, "batch_max"),
        ({"sweep_ms": MS_MAX + 1}, "sweep_ms"),
        ({"beat_ms": 2**53 - 1, "lease_ms": 2**53}, "beat_ms"),
        ({"stalls_max": True}, "stalls_max"),
        ({"lease_ms": 10_000.0}, "lease_ms"),
        ({"beat_ms": 10_000}, "beat_ms must be below lease_ms"),
        ({"backoff_ms": 60_001}, "backoff_ms"),
        ({"window_floor_ms": 7_200_001}, "window_floor_ms"),
    ],
)
def test_limits_that_cannot_work_are_refused_by_name(limits: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as refused:
        Chatlock("sqlite:///never-opened.db", limits=Limits(**limits))
    assert refused.value.reason == "bad_limits"


def test_limits_at_their_ends_are_taken() -> None:
    least = Limits(beat_ms=1, lease_ms=2, backoff_ms=0, backoff_max_ms=0, hand_offs_max=0, mid_fetches_max=0)
    Chatlock("sqlite:///never-opened.db", limits=least).close()
    with pytest.raises(InvalidInput, match=r"must be chatlock\.Limits"):
        Chatlock("sqlite:///never-opened.db", limits=None)  # type: ignore[arg-type]


def test_argument_of_a_wrong_type_is_refused_where_it_is_given(sqlite_database: Database) -> None:
    """Not as a TypeError from within, after something was written, or when it would be called."""
    options: Any
    with Chatlock(sqlite_database.url, tenant="t", poller=False) as chat:
        turn: Any = chat.begin("c1", "hello")
        for options in ({option: odd} for option in SUBMIT_OPTIONS for odd in ODD):
            with pytest.raises(InvalidInput):
                chat.submit("c2", "hello", **options)
        for options in ({option: odd} for option in CLIENT_OPTIONS for odd in ODD):
            with pytest.raises(InvalidInput):
                Chatlock(sqlite_database.url, **options)
        wrong: list[Callable[..., Any]] = [
            lambda: chat.park("c1", turn="1"),  # type: ignore[arg-type]
            lambda: chat.park("c1", reason=7),  # type: ignore[arg-type]
            lambda: chat.resume("c1", reason=None),  # type: ignore[arg-type]
            lambda: chat.free("c1", turn=True),
            lambda: chat.free("c1", turn=1, force="no"),  # type: ignore[arg-type]
            lambda: chat.subscribe(7),  # type: ignore[arg-type]
            lambda: chat.handler([]),  # type: ignore[arg-type]
            lambda: chat.close(drain_ms="1"),  # type: ignore[arg-type]
            lambda: chat.close(drain_ms=-1),
            lambda: turn.finish("ok", upto=True),
            lambda: turn.step_key(7),
            lambda: turn.step_key("mail", 7),
            lambda: turn.on_lost(7),
            lambda: turn.session("name", 7),
            lambda: chat.close(drain_ms=MS_MAX + 1),
            lambda: chat.purge(older_than_ms=MS_MAX + 1),
            lambda: chat.cancel("c1", turn=1, grace_ms=MS_MAX + 1),
            *(partial(chat.cancel, "c1", turn=1, queued=odd) for odd in ODD),
            *(partial(chat.cancel, "c1", turn=odd) for odd in ODD),
            *(partial(turn.suspend, "why?", awaiting=odd) for odd in ODD),
            *(partial(chat.handler, "x", overflow=odd) for odd in ODD),
        ]
        for call in wrong:
            with pytest.raises(InvalidInput):
                call()
        turn.finish("ok")
        assert chat.verify().ok


def test_wait_of_any_length_can_be_asked_for(sqlite_database: Database) -> None:
    with Chatlock(sqlite_database.url, tenant="t", poller=False) as chat:
        chat.handler()(lambda turn: "ok")
        assert isinstance(chat.submit("c1", "hello", wait_ms=MS_MAX), Answered)
    signal = SyncSignal()
    signal.set()
    assert drive(signal.wait(MS_MAX / 1000))

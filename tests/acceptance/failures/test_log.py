"""What is logged of a failure: the reason and the handler, and nothing secret."""

from __future__ import annotations

import functools
import logging
from typing import Any

import pytest

from chatlock import Chatlock
from chatlock.inputs import Key, key_hash
from tests.acceptance.failures.told import PAYLOAD, TENANT, Ears, leaks
from tests.acceptance.life import AT_ONCE, until
from tests.support.databases import Database


def test_nothing_secret_is_logged_whatever_user_code_raises(sqlite_database: Database, ears: Ears) -> None:
    """A handler, a callback, a subscriber and a delivery that fail with what must not be told."""

    def fail(*args: Any) -> Any:
        raise ValueError(PAYLOAD)

    def lose(turn: Any) -> Any:
        turn.on_lost(fail)
        assert chat.delete("lost").done
        turn.finish(PAYLOAD)

    with Chatlock(sqlite_database.url, tenant=TENANT, limits=AT_ONCE) as chat:
        chat.subscribe(fail)
        chat.handler()(fail)
        chat.handler("loses")(lose)
        chat.handler("delivers")(lambda turn: PAYLOAD)
        chat.deliver("delivers")(fail)
        chat.submit("thread", PAYLOAD, wait_ms=0)
        chat.submit("lost", PAYLOAD, agent="loses", wait_ms=0)
        chat.submit("sent", PAYLOAD, agent="delivers")
        for event in ("hook.failed", "turn.failed", "turn.on_lost_failed", "intent.failed"):
            until(lambda event=event: [text for text in ears.said if text.startswith(event)], what=event)


def test_line_of_a_failed_turn_names_the_reason_and_the_handler(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def returns(turn: Any) -> Any:
        return {1}

    def finishes(turn: Any) -> Any:
        turn.finish({1})

    def raises(turn: Any) -> Any:
        raise ValueError(PAYLOAD)

    refused = ": reply holds a value of type set, which JSON cannot carry: make it of str, int, "
    expected = {
        "returns": (functools.partial(returns), f"InvalidInput (not_json) at {line_of(returns)} in returns{refused}"),
        "finishes": (finishes, f"InvalidInput (not_json) at {line_of(finishes, 1)} in finishes{refused}"),
        "raises": (raises, f"ValueError at {line_of(raises, 1)} in raises"),
    }
    with Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat:
        for agent, (handler, line) in expected.items():
            caplog.clear()
            chat.handler(agent)(handler)
            chat.submit(agent, PAYLOAD, agent=agent, wait_ms=0)
            (told,) = caplog.records
            assert told.message.startswith(f"turn.failed: {line}")
            assert vars(told).items() >= {
                ("thread_hash", key_hash(Key(TENANT, agent))[:12]), ("token", 1), ("agent", agent)
            }  # fmt: skip


def test_line_of_a_failed_delivery_names_the_reason_and_the_function(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def send(delivery: Any) -> None:
        raise KeyError(PAYLOAD)

    with Chatlock(sqlite_database.url, tenant=TENANT, limits=AT_ONCE) as chat:
        chat.handler()(lambda turn: PAYLOAD)
        chat.deliver()(send)
        chat.submit("thread", PAYLOAD)
        until(lambda: caplog.records, what="the line")
    told = caplog.records[0]
    assert told.message == f"intent.failed: KeyError at {line_of(send, 1)} in send"
    assert vars(told).items() >= {("agent", "default"), ("attempt", 1), ("error", "KeyError")}


def line_of(function: Any, below: int = 0) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + below}"


def test_control_a_leak_is_heard(ears: Ears) -> None:
    logging.getLogger("chatlock.anything").warning("fields", extra={"field": PAYLOAD})
    logging.getLogger("chatlock").warning("SELECT token FROM chatlock_threads")
    assert [leaks(text) for text in ears.said] == [True, True]
    ears.said.clear()

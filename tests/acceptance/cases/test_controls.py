"""The controls themselves: each does what it says, and the invariants go red when a row breaks them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from chatlock import AlreadyAnswered, Answered, Queued, Unknown, executor
from chatlock.inputs import Key
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    EffectSink,
    Points,
    age_claim,
    assert_invariants,
    hold_statement,
    parked_row,
    quiesce,
    reclaim_aged,
    rows,
    thread_row,
    wait_blocked,
)
from tests.acceptance.cases.wire import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from chatlock import Chatlock
    from tests.acceptance.cases.support import Agent, Callers, Journal
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]


def test_held_handler_reports_and_waits(
    database: Database, serving: Client, agent: Agent, callers: Callers, journal: Journal
) -> None:
    chat = serving(database)
    gate = agent.hold("a")
    first = callers.submit(chat, "a", "one", message_id="m1")
    gate.wait_entered()
    assert [e.ids for e in journal.enters("a")] == [("m1",)]
    assert not first.done()
    gate.open()
    assert isinstance(first.result(SECONDS_MAX), Answered)
    quiesce(chat, database)
    assert_invariants(database, chat, journal=journal, told=callers.told)


def test_parked_row_blocks_the_product(database: Database, serving: Client, callers: Callers) -> None:
    chat = serving(database)
    callers.ask(chat, "a", "one")
    points = Points(chat)
    with parked_row(database, "a") as row:
        second = callers.submit(chat, "a", "two")
        wait_blocked(database, points, "submit_hot")
        assert not second.done()
        row.let_go()
        assert isinstance(second.result(SECONDS_MAX), Answered)


def test_points_and_statements_hold_one_client(database: Database, serving: Client, callers: Callers) -> None:
    chat = serving(database)
    callers.ask(chat, "a", "one")
    point = Points(chat).hold("submit_hot.commit")
    held = callers.submit(chat, "a", "two", message_id="m2")
    point.wait_entered()
    assert not rows(database, "SELECT 1 FROM chatlock_messages WHERE message_id = 'm2'")
    statement = hold_statement(chat, "message.outcome")
    point.open()
    assert isinstance(held.result(SECONDS_MAX), Answered)
    asked = callers.call(chat.status, "a", "m2")
    statement.wait_entered()
    assert not asked.done()
    statement.open()
    assert isinstance(asked.result(SECONDS_MAX), AlreadyAnswered)


def test_aged_claim_is_reclaimed_by_the_second_sweep(
    database: Database, serving: Client, agent: Agent, callers: Callers
) -> None:
    chat = serving(database, heartbeat=False)
    gate = agent.hold("a")
    stale = callers.submit(chat, "a", "one")
    gate.wait_entered()
    assert reclaim_aged(chat) == 0
    age_claim(database, "a")
    assert reclaim_aged(chat) == 1
    assert thread_row(database, "a")["status"] == "idle"
    gate.open()
    stale.result(SECONDS_MAX)


@pytest.mark.parametrize(("do", "stored"), [("cut_before", 0), ("cut_after", 1)])
def test_wire_is_cut_around_a_commit(
    pg_database: Database, serving: Client, callers: Callers, do: str, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(pg_database.url) as wire:
        chat = serving(pg_database, url=wire.url)
        callers.ask(chat, "a", "one")
        Points(chat)  # so that the hot statement has a COMMIT of its own
        rule = wire.on(b"cut-here", b"COMMIT", do=do)
        monkeypatch.setattr(executor, "RECONNECTS_MAX", 0)
        asked = callers.submit(chat, "a", "two", message_id="cut-here")
        rule.wait_entered()
        found = rows(pg_database, "SELECT count(*) AS n FROM chatlock_messages WHERE message_id = 'cut-here'")
        assert found[0]["n"] == stored
        assert isinstance(asked.result(SECONDS_MAX), Unknown)


def test_wire_holds_a_message_or_its_reply(pg_database: Database, serving: Client, callers: Callers) -> None:
    with Proxy(pg_database.url) as wire:
        chat = serving(pg_database, url=wire.url)
        for do, stored in (("hold", 0), ("hold_reply", 1)):
            rule = wire.on(do.encode(), do=do)
            asked = callers.submit(chat, "a", "two", message_id=do)
            rule.wait_entered()
            found = rows(pg_database, "SELECT count(*) AS n FROM chatlock_messages WHERE message_id = :id", id=do)
            assert found[0]["n"] == stored
            assert not asked.done()
            rule.open()
            assert isinstance(asked.result(SECONDS_MAX), Answered)


BREAKS = {
    "still pending": "UPDATE chatlock_messages SET disposition='pending', turn_token=NULL",
    "never stored": "DELETE FROM chatlock_messages",
    "a turn that failed": "UPDATE chatlock_turns SET state='failed'",
    "another reply": "UPDATE chatlock_turns SET reply='\"other\"'",
    "lower token": "UPDATE chatlock_threads SET token = 0",
    "running": "UPDATE chatlock_threads SET status='running', claim_id='c', expires_at=1, window_ends_at=1",
    "a lost thread row": "DELETE FROM chatlock_threads",
}


def test_broken_rows_turn_the_invariants_red(database: Database, serving: Client, callers: Callers) -> None:
    chat = serving(database)
    callers.ask(chat, "a", "one")
    assert_invariants(database, chat, told=callers.told)
    tables = ("threads", "messages", "turns")
    for table in tables:
        rows(database, f"CREATE TABLE whole_{table} AS SELECT * FROM chatlock_{table}")
    for statement in BREAKS.values():
        rows(database, statement)
        with pytest.raises(AssertionError):
            assert_invariants(database, chat, told=callers.told)
        for table in tables:
            rows(database, f"DELETE FROM chatlock_{table}")
            rows(database, f"INSERT INTO chatlock_{table} SELECT * FROM whole_{table}")
        assert_invariants(database, chat, told=callers.told)


def test_overlap_meter_sees_two_handlers_in_one_thread(agent: Agent, callers: Callers, journal: Journal) -> None:
    turns = [cast("Any", SimpleNamespace(key=Key("t", "a"), token=n, messages=[])) for n in (1, 2)]
    gates = [agent.hold("a") for _ in turns]
    inside = [callers.call(agent, turn) for turn in turns]
    for gate in gates:
        gate.wait_entered()
    for gate in gates:
        gate.open()
    for future in inside:
        future.result(SECONDS_MAX)
    assert journal.overlap("a") == 2
    agent(turns[0])
    assert journal.overlap("a") == 2
    assert journal.overlap("b") == 0


def test_effect_sink_refuses_a_stale_token_where_it_is_told_to() -> None:
    for fenced in (True, False):
        sink = EffectSink(fenced=fenced)
        assert [sink.apply("key", "x", token) for token in (1, 3, 2)] == [True, True, not fenced]
        assert [token for _, _, token in sink.refused] == [2] * fenced


def test_outcome_told_for_nothing_turns_the_invariants_red(
    database: Database, serving: Client, callers: Callers
) -> None:
    chat = serving(database)
    callers.ask(chat, "a", "one", message_id="m1")
    for false in (Queued(message_id="m2", position=0), Answered(message_id="m1", seq=9, reply="other", turn=1)):
        with pytest.raises(AssertionError, match="N8"):
            assert_invariants(database, chat, told=[("a", false)])
    with pytest.raises(AssertionError, match="two callers"):
        assert_invariants(database, chat, told=[*callers.told, *callers.told])

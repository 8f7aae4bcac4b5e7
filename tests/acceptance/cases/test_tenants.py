"""Tenants: a thread is (tenant, thread id), both from trusted code; nothing of one is seen from another (B71)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from chatlock import AlreadyAnswered, Answered, Chatlock, InvalidInput, MissingTenant, NotFound, Queued
from chatlock.inputs import Key, key_hash
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    assert_invariants,
    message_rows,
    quiesce,
    row_count,
    rows,
    thread_row,
)

if TYPE_CHECKING:
    from tests.acceptance.cases.support import Agent, Callers, Journal
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]

ALICE, BOB = "alice", "bob"
THREAD = "default"


@pytest.fixture
def chat(database: Database, serving: Client) -> Chatlock:
    """A client without a tenant of its own: each call has to name it."""
    return serving(database, tenant=None)


@pytest.fixture
def asked(chat: Chatlock, agent: Agent, callers: Callers) -> Any:
    """Alice's turn on her thread `default` is held: `open()` lets it go on."""
    gate = agent.hold(THREAD)
    future = callers.call(chat.submit, THREAD, "alice's secret", tenant=ALICE, message_id="m1")
    gate.wait_entered()
    yield gate
    gate.open()
    assert isinstance(future.result(SECONDS_MAX), Answered)


def test_two_tenants_with_one_thread_id_run_beside_each_other(
    database: Database, chat: Chatlock, asked: Any, journal: Journal
) -> None:
    """B71: both use the thread `default` and the message id `m1`; each has a thread, a turn and a reply of its own."""
    assert chat.submit(THREAD, "bob's", tenant=BOB, message_id="m1") == Answered(
        message_id="m1", seq=1, reply={"answers": ["m1"]}, turn=1
    )
    assert [e.what for e in journal.entries()] == ["enter", "enter", "leave"]
    assert thread_row(database, THREAD, ALICE)["status"] == "running"
    asked.open()
    quiesce(chat, database)
    assert_invariants(database, chat)
    assert [m["payload"] for m in message_rows(database, THREAD, ALICE)] == ['"alice\'s secret"']
    assert [m["payload"] for m in message_rows(database, THREAD, BOB)] == ['"bob\'s"']


Call = Callable[[Chatlock, str, str, str], Any]

CALLS: dict[str, Call] = {
    "status": lambda chat, tenant, thread, message_id: chat.status(thread, message_id, tenant=tenant),
    "cancel": lambda chat, tenant, thread, message_id: chat.cancel(thread, message_id, tenant=tenant),
    "redrive": lambda chat, tenant, thread, message_id: chat.redrive(thread, message_id, tenant=tenant),
    "park": lambda chat, tenant, thread, message_id: chat.park(thread, turn=1, tenant=tenant),
    "resume": lambda chat, tenant, thread, message_id: chat.resume(thread, tenant=tenant),
    "free": lambda chat, tenant, thread, message_id: chat.free(thread, turn=1, tenant=tenant),
    "free_by_force": lambda chat, tenant, thread, message_id: chat.free(thread, turn=1, force=True, tenant=tenant),
    "delete": lambda chat, tenant, thread, message_id: chat.delete(thread, tenant=tenant),
}


def test_call_on_another_tenants_thread_is_answered_as_if_it_never_existed(
    database: Database, chat: Chatlock, asked: Any
) -> None:
    """B71: by Alice's ids Bob gets what he gets by ids that nobody has; nothing changes, and her turn ends well."""
    before = row_count(database)
    for name, call in CALLS.items():
        assert call(chat, BOB, THREAD, "m1") == call(chat, BOB, "no such thread", "m1"), name
        assert row_count(database) == before, name
        row = thread_row(database, THREAD, ALICE)
        assert (row["status"], row["token"]) == ("running", 1), name


def test_control_the_same_call_by_the_owner_is_answered(database: Database, chat: Chatlock) -> None:
    """Control of B71: for the owner the same calls are not answered as if there were nothing."""
    for name, call in CALLS.items():
        chat.submit(name, "hello", tenant=ALICE, message_id="m1")
        assert call(chat, ALICE, name, "m1") != call(chat, ALICE, "no such thread", "m1"), name


def test_waiting_by_another_tenants_ids_stores_and_answers_ones_own(
    database: Database, chat: Chatlock, asked: Any, callers: Callers
) -> None:
    """B71: Bob waits under Alice's thread and message id: his own message is answered, hers is untouched."""
    assert isinstance(chat.status(THREAD, "m1", tenant=BOB), NotFound)
    told = chat.submit(THREAD, "another text, no conflict", tenant=BOB, message_id="m1", wait_ms=None)
    assert isinstance(told, Answered)
    assert isinstance(chat.status(THREAD, "m1", tenant=ALICE), Queued)
    assert len(rows(database, "SELECT 1 FROM chatlock_threads WHERE tenant = 'alice'")) == 1


def test_tenant_in_the_payload_or_in_an_id_is_only_text(database: Database, chat: Chatlock, asked: Any) -> None:
    """B71: what a client forges in body, metadata or ids never moves its message to another tenant."""
    forged: list[dict[str, Any]] = [
        {"payload": {"tenant": ALICE, "metadata": {"tenant": ALICE, "x-tenant": ALICE}}},
        {"payload": "hello", "message_id": f"{ALICE}/{THREAD}/m1"},
        {"payload": "hello", "thread": f"{ALICE}/{THREAD}"},
        {"payload": "hello", "thread": f"../{ALICE}/{THREAD}"},
        {"payload": "hello", "agent": ALICE, "wait_ms": 0},
    ]
    for options in forged:
        told = chat.submit(**{"thread": THREAD, **options}, tenant=BOB)
        assert isinstance(told, Answered | Queued)
    assert len(message_rows(database, THREAD, ALICE)) == 1
    assert not rows(database, "SELECT 1 FROM chatlock_threads WHERE tenant NOT IN ('alice', 'bob')")
    with pytest.raises(InvalidInput, match="unknown option"):
        chat.submit(THREAD, "hello", tenant=BOB, tenant_id=ALICE)  # type: ignore[call-arg]


def test_missing_tenant_is_refused_and_never_a_shared_default(database: Database, chat: Chatlock) -> None:
    """B71: without a tenant nothing is stored, read or done; an empty one is no tenant either."""
    chat.setup()
    before = row_count(database)
    calls: list[Callable[..., Any]] = [
        lambda **tenant: chat.submit(THREAD, "hello", **tenant),
        lambda **tenant: chat.begin(THREAD, "hello", **tenant),
        lambda **tenant: next(chat.stream(THREAD, "hello", **tenant)),
        lambda **tenant: chat.status(THREAD, "m1", **tenant),
        lambda **tenant: chat.cancel(THREAD, "m1", **tenant),
        lambda **tenant: chat.redrive(THREAD, "m1", **tenant),
        lambda **tenant: chat.park(THREAD, **tenant),
        lambda **tenant: chat.resume(THREAD, **tenant),
        lambda **tenant: chat.free(THREAD, turn=1, **tenant),
        lambda **tenant: chat.delete(THREAD, **tenant),
    ]
    for call in calls:
        for tenant in ({}, {"tenant": None}):
            with pytest.raises(MissingTenant):
                call(**tenant)
        with pytest.raises(InvalidInput):
            call(tenant="")
    assert row_count(database) == before


def test_keys_sessions_fences_and_names_hold_the_tenant(database: Database, chat: Chatlock) -> None:
    """B71: what is derived from a thread differs between tenants, also where ids run together."""
    with chat.turn(THREAD, "a", tenant=ALICE) as alices, chat.turn(THREAD, "b", tenant=BOB) as bobs:
        assert alices.step_key("charge") != bobs.step_key("charge")
        assert alices.session("conversation", lambda key: "alice's") == "alice's"
        assert bobs.session("conversation", lambda key: "bob's") == "bob's"
        alices.finish("done")
        bobs.finish("done")
    run_together = [Key("a", "b/c"), Key("a/b", "c"), Key("ab", "c"), Key("a", "bc"), Key("1:a", "b"), Key("1", "a1:b")]
    assert len({key_hash(key) for key in run_together}) == len(run_together)
    assert_invariants(database, chat)


def test_turn_cannot_fence_another_tenants_thread(database: Database, chat: Chatlock, asked: Any) -> None:
    """B71: a fence names its own tenant: Bob's does not lock Alice's row, and his finish leaves her turn alone."""
    engine = sqlalchemy.create_engine(database.url, poolclass=sqlalchemy.NullPool)
    with chat.turn(THREAD, "b", tenant=BOB) as bobs, engine.begin() as conn:
        bobs.fence(conn)
        bobs.finish("done", conn=conn)
    assert thread_row(database, THREAD, ALICE)["status"] == "running"
    asked.open()
    quiesce(chat, database)
    assert isinstance(chat.status(THREAD, "m1", tenant=ALICE), AlreadyAnswered)
    assert_invariants(database, chat)


def test_verify_of_one_tenant_counts_its_own_rows(database: Database, chat: Chatlock) -> None:
    """B71: verify is scoped to the tenant that it is given."""
    for tenant, count in ((ALICE, 1), (BOB, 3)):
        for n in range(count):
            chat.submit(THREAD, n, tenant=tenant)
    assert chat.verify(tenant=ALICE).messages == {"answered": 1}
    assert chat.verify(tenant=BOB).messages == {"answered": 3}
    assert chat.verify(tenant="carol").messages == {}

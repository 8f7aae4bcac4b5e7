"""The end of a client in the middle of a loop of turns: what it held is free at once, at nobody's cost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import Chatlock, Key
from chatlock.errors import Closed
from chatlock.io import drive
from chatlock.ops.claim import claim_due
from tests.acceptance.cases.recovery import STILL, turn_states
from tests.acceptance.cases.support import TENANT, Agent, Journal, Points, thread_row, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.databases import Database


def refused(chat: Chatlock) -> None:
    """A loop that ends as the poller's do: nothing of it is kept."""
    with suppress(Closed):
        chat.sweep_once()


@pytest.mark.parametrize("stands", ["in its handler", "before its hand-off commits"])
def test_turn_that_meets_a_closed_client_is_handed_back(pg_database: Database, tmp_path: Path, stands: str) -> None:
    """Its OS thread is refused and has gone before the close, which another operation holds up, looks for claims."""
    agent = Agent(Journal(tmp_path / "journal"))
    chat = Chatlock(pg_database.url, tenant=TENANT, poller=False, limits=STILL)
    chat.handler()(agent)
    points = Points(chat)
    in_handler = agent.hold("thread")
    with Chatlock(pg_database.url, tenant=TENANT, poller=False) as web, ThreadPoolExecutor(3) as beside:
        web.submit("thread", "hello", message_id="m1", wait_ms=0)
        loop = beside.submit(refused, chat)
        in_handler.wait_entered()
        web.submit("thread", "hello", message_id="m2", wait_ms=0)
        other = points.hold("cancel.begin")
        operation = beside.submit(chat.cancel, "other", "no such message")
        other.wait_entered()
        if stands == "before its hand-off commits":
            commit = points.hold("finish.commit")
            in_handler.open()
            commit.wait_entered()
        closing = beside.submit(chat.close)
        until(lambda: chat._executor._gate._closer is not None, what="the closed gate")
        (commit if stands == "before its hand-off commits" else in_handler).open()
        until(loop.done, what="the end of the loop")
        other.open()
        closing.result(20)
        operation.result(20)
        row = thread_row(pg_database, "thread")
        assert (row["status"], row["attempts"], row["stalls"], row["not_before"]) == ("idle", 0, 0, 0)
        assert turn_states(pg_database)[-1] == "released"
        assert web.verify().ok


def test_claim_of_a_caller_who_is_stopped_while_the_client_closes_is_handed_back(
    sqlite_database: Database,
) -> None:
    """Its release is refused by then: the claim is not forgotten, and the end of the client releases it."""
    chat = Chatlock(sqlite_database.url, tenant=TENANT, poller=False)
    chat.submit("thread", "hello", wait_ms=0)
    flows, key = chat._flows, Key(TENANT, "thread")
    request = drive(flows.request("default"))

    async def attempt() -> Any:
        chat._executor.transaction("claim_due", lambda c: claim_due(c, key, request))
        closing = threading.Thread(target=chat._executor._gate.close)
        closing.start()
        closing.join()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(flows.asking(key, request, attempt()))
    chat.close()
    assert turn_states(sqlite_database) == ["released"]

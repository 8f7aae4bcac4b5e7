"""The poller as a service: it serves, shares, drains, and wakes up; it finds its chat object by a path."""

from __future__ import annotations

import signal
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from chatlock import AsyncChatlock, Chatlock, InvalidInput, StoreUnavailable
from chatlock.cli import main
from chatlock.hosting import load_chat
from chatlock.service.loop import Loop
from chatlock.wake.postgres import PostgresWake
from chatlock.wake.redis import RedisWake
from tests.acceptance import served as application
from tests.acceptance.cases.support import TENANT, message_rows, rows, thread_row, turn_rows, until
from tests.acceptance.services import CHAT_MODULE, Served, address_of, asked, echo, serving
from tests.support.processes import Child
from tests.support.waiting import blocked_backends

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.databases import Database


# -- as a process ------------------------------------------------------------------------------------------------------
def test_poller_serves_tells_systemd_and_ends_at_sigterm(served: Served) -> None:
    name = str(served.directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name)
        systemd.settimeout(20)
        environment = served.environment(NOTIFY_SOCKET=name)
        poller = served.begun(Child.python("-m", "poller", environment=environment), "poller")
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"WATCHDOG=1"
        address = address_of(poller)
        assert (asked(address, "/livez")[0], asked(address, "/readyz")) == (200, (200, "ready\n"))
        assert asked(address, "/nothing")[0] == 404

        served.store("thread", message_id="m1")
        served.answered("thread")
        until(lambda: served.delivered() == ["thread m1"], what="the delivery")
        status, text = asked(address, "/metrics")
        assert (status, 'chatlock_claims_total{by="poller"} 1.0' in text) == (200, True)

        poller.send(signal.SIGTERM)
        assert poller.wait() == 0
        until(lambda: systemd.recv(100) == b"STOPPING=1", what="the notice of the end")


@pytest.mark.parametrize("chat", ["chat", "async_chat"])
def test_sigterm_lets_the_turn_end_and_begins_no_other(served_pg: Served, chat: str) -> None:
    """B58 (a): what arrives during the drain waits for the next process."""
    poller = served_pg.start("poller", chat=f"{CHAT_MODULE}:{chat}", drain_ms=20_000)
    served_pg.hold("thread")
    served_pg.store("thread", message_id="m1")
    served_pg.journal.wait_enters(1)
    served_pg.store("thread", message_id="m2")
    poller.send(signal.SIGTERM)
    poller.wait_for("poller.draining")
    served_pg.store("other", message_id="m3")
    served_pg.let_go("thread")
    assert poller.wait() == 0
    assert [m["disposition"] for m in message_rows(served_pg.database, "thread")] == ["answered", "pending"]
    assert thread_row(served_pg.database, "other")["token"] == 0

    served_pg.start("poller", chat=f"{CHAT_MODULE}:{chat}")
    served_pg.answered("thread", "other")
    assert [e.ids for e in served_pg.journal.enters("thread")] == [("m1",), ("m2",)]


@pytest.mark.parametrize(
    ("chat", "again"),
    [("chat", False), ("chat", True), ("async_chat", True)],
    ids=["drain_ends", "second_sigterm", "second_sigterm_async"],
)
def test_sigterm_hands_back_uncharged_what_does_not_end(served: Served, chat: str, again: bool) -> None:
    """B58 (b) and (c): claimable at once, by nobody's lease and at nobody's cost."""
    poller = served.start("poller", chat=f"{CHAT_MODULE}:{chat}", drain_ms=600_000 if again else 100)
    served.hold("thread")
    served.store("thread", message_id="m1")
    served.journal.wait_enters(1)
    poller.send(signal.SIGTERM)
    if again:
        poller.wait_for("poller.draining")
        poller.send(signal.SIGTERM)
    assert poller.wait() == 0
    row = thread_row(served.database, "thread")
    assert (row["status"], row["attempts"], row["stalls"], row["not_before"]) == ("idle", 0, 0, 0)
    assert [turn["state"] for turn in turn_rows(served.database, "thread")] == ["released"]
    assert len(rows(served.database, "SELECT 1 AS due FROM chatlock_due")) == 1


def test_second_sigterm_ends_a_poller_whose_database_does_not_answer(served_pg: Served) -> None:
    """A pass of it waits for a lock that the test holds: nothing can be handed back, so the lease will free it."""
    poller = served_pg.start("poller")
    lock = served_pg.database.connect()
    lock.execute("BEGIN")
    lock.execute("LOCK TABLE chatlock_due IN ACCESS EXCLUSIVE MODE")
    watch = served_pg.database.connect()
    until(lambda: blocked_backends(watch), what="a pass that waits")
    poller.send(signal.SIGTERM)
    poller.wait_for("poller.draining")
    poller.send(signal.SIGTERM)
    assert poller.wait() == 1
    lock.execute("ROLLBACK")


def test_pollers_share_the_work(served: Served) -> None:
    """B50: each of two pollers has room for one turn, so each of two threads is held by another one."""
    for _ in range(2):
        served.start("poller", turns_max=1)
    for name in ("one", "two"):
        served.hold(name)
        served.store(name)
    assert len({entry.pid for entry in served.journal.wait_enters(2)}) == 2
    for name in ("one", "two"):
        served.let_go(name)
    served.answered("one", "two")
    assert {name: served.journal.overlap(name) for name in ("one", "two")} == {"one": 1, "two": 1}


def test_service_refuses_a_chat_object_of_another_database(
    hosted: Chatlock, database: Database, tmp_path: Path
) -> None:
    """It would wait for ever for turns that it never finds."""
    other = tmp_path / "other.db"
    other.touch()
    with (
        pytest.raises(InvalidInput, match="different databases") as refused,
        serving(database, url=f"sqlite:///{other}"),
    ):
        pass
    assert str(tmp_path) not in str(refused.value)
    assert hosted._executor._engine is None


def test_poller_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATLOCK_CHAT", "tests.acceptance.served:hosted")
    monkeypatch.delenv("CHATLOCK_URL", raising=False)
    result = CliRunner().invoke(main, ["poller", "--url", f"sqlite:///{tmp_path}/typo.db"])
    assert (result.exit_code, "there is no such SQLite file" in result.output) == (5, True), result.output
    assert list(tmp_path.iterdir()) == []


# -- loops and wakes ---------------------------------------------------------------------------------------------------
def test_loop_survives_what_its_work_raises_and_tells_it_once(caplog: pytest.LogCaptureFixture) -> None:
    faults: list[Exception | None] = [StoreUnavailable("away"), StoreUnavailable("away"), ValueError("bug"), None]
    passes = threading.Semaphore(0)

    def work() -> bool:
        fault = faults.pop(0) if faults else None
        passes.release()
        if fault is not None:
            raise fault
        return False

    loop = Loop("sweep", 1, work)
    loop.start()
    for _ in range(5):
        assert passes.acquire(timeout=20)
    loop.stop()
    told = [r.message for r in caplog.records]
    assert told == ["sweep.failed", "sweep.failed", "sweep.recovered"]
    assert loop.healthy


def test_nudge_begins_a_pass_at_once_and_more_work_another(caplog: pytest.LogCaptureFixture) -> None:
    passes, left = threading.Semaphore(0), [True, True, False]

    def work() -> bool:
        passes.release()
        return left.pop(0) if left else False

    loop = Loop("dispatch", 3_600_000, work)
    loop.start()
    for _ in range(3):
        assert passes.acquire(timeout=20)
    loop.nudge()
    assert passes.acquire(timeout=20)
    loop.stop()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_wake_from_elsewhere_begins_a_pass(
    kind: str, pg_database: Database, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sweep is a minute away: only a wake can have begun the pass."""
    chat = Chatlock(pg_database.url, tenant=TENANT)
    chat.handler()(echo)
    monkeypatch.setattr(application, "hosted", chat, raising=False)
    elsewhere = RedisWake(redis_url) if kind == "redis" else PostgresWake(pg_database.url)
    with (
        serving(pg_database, wake=kind, redis_url=redis_url, sweep_ms=60_000) as service,
        Chatlock(pg_database.url, tenant=TENANT, poller=False, wake=elsewhere) as web,
    ):
        service.start()
        until(lambda: service.dispatching.passes >= 1, what="the first pass")
        web.submit("thread", "hello", wait_ms=0)
        until(lambda: thread_row(pg_database, "thread")["done_seq"] == 1, what="a turn over what was stored")
        web.park("thread")
        web.submit("thread", "more", wait_ms=0)
        web.resume("thread")
        until(lambda: thread_row(pg_database, "thread")["done_seq"] == 2, what="a turn of the resumed thread")
    assert service.dispatching.passes > 1


# -- the chat object ---------------------------------------------------------------------------------------------------
def test_chat_object_is_found_by_its_path() -> None:
    assert load_chat("tests.acceptance.served:chat") is application.chat
    assert isinstance(load_chat("tests.acceptance.served:async_chat"), AsyncChatlock)


@pytest.mark.parametrize(
    "path",
    ["tests", "tests:", ":chat", "tests.acceptance.served:missing", "tests.acceptance.served:no_chat", "no.such:x"],
)
def test_path_to_no_chat_object_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="chat"):
        load_chat(path)


def test_error_inside_the_chat_module_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        load_chat("needs_more:chat")

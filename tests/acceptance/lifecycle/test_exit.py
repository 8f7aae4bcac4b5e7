"""The end of a process: running turns are handed back, and nothing is printed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from chatlock import Chatlock, Limits
from tests.acceptance.cases.support import TENANT
from tests.acceptance.life import MESSAGES, assert_at_rest, read, states
from tests.acceptance.lifecycle.plays import EXITS, PLAYS, PROGRAM, UNSENT
from tests.acceptance.programs import Program, Programs
from tests.support.waiting import blocked_backends, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import Database

    Run = Callable[..., Program]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with Programs(tmp_path_factory.mktemp("programs")) as started:
        yield started


@pytest.fixture
def program(programs: Programs) -> Iterator[Run]:
    """Runs a program; it has ended when the test has."""
    started: list[Program] = []

    def run(text: str, *arguments: str) -> Program:
        started.append(programs.start(text, *arguments))
        return started[-1]

    yield run
    for each in started:
        each.dispose()


# CPython forgets that it was a Ctrl-C, and exits with 1, if anything was exec'd at its end.
INTERRUPTED = (130, -signal.SIGINT, 1)


def assert_left_well(database: Database, process: Program) -> None:
    """Released at once, uncharged, due; chatlock printed nothing."""
    assert_at_rest(database, "thread")
    assert set(states(database, "thread")) <= {"released"}, process.text
    for noise in ("Exception in thread", "Exception ignored", "never awaited", "never retrieved", "Fatal"):
        assert noise not in process.text, process.text


@pytest.mark.parametrize("play", PLAYS)
def test_ctrl_c_releases_and_exits(database: Database, program: Run, play: str) -> None:
    process = program(PROGRAM + PLAYS[play], database.url)
    process.wait_for("standing")
    process.send(signal.SIGINT)
    assert process.wait() in INTERRUPTED, process.text
    assert "\nKeyboardInterrupt\n" in process.text
    assert_left_well(database, process)
    with Chatlock(database.url, tenant=TENANT, poller=False) as chat:
        chat.handler()(lambda turn: "done")
        chat.sweep_once()
        assert {m["disposition"] for m in read(database, MESSAGES, "thread")} == (
            set() if play in UNSENT else {"answered"}
        )
        assert chat.verify().ok


@pytest.mark.parametrize("play", EXITS)
def test_plain_exit_releases_and_is_silent(database: Database, program: Run, play: str) -> None:
    process = program(PROGRAM + EXITS[play], database.url)
    assert process.wait() == (3 if "sys.exit(3)" in EXITS[play] else 0), process.text
    assert process.text == "", process.text
    assert_left_well(database, process)


def test_sigterm_ends_at_once_and_the_lease_frees(database: Database, program: Run) -> None:
    """The default of the signal leaves Python no time; nothing is lost all the same."""
    process = program(PROGRAM + PLAYS["sync_handler"], database.url)
    process.wait_for("standing")
    process.send(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    assert states(database, "thread") == ["running"]
    read(database, "UPDATE chatlock_threads SET expires_at = 0 WHERE thread_id = ? RETURNING token", "thread")
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=Limits(beat_ms=1, backoff_ms=0)) as chat:
        chat.handler()(lambda turn: "done")
        chat._sweep._gap_s = 0
        assert chat.sweep_once().reclaimed + chat.sweep_once().reclaimed == 1
        chat.sweep_once()
        assert states(database, "thread") == ["reclaimed", "done"]


def test_second_ctrl_c_leaves_at_once(pg_database: Database, program: Run) -> None:
    """The release waits for a row that another transaction holds; whoever interrupts again does not wait for it."""
    process = program(PROGRAM + PLAYS["sync_begin"], pg_database.url)
    process.wait_for("standing")
    holder = pg_database.connect()
    holder.execute("BEGIN")
    holder.execute("SELECT 1 FROM chatlock_threads FOR UPDATE")
    process.send(signal.SIGINT)
    until(lambda: blocked_backends(holder), what="the release that waits")
    process.send(signal.SIGINT)
    assert process.wait() in INTERRUPTED, process.text
    holder.execute("ROLLBACK")
    assert states(pg_database, "thread") == ["running"]

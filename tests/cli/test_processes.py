"""The command as a process: what only a real one has, such as pipes, signals, exit codes and a list of processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chatlock import Chatlock
from chatlock.cli import main
from chatlock.schema import SCHEMA_VERSION, VERSION_TABLE
from tests.cli.tree import leaves
from tests.support.processes import Child
from tests.support.waiting import blocked_backends, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

SECRET = "s3cret-w0rd"
SECONDS = 60


def command(*arguments: str, **environment: str) -> Callable[[], None]:
    """A command for a forked process, which has imported everything already."""

    def run() -> None:
        os.environ.pop("CHATLOCK_TENANT", None)
        os.environ.update(environment)
        try:
            main(args=list(arguments), prog_name="chatlock")
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(int(end.code or 0))

    return run


def run(url: str, *arguments: str, tenant: str = "acme") -> tuple[int, str]:
    """One command in a process of its own: its exit code, and all that it printed."""
    child = Child.fork(command(*arguments, CHATLOCK_URL=url, CHATLOCK_TENANT=tenant))
    try:
        return child.wait(SECONDS), child.text
    finally:
        child.dispose()


def add_threads(database: Database, count: int) -> None:
    rows = ", ".join(f"('acme', 't{number:04}')" for number in range(count))
    database.connect().execute(f"INSERT INTO chatlock_threads(tenant, thread_id) VALUES {rows}")


def test_the_installed_command_runs(sqlite_database: Database) -> None:
    add_threads(sqlite_database, 2)
    script = Path(sys.executable).with_name("chatlock")
    done = subprocess.run(
        [script, "threads", "ls", "--json"],
        env={**os.environ, "CHATLOCK_URL": sqlite_database.url, "CHATLOCK_TENANT": "acme"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["thread"] for line in done.stdout.splitlines()] == ["t0000", "t0001"]


WHY = "--reason x"
SMOKES = {
    "threads ls": 0, "threads show t0000": 0, "why t0000": 0, f"threads park t0000 {WHY}": 0,
    f"threads resume t0000 {WHY}": 4, f"threads free t0000 --turn 1 {WHY}": 4, "cancel t0000 m1": 1,
    "answer t0000 --question q --decision yes": 4, "inbox ls": 0, "inbox show t0000 m1": 1,
    "inbox drop t0000 m1": 1, "inbox drop t0000 --all": 2, "inbox promote t0000": 1, "dead ls": 0,
    "dead show t0000 m1": 1, "dead redrive t0000 m1": 1, "dead purge --older 1s --yes": 0, "turns ls": 0,
    "intents ls": 0, "intents show t0000 --turn 1": 1, f"intents retry t0000 --turn 1 {WHY}": 1, "audit": 0,
    "stats": 0, "top --once": 0, "windows show": 0, "windows backtest": 0, "verify": 0, "doctor": 1, "replay": 0,
    "db upgrade": 0, "db check": 0, "db sql --dialect sqlite": 0, "db bump-epoch --yes": 0,
    "db purge --older 1d --yes": 0, "export /dev/stdout/x --yes": 1, "export --undo --yes": 0, "import nowhere": 2,
    "poller --url nonsense": 2, "worker": 2,
}  # fmt: skip
"""A call of each command, and its exit code.  Services that serve are in tests/acceptance."""


def test_every_command_is_called() -> None:
    assert {path for path in leaves() if not any(call.startswith(" ".join(path)) for call in SMOKES)} == set()


@pytest.mark.parametrize("call", SMOKES)
def test_every_command_runs(sqlite_database: Database, call: str) -> None:
    add_threads(sqlite_database, 1)
    code, printed = run(sqlite_database.url, *call.split())
    assert code == SMOKES[call], printed
    assert "Traceback" not in printed


def test_stuck_threads_have_an_exit_code_of_their_own(sqlite_database: Database) -> None:
    connection = sqlite_database.connect()
    connection.execute("INSERT INTO chatlock_threads(tenant, thread_id, last_seq) VALUES ('acme', 't1', 1)")
    connection.execute("INSERT INTO chatlock_due(tenant, thread_id, due_at) VALUES ('acme', 't1', 1)")
    assert run(sqlite_database.url, "threads", "ls", "--stuck")[0] == 3


def test_a_reader_that_goes_is_no_fault(sqlite_database: Database) -> None:
    add_threads(sqlite_database, 1_000)
    listed = command(
        "threads", "ls", "--limit", "1000", "--json", CHATLOCK_URL=sqlite_database.url, CHATLOCK_TENANT="acme"
    )
    reader, writer = os.pipe()

    def into_the_pipe() -> None:
        os.close(reader)
        os.dup2(writer, 1)
        os.close(writer)
        listed()

    child = Child.fork(into_the_pipe)
    os.close(writer)
    try:
        with open(reader, encoding="utf-8") as lines:
            assert json.loads(lines.readline())["thread"] == "t0000"
        code, errors = child.wait(SECONDS), child.text
    finally:
        child.dispose()
    assert (code, errors) == (1, "")


def test_ctrl_c_ends_top(database: Database, child: Callable[[Child], Child]) -> None:
    add_threads(database, 1)
    watching = child(
        Child.fork(command("top", "--all-tenants", "--every", "100ms", "--json", CHATLOCK_URL=database.url))
    )
    watching.wait_for('"loads"')
    watching.wait_for('"loads"')
    watching.send(signal.SIGINT)
    assert watching.wait(SECONDS) == 0
    assert "Traceback" not in watching.text


def test_ctrl_c_during_an_act_changes_nothing(pg_database: Database, child: Callable[[Child], Child]) -> None:
    add_threads(pg_database, 1)
    holder, watcher = pg_database.connect(), pg_database.connect()
    holder.execute("BEGIN")
    holder.execute("SELECT 1 FROM chatlock_threads FOR UPDATE")
    acting = child(
        Child.fork(
            command("threads", "park", "t0000", "--reason", "x", CHATLOCK_URL=pg_database.url, CHATLOCK_TENANT="acme")
        )
    )
    until(lambda: blocked_backends(watcher), what="the command waiting for the thread's row")
    acting.send(signal.SIGINT)
    assert acting.wait(SECONDS) == 1
    assert acting.text.endswith("Aborted!\n")
    assert "Traceback" not in acting.text
    holder.execute("ROLLBACK")
    assert watcher.execute("SELECT status FROM chatlock_threads").fetchone() == ("idle",)


def test_no_database(tmp_path: Path) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        code, printed = run(f"postgresql://app:{SECRET}@127.0.0.1:{unused.getsockname()[1]}/app", "threads", "ls")
    assert code == 5
    assert "the database cannot be reached" in printed
    assert SECRET not in printed
    code, printed = run(f"sqlite:///{tmp_path}/typo.db", "threads", "ls")
    assert (code, "there is no such SQLite file" in printed) == (5, True)
    assert list(tmp_path.iterdir()) == []


def test_the_package_runs_as_the_command(child: Callable[[Child], Child]) -> None:
    asked = child(Child.python("-m", "chatlock", "--version"))
    assert asked.wait(SECONDS) == 0, asked.text
    assert asked.text.startswith("chatlock, version")


@pytest.mark.parametrize("arguments", [["threads", "ls"], ["threads", "park", "t", "--reason", "x"], ["verify"]])
def test_old_and_missing_tables(empty_database: Database, arguments: list[str]) -> None:
    code, printed = run(empty_database.url, *arguments)
    assert (code, "no chatlock tables; run `chatlock db upgrade`" in printed) == (1, True), printed
    if SCHEMA_VERSION > 1:
        assert run(empty_database.url, "db", "upgrade", "--to", "1")[0] == 0
        code, printed = run(empty_database.url, *arguments)
        assert (code, "are at revision 1" in printed) == (1, True), printed
    found = empty_database.connect().execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    assert found == ("0001",)


def test_a_foreign_thread_is_as_one_that_never_was(database: Database) -> None:
    with Chatlock(database.url, tenant="acme", poller=False) as chat:
        chat.submit("shared", "x", message_id="m1", wait_ms=0)
    assert run(database.url, "threads", "show", "shared", tenant="acme")[0] == 0
    code, printed = run(database.url, "threads", "show", "shared", tenant="beta")
    assert (code, printed) == (1, "Error: there is no thread shared of this tenant\n")


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        (["threads", "ls", "--url", f"postgresql://app:{SECRET}@127.0.0.1:1/app"], "CHATLOCK_URL"),
        (["poller", "--url", f"postgresql://app@127.0.0.1:1/app?password={SECRET}"], "CHATLOCK_URL"),
        (["doctor", "--redis-url", f"redis://:{SECRET}@127.0.0.1:1/0"], "CHATLOCK_REDIS_URL"),
    ],
)
def test_a_password_is_no_argument(arguments: list[str], variable: str) -> None:
    code, printed = run("sqlite:///x.db", *arguments)
    assert code == 2
    assert f"give a URL with a password in {variable}" in printed
    assert SECRET not in printed


def test_an_encoding_that_cannot_carry_a_name_is_no_fault(sqlite_database: Database) -> None:
    sqlite_database.connect().execute("INSERT INTO chatlock_threads(tenant, thread_id) VALUES ('acme', 'é😀')")
    listed = command("threads", "ls", CHATLOCK_URL=sqlite_database.url, CHATLOCK_TENANT="acme")

    def on_an_ascii_terminal() -> None:
        sys.stdout = open(1, "w", encoding="ascii", closefd=False)  # noqa: SIM115
        listed()

    child = Child.fork(on_an_ascii_terminal)
    try:
        assert (child.wait(SECONDS), "Traceback" in child.text) == (0, False)
        assert r"\xe9\U0001f600" in child.text
    finally:
        child.dispose()


def test_a_shell_can_complete_the_command() -> None:
    child = Child.fork(command(_CHATLOCK_COMPLETE="bash_complete", COMP_WORDS="chatlock threads ", COMP_CWORD="2"))
    try:
        assert child.wait(SECONDS) == 0
        assert {"plain,ls", "plain,free"} <= set(child.text.split())
    finally:
        child.dispose()

"""`chatlock export` and `import`: everything is kept, the old store takes no writes, and both can be run again."""

from __future__ import annotations

import json
import logging
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

import chatlock.transfer
from chatlock import AlreadyAnswered, Chatlock, ClaimLost, Limits, SchemaMismatch
from chatlock.cli import main
from chatlock.ops import transfer
from tests.conformance.rows import TABLES, dispositions, dump, messages, pass_backoff, plain, table, thread_row, turns
from tests.support.databases import Database, Templates
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


def run(database: Database, *arguments: str) -> Result:
    return CliRunner(env={"CHATLOCK_URL": database.url}).invoke(main, arguments)


def client(database: Database) -> Chatlock:
    return Chatlock(database.url, tenant="acme", poller=False)


ROWS = {
    "threads": 5,
    "messages": 6,
    "turns": 6,
    "due": 1,
    "sessions": 2,
    "fences": 0,
    "windows": 0,
    "intents": 0,
    "audit": 2,
}


@pytest.fixture(scope="module")
def original(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an answered, a dead, a pending, a cancelled message, a session, a parked and a deleted thread."""
    path = tmp_path_factory.mktemp("original") / "chat.db"
    made = templates.sqlite(path)
    with client(made) as chat:

        @chat.handler()
        def answer(turn: Any) -> Any:
            turn.session("provider", lambda step_key: "session-1")
            if turn.messages[0].payload == "boom":
                raise ValueError
            return {"text": "hi \u202e é"}

        chat.submit("answered", "hello", message_id="m1")
        chat.submit("poison", "boom", message_id="p1", wait_ms=0)
        for _ in range(4):
            pass_backoff(made)
            chat.sweep_once()
        for message_id in ("m1", "m2"):
            chat.submit("pending", "later", message_id=message_id, agent="other", wait_ms=0)
        chat.cancel("pending", "m2")
        chat.submit("parked", "x", message_id="m1", agent="other", wait_ms=0)
        chat.park("parked", reason="why not")
        chat.submit("deleted", "x", message_id="m1", agent="other", wait_ms=0)
        chat.delete("deleted")
    assert dispositions(made, "poison") == ["dead"]
    plain(made).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    plain(made).close()
    return path


@pytest.fixture
def old(original: Path, tmp_path: Path) -> Iterator[Database]:
    """A copy of that store for one test."""
    path = tmp_path / "old.db"
    shutil.copyfile(original, path)
    made = Database("sqlite", f"sqlite:///{path}", lambda: None)
    yield made
    made.dispose()


def test_every_table_is_moved() -> None:
    assert {table.name for table in transfer.TABLES.values()} == set(TABLES) - {"chatlock_meta"}


def test_everything_is_kept(old: Database, pg_database: Database, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    exported = run(old, "export", str(file), "--yes", "--json")
    assert exported.exit_code == 0, exported.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    imported = run(pg_database, "import", str(file), "--json")
    assert imported.exit_code == 0, imported.output
    assert json.loads(exported.stdout) == {"schema_version": 1, "file": str(file), "rows": ROWS}
    assert json.loads(imported.stdout) == {"schema_version": 1, "rows": ROWS, "released": 0, "already": False}
    before, after = dump(old), dump(pg_database)
    for name in ("chatlock_meta", "chatlock_audit"):
        del before[name], after[name]
    assert before == after
    assert [row["reason"] for row in table(pg_database, "chatlock_audit")] == [
        row["reason"] for row in table(old, "chatlock_audit")
    ]
    with client(pg_database) as chat:
        again = chat.submit("answered", "hello", message_id="m1")
        assert isinstance(again, AlreadyAnswered)
        assert again.reply == {"text": "hi \u202e é"}
        assert chat.verify().ok


def test_the_old_store_refuses_every_write_also_of_a_process_that_runs(old: Database, tmp_path: Path) -> None:
    with client(old) as running:
        assert running.status("answered", "m1").seq == 1
        held = running.begin("new", "x", wait_ms=0)
        assert run(old, "export", str(tmp_path / "chat.jsonl"), "--yes", "--force").exit_code == 0
        before = dump(old)
        for act in (
            lambda: running.submit("another", "x"),
            lambda: running.submit("pending", "x", agent="other"),
            lambda: running.cancel("pending", "m1"),
            lambda: running.park("pending"),
            lambda: running.delete("pending"),
            lambda: held.finish("late"),  # type: ignore[union-attr]
        ):
            with pytest.raises((SchemaMismatch, ClaimLost), match=r"moved by `chatlock export`"):
                act()
        assert dump(old) == before
    with client(old) as later, pytest.raises(SchemaMismatch, match="moved"):
        later.submit("another", "x")


def test_a_poller_of_the_old_store_says_that_it_was_moved(
    old: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no fault of the threads that it would serve, and it is told once."""
    caplog.set_level(logging.WARNING, logger="chatlock")
    with Chatlock(old.url, tenant="acme", poller=True, limits=Limits(sweep_ms=20)) as chat:
        chat.submit("another", "x", message_id="m1", agent="other", wait_ms=0)
        assert run(old, "export", str(tmp_path / "chat.jsonl"), "--yes").exit_code == 0
        caplog.clear()
        chat.handler("other")(lambda turn: "ok")
        until(lambda: caplog.records)
        for _ in range(2):  # passes after it
            seen = chat._sweep._first_seen
            until(lambda seen=seen: chat._sweep._first_seen is not seen)  # type: ignore[misc]
    assert [record.getMessage() for record in caplog.records] == ["sweep.failed"]
    assert "SchemaMismatch: this store was moved" in vars(caplog.records[0])["error"]


def test_a_turn_that_ran_is_released_by_the_import(old: Database, pg_database: Database, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    with client(old) as chat:
        chat.begin("running", "x", message_id="r1", wait_ms=0)
        refused = run(old, "export", str(file), "--yes")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "1 turn runs" in refused.stderr
        assert not file.exists()
        assert chat.submit("another", "x", agent="other", wait_ms=0).seq == 1
        assert run(old, "export", str(file), "--yes", "--force").exit_code == 0
    imported = run(pg_database, "import", str(file), "--json")
    assert json.loads(imported.stdout)["released"] == 1
    row = thread_row(pg_database, "running")
    assert (row["status"], row["token"], row["attempts"]) == ("idle", 2, 0)
    assert [(turn["state"], turn["error"]) for turn in turns(pg_database, "running")] == [("released", "moved")]
    assert [message["disposition"] for message in messages(pg_database, "running")] == ["pending"]


def test_both_halves_can_be_run_again(
    old: Database, pg_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chat.jsonl"

    def cut_short(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("chatlock.cli.move._show_progress", cut_short)
        assert run(old, "export", str(file), "--yes").exit_code == 1
    assert not file.exists()
    assert run(old, "export", str(file), "--yes").exit_code == 0
    empty = dump(pg_database)
    with monkeypatch.context() as patch:
        patch.setattr("chatlock.cli.move._show_progress", cut_short)
        assert run(pg_database, "import", str(file)).exit_code == 1
    assert dump(pg_database) == empty
    assert run(pg_database, "import", str(file)).exit_code == 0
    full = dump(pg_database)
    again = run(pg_database, "import", str(file))
    assert (again.exit_code, again.stdout) == (0, "this export had been imported already\n")
    assert dump(pg_database) == full


def altered(text: str, how: str) -> str:
    lines = text.splitlines(keepends=True)
    match how:
        case "cut":
            return "".join(lines[:-1])
        case "one row less":
            return "".join(lines[:3] + lines[4:])
        case "another payload":
            return text.replace("hello", "hullo")
        case "more after the end":
            return text + lines[1]
        case "no json":
            return text.replace('{"table"', '"table"', 1)
        case "another table":
            return text.replace('"table":"threads"', '"table":"others"', 1)
        case "another revision":
            return text.replace('"revision":', '"revision":9')
    return ""


@pytest.mark.parametrize(
    "how",
    [
        "cut",
        "one row less",
        "another payload",
        "more after the end",
        "no json",
        "another table",
        "another revision",
        "",
    ],
)
def test_a_file_that_is_not_whole_is_refused(old: Database, pg_database: Database, tmp_path: Path, how: str) -> None:
    file = tmp_path / "chat.jsonl"
    run(old, "export", str(file), "--yes")
    file.write_text(altered(file.read_text(), how))
    before = dump(pg_database)
    result = run(pg_database, "import", str(file))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("Error: chat.jsonl is ")
    assert dump(pg_database) == before


def test_an_import_goes_into_an_empty_database_only(old: Database, pg_database: Database, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    run(old, "export", str(file), "--yes")
    with client(pg_database) as chat:
        chat.submit("t1", "x", agent="other", wait_ms=0)
    result = run(pg_database, "import", str(file))
    assert (result.exit_code, "holds chatlock rows already" in result.stderr) == (1, True)


def test_a_broken_store_is_not_imported(old: Database, pg_database: Database, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    old.connect().execute("DELETE FROM chatlock_due")
    run(old, "export", str(file), "--yes")
    before = dump(pg_database)
    result = run(pg_database, "import", str(file))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Error: the export breaks 1 invariants; nothing was written"
    assert dump(pg_database) == before


def test_a_file_that_cannot_be_written_is_told_and_another_one_will_do(old: Database, tmp_path: Path) -> None:
    refused = run(old, "export", str(tmp_path / "no folder" / "chat.jsonl"), "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "cannot be written (No such file or directory); the store is marked as moved" in refused.stderr
    assert run(old, "export", str(tmp_path / "chat.jsonl"), "--yes").exit_code == 0


def test_an_export_can_be_undone(old: Database, tmp_path: Path) -> None:
    before = dump(old)
    run(old, "export", str(tmp_path / "chat.jsonl"), "--yes")
    assert run(old, "export", "--undo", "--yes").stdout == "the store takes writes again\n"
    assert dump(old) == before
    with client(old) as chat:
        assert chat.submit("t9", "x", agent="other", wait_ms=0).seq == 1


def test_misuse(old: Database, pg_database: Database, tmp_path: Path) -> None:
    file = str(tmp_path / "chat.jsonl")
    assert run(old, "export", file).exit_code == 2
    assert run(old, "export", "--yes").exit_code == 2
    assert run(old, "export", file, "--undo", "--yes").exit_code == 2
    assert run(pg_database, "export", file, "--yes").exit_code == 2
    assert run(old, "import", file).exit_code == 2
    assert chatlock.transfer.KIND not in "".join(p.read_text(errors="replace") for p in tmp_path.glob("*.jsonl"))

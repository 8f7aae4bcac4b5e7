"""A SQLite file that is deleted, moved or replaced while clients use it: SQLite itself would go on with the old one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatlock import Answered, Chatlock, NotFound, Queued, StoreUnavailable

KEPT = "chat.db"
FILES = (KEPT, f"{KEPT}-wal", f"{KEPT}-shm")


@pytest.fixture(params=["path", "URI"])
def chat(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Chatlock]:
    """A client that has used its file: a message waits."""
    path = tmp_path / KEPT
    url = f"sqlite:///{path}" if request.param == "path" else f"sqlite:///file:{path}?uri=true"
    with Chatlock(url, tenant="t", poller=False) as client:
        client.setup()
        client.submit("c1", "hello", message_id="m1", wait_ms=0)
        yield client


def delete(folder: Path) -> None:
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def test_deleted_file_is_told_of_and_not_made_again(chat: Chatlock, tmp_path: Path) -> None:
    turn = chat.begin("c1", "hello", message_id="m1")
    delete(tmp_path)
    for call in (
        lambda: chat.submit("c1", "more", message_id="m2", wait_ms=0),
        lambda: chat.status("c1", "m1"),
        lambda: turn.finish("ok"),
        chat.sweep_once,
        lambda: chat.submit("c1", "more", message_id="m2", wait_ms=0),
    ):
        with pytest.raises(StoreUnavailable, match="deleted or moved while it was in use"):
            call()
    assert not (tmp_path / KEPT).exists()


def test_client_goes_on_with_the_tables_that_setup_makes_anew(chat: Chatlock, tmp_path: Path) -> None:
    delete(tmp_path)
    with pytest.raises(StoreUnavailable):
        chat.status("c1", "m1")
    chat.setup()
    assert isinstance(chat.status("c1", "m1"), NotFound)
    chat.handler()(lambda turn: "ok")
    assert isinstance(chat.submit("c1", "hello", message_id="m1"), Answered)


def test_backup_that_is_put_in_place_is_read_at_once(chat: Chatlock, tmp_path: Path) -> None:
    with Chatlock(f"sqlite:///{tmp_path}/backup.db", tenant="t", poller=False) as other:
        other.setup()
        other.submit("c2", "of the backup", message_id="m9", wait_ms=0)
    delete(tmp_path)
    os.replace(tmp_path / "backup.db", tmp_path / KEPT)
    assert isinstance(chat.status("c2", "m9"), Queued)
    assert isinstance(chat.status("c1", "m1"), NotFound)


def test_file_that_comes_back_is_the_same(chat: Chatlock, tmp_path: Path) -> None:
    shutil.move(tmp_path / KEPT, tmp_path / "aside.db")
    with pytest.raises(StoreUnavailable):
        chat.status("c1", "m1")
    shutil.move(tmp_path / "aside.db", tmp_path / KEPT)
    assert isinstance(chat.status("c1", "m1"), Queued)

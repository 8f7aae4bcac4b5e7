"""docs/runbook.md: each incident is made, its command is run, and what it prints is what the page says.

CHATLOCK_GOLDEN=write pytest tests/cli/test_runbook.py writes the outputs into the page anew.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from sqlalchemy import event

from chatlock import Chatlock, StoreFull
from chatlock.cli import main
from chatlock.inputs import Key
from chatlock.ops import unanswered
from tests.cli.scene import DAY_MS, MINUTE_MS, START_MS, Scene
from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

PAGE = ROOT / "docs" / "runbook.md"
INCIDENT = re.compile(
    r"^## \d+\. (?P<title>.+?)\n.*?^```sh\n(?P<command>.*?)^```\n\n```text\n(?P<printed>.*?)^```$", re.M | re.S
)
IN_THE_TEXT = re.compile(r"`chatlock ([^`]+)`")
WORKERS = [f"web-{number}:471{number}:0a1b2c3{number}" for number in (1, 2, 3)]


def stuck_thread(scene: Scene) -> None:
    scene.claim(scene.send("t1", "m1"), WORKERS[0])
    scene.send("t1", "m2")
    scene.clock.advance(14_000)
    scene.swept()


def poison_message(scene: Scene) -> None:
    for owner in WORKERS:
        held = scene.claim(scene.send("t1", "m1", payload={"text": "what does 0/0 make?"}), owner)
        scene.clock.advance(3_000)
        scene.fail(held, "ZeroDivisionError", attempts_max=3)
        scene.clock.advance(MINUTE_MS)


def dead_redis(scene: Scene) -> None:
    scene.swept()


def deploy(scene: Scene) -> None:
    for number, owner in enumerate(WORKERS, 1):
        held = scene.claim(scene.send(f"t{number}", "m1"), owner)
        scene.clock.advance(20_000)
        released = scene.executor.transaction("release", lambda c, h=held: unanswered.release(c, h.key, h.claim_id))
        assert released
    for number in (1, 2):
        scene.answer(scene.claim(Key("acme", f"t{number}"), WORKERS[0]), upto=1)


def runaway_agent(scene: Scene) -> None:
    held = scene.claim(scene.send("t1", "m1"), WORKERS[1], window_ms=120 * MINUTE_MS)
    scene.clock.advance(50 * MINUTE_MS)
    scene.beat(held)


def hot_tenant(scene: Scene) -> None:
    for number in range(40):
        scene.send(f"t{number}", "m1", tenant="acme")
    scene.clock.advance(3 * MINUTE_MS)
    beta = scene.claim(scene.send("t1", "m1", tenant="beta"), WORKERS[0])
    scene.clock.advance(6_000)
    scene.answer(beta, upto=1)
    for number in range(3):
        scene.claim(Key("acme", f"t{number}"), WORKERS[number])


def clock_step(scene: Scene) -> None:
    scene.clock.set(START_MS - 60 * MINUTE_MS)
    scene.swept()


def failover(scene: Scene) -> None:
    for number in range(12):
        scene.send(f"t{number}", "m1")
    scene.claim(Key("acme", "t1"), WORKERS[0])


def full_disk(scene: Scene) -> None:
    for number in range(8):
        scene.answer(scene.claim(scene.send("t1", f"m{number}", payload="x" * 1_000), WORKERS[0]), upto=number + 1)
    scene.clock.advance(40 * DAY_MS)


def window_too_small(scene: Scene) -> None:
    lengths_s = [20, 25, 22, 30, 24, 26, 21, 28, 27, 29, 75, 90, 24, 95, 22, 30, 200, 24, 26, 28, 21, 410, 25, 27, 30]
    for number, seconds in enumerate(lengths_s):
        started_at = START_MS - 3 * DAY_MS + number * 10 * MINUTE_MS
        scene.execute(
            "INSERT INTO chatlock_turns(tenant, thread_id, incarnation, token, claim_id, agent, from_seq, to_seq,"
            f" state, started_at, ended_at) VALUES ('acme', 't{number}', 1, 1, 'c', 'crawler', 0, 1, 'done',"
            f" {started_at}, {started_at + seconds * 1_000})"
        )


INCIDENTS: list[tuple[str, Callable[[Scene], None]]] = [
    ("A thread is stuck", stuck_thread),
    ("A poison message", poison_message),
    ("Redis is gone", dead_redis),
    ("A deploy", deploy),
    ("An agent runs away", runaway_agent),
    ("One tenant takes all the room", hot_tenant),
    ("The clock stepped", clock_step),
    ("A failover", failover),
    ("The disk is full", full_disk),
    ("A window is too small", window_too_small),
]


def found() -> dict[str, re.Match[str]]:
    return {match["title"]: match for match in INCIDENT.finditer(PAGE.read_text())}


def test_the_page_has_every_incident() -> None:
    assert list(found()) == [title for title, _ in INCIDENTS]


@pytest.mark.parametrize(("title", "make"), INCIDENTS, ids=[make.__name__ for _, make in INCIDENTS])
def test_the_command_prints_what_the_page_says(
    fresh: Scene, title: str, make: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatlock.doctor.time.time", lambda: START_MS / 1_000)
    make(fresh)
    incident = found()[title]
    printed = printed_by(fresh, incident["command"])
    if os.environ.get("CHATLOCK_GOLDEN") == "write":
        start, end = incident.span("printed")
        page = PAGE.read_text()
        PAGE.write_text(page[:start] + printed + page[end:])
    assert printed == found()[title]["printed"]


def printed_by(scene: Scene, line: str) -> str:
    """What the command prints; `| grep WORD` keeps the lines that hold it."""
    text, _, kept = line.strip().partition(" | grep ")
    words = shlex.split(text)
    environment = {"CHATLOCK_URL": scene.database.url, "CHATLOCK_REDIS_URL": "redis://127.0.0.1:1/0", "USER": "olga"}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    assert words.pop(0) == "chatlock"
    result = CliRunner(env=environment).invoke(main, words)
    assert result.exit_code in (0, 1, 3), result.output
    return "".join(f"{text}\n" for text in result.output.splitlines() if kept in text)


@pytest.mark.parametrize("command", IN_THE_TEXT.findall(PAGE.read_text()))
def test_command_in_the_text_names_all_that_it_needs(command: str) -> None:
    parsed(command)


def test_command_that_lacks_something_is_found() -> None:
    with pytest.raises(click.UsageError, match="parameter: thread"):
        parsed("threads free --turn 1 --force --reason 'the clock stepped'")


def parsed(line: str) -> None:
    """Raises click's UsageError where an argument or a required option is missing."""
    command: click.Command = main
    words = shlex.split(line)
    context = click.Context(command)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found_command = command.get_command(context, name)
        assert found_command, line
        command = found_command
    command.make_context(line, [*words, "--url", "sqlite:///chat.db"], parent=context)


def test_a_full_disk_says_so_and_writes_nothing(sqlite_database: Database) -> None:
    """The symptom that the page names, of a real file that may not grow."""
    with Chatlock(sqlite_database.url, tenant="acme", poller=False) as chat:
        chat.submit("t1", "x", message_id="m1", wait_ms=0)
        limit = "PRAGMA max_page_count = 1"  # less than the file has means: no more than it has
        event.listen(chat._executor.engine, "connect", lambda connection, record: connection.execute(limit))
        chat._executor._forget_connections()
        with pytest.raises(StoreFull) as full:
            fill(chat)
    stored = sqlite_database.connect().execute("SELECT count(*), max(seq) FROM chatlock_messages").fetchone()
    assert stored[0] == stored[1]
    assert str(full.value) in " ".join(PAGE.read_text().split())


def fill(chat: Chatlock) -> None:
    for number in range(200):
        chat.submit("t1", "x" * 1_000, message_id=f"more-{number}", wait_ms=0)

"""What a command prints: nothing that a terminal obeys, times and durations that are told apart, commands to paste."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from chatlock.cli import main, output
from chatlock.why import Cause
from tests.cli.tree import commands, leaves
from tests.support import ROOT

if TYPE_CHECKING:
    from tests.cli.scene import Scene

HOSTILE = "\x1b[2J\x07\r\n\t\x9b31m\u202e\u2066\u200b\u2028\ufeff[bold red]x[/]"


def test_nothing_that_a_terminal_obeys_is_left() -> None:
    shown = output.visible(HOSTILE + "é日本 😀")
    assert shown == "\\x1b[2J\\x07\\r\\n\\t\\x9b31m\\u202e\\u2066\\u200b\\u2028\\ufeff[bold red]x[/]é日本 😀"
    assert shown.isprintable()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_on_a_terminal_takes_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    output.print_table(["THREAD", "NEXT"], [[HOSTILE, "b"]])
    shown = terminal.getvalue()
    assert "[bold red]x[/]" in shown.replace("\n", "")
    assert not {"\x1b", "\u202e", "\x9b"} & set(shown)


def test_a_table_without_rich_is_plain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_table(["THREAD", "N"], [["a", "1"], ["longer one", "2"]])
    assert capsys.readouterr().out == "THREAD      N\na           1\nlonger one  2\n"


@pytest.mark.parametrize("arguments", ["threads ls", "threads show parked", "inbox ls parked --payloads", "audit"])
def test_people_s_words_are_shown_harmless(scene: Scene, arguments: str) -> None:
    for extra in ([], ["--json"]):
        result = scene.run(*arguments.split(), *extra)
        assert result.exit_code == 0
        assert all(character.isprintable() or character == "\n" for character in result.output)


@pytest.mark.parametrize("arguments", ["threads show answered", "inbox show answered m1", "inbox ls", "dead ls",
                                       "turns ls", "intents ls", "intents show answered --turn 1"])  # fmt: skip
def test_payloads_are_hidden_unless_asked_for(scene: Scene, arguments: str) -> None:
    words = ("hello", "boom", "evil", '"hi')
    for extra in ([], ["--json"]):
        hidden = scene.run(*arguments.split(), *extra).stdout
        asked = scene.run(*arguments.split(), "--payloads", *extra).stdout
        assert not any(word in hidden for word in words)
        assert any(word in asked for word in ("hello", "boom", "hi \\"))


@pytest.mark.parametrize("thread", ["plain", "two words", "it's", "-dash", "$(reboot)", "a\\b", "\u202eevil's", "*"])
def test_a_command_can_be_pasted(thread: str) -> None:
    line = output.command("threads", "show", "--tenant", "acme", thread=thread)
    assert line.isprintable()
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, timeout=10, check=True)
    pasted = words.stdout.decode().split("\0")[:-1]
    assert pasted[:5] == ["chatlock", "threads", "show", "--tenant", "acme"]
    assert pasted[-1] == thread
    assert (pasted[-2] == "--") is thread.startswith("-")
    if thread.isprintable():
        assert shlex.split(line) == pasted


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, None),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_800_000_000_123, "2027-01-15T08:00:00.123Z"),
        (2**53, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_time(ms: int | None, text: str | None) -> None:
    assert output.rfc3339(ms) == text


@pytest.mark.parametrize(("text", "ms"), [("250ms", 250), ("90s", 90_000), ("5m", 300_000), ("7d", 604_800_000)])
def test_duration(text: str, ms: int) -> None:
    assert output.duration(text) == ms


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "1.5h", "5 m", "5w", "999999999999d", "\u0665m"])
def test_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        output.duration(text)


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_help_has_an_example_that_is_a_command(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    after = result.output.split("Example", 1)[1].splitlines()[1:]
    lines = [line.split("|")[0].strip() for line in after[: after.index("")]]
    assert lines
    for line in lines:
        words = [word for word in shlex.split(line) if "=" not in word or word.startswith("-")]
        command: click.Command = main
        words = words[words.index("chatlock") + 1 :]
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line


def test_the_page_names_every_command_and_every_cause() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert {" ".join(path) for path in leaves() if f"`chatlock {' '.join(path)}" not in page} == set()
    assert {cause.value for cause in Cause if f"| {cause.value} |" not in page} == set()


def test_json_lines_stay_ascii(scene: Scene) -> None:
    result = scene.run("inbox", "ls", "parked", "--payloads", "--json")
    assert result.stdout.isascii()
    assert json.loads(result.stdout.splitlines()[0])["payload"] == "[red]\u202eevil"

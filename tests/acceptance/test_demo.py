"""The demo as its reader runs it: a process whose last line is the ledger."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import examples.demo.__main__ as demo_main
from examples.demo.agent import Entry, Histories, Reply
from examples.demo.arrivals import Arrival, replayed
from examples.demo.ledger import judge
from examples.demo.passes import without_chatlock
from tests.support import ROOT

LEDGER = re.compile(r"ledger: (\d+) messages, (\d+) answered in (\d+) turns, 0 lost, 0 answered twice")
THREAD = ("log", "ann")
ARRIVALS = [Arrival(at_s, *THREAD, f"m{at_s}", 10) for at_s in (0, 5)]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_demo_ends_with_every_message_answered_once(kind: str) -> None:
    demo = run_demo("--db", kind, "--quick", "--speed", "2000")

    assert demo.returncode == 0, demo.stdout + demo.stderr
    last = LEDGER.fullmatch(demo.stdout.splitlines()[-1])
    assert last, demo.stdout
    messages, answered, turns = map(int, last.groups())
    assert messages == answered == len(replayed(100))
    # Bursts were answered by one turn each: messages came while turns ran.
    assert turns < messages
    assert "chat.verify() agrees" in demo.stdout
    assert demo.stderr == ""


def test_the_demo_fails_where_chatlock_does_not_stand_between(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_main, "with_chatlock", lambda url: without_chatlock)
    monkeypatch.setattr(sys, "argv", ["demo", "--quick", "--speed", "2000"])

    assert demo_main.main() == 1
    output = capsys.readouterr().out
    figures = dict(re.findall(r"^ *(\S.*?) {2,}([\d,]+) +[\d,]+ *$", output, re.MULTILINE))
    for harm in ("answered twice", "overlapped another", "missing from histories"):
        assert any(harm in title and figure != "0" for title, figure in figures.items()), output


def reply(number: int, *answers: str, began_s: float = 0, ended_s: float = 1) -> Reply:
    return Reply(THREAD, Entry(f"reply-{number}", answers), began_s, ended_s)


def histories(*entry_ids: str) -> Histories:
    kept = Histories()
    kept.write(THREAD, tuple(map(Entry, entry_ids)))
    return kept


def test_the_judge_passes_a_clean_record() -> None:
    ledger = judge(ARRIVALS, [reply(1, "m0", "m5")], histories("m0", "m5", "reply-1"))

    assert ledger.is_clean
    assert str(ledger) == "ledger: 2 messages, 2 answered in 1 turns, 0 lost, 0 answered twice"


def test_the_judge_counts_a_message_that_no_reply_answers() -> None:
    ledger = judge(ARRIVALS, [reply(1, "m0")], histories("m0", "m5", "reply-1"))

    assert (ledger.lost, ledger.is_clean) == (1, False)


def test_the_judge_counts_a_message_answered_twice() -> None:
    sent = [reply(1, "m0"), reply(2, "m0", "m5", began_s=2, ended_s=3)]
    ledger = judge(ARRIVALS, sent, histories("m0", "m5", "reply-1", "reply-2"))

    assert (ledger.answered_twice, ledger.is_clean) == (1, False)


def test_the_judge_counts_turns_that_overlap() -> None:
    sent = [reply(1, "m0", ended_s=5), reply(2, "m5", began_s=4, ended_s=6)]
    ledger = judge(ARRIVALS, sent, histories("m0", "m5", "reply-1", "reply-2"))

    assert (ledger.overlapping_turns, ledger.is_clean) == (1, False)


def test_the_judge_counts_lines_that_a_history_lost() -> None:
    ledger = judge(ARRIVALS, [reply(1, "m0", "m5")], histories("m5", "reply-1"))

    assert (ledger.history_lost, ledger.is_clean) == (1, False)


def test_the_judge_refuses_a_reply_to_what_nobody_wrote() -> None:
    with pytest.raises(ValueError, match="nobody wrote"):
        judge(ARRIVALS, [reply(1, "m9")], histories())

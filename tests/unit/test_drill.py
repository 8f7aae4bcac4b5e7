"""The drill passes handlers that are safe to run again, and names the fault and the step at which others are not."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatlock import AsyncTurn, ClaimLost, InvalidInput, Turn
from chatlock.testing import Case, Drill, DrillFailed, point
from chatlock.testing.cases import FAULTS, INSIDE
from tests.support import ROOT
from tests.support.databases import Database

CASE = re.compile(r"^(\w+) at step \d+ \(([\w.]+)\)", re.MULTILINE)


class Mailbox:
    """A provider that knows a key it has seen before."""

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}

    def send(self, key: str, text: str) -> None:
        self.by_key.setdefault(key, text)


def one_mail(case: Case) -> None:
    assert len(case.world.by_key) == 1


def careful(mail: Mailbox, turn: Turn) -> str:
    """Sends under a key that is the same over retries and takeovers."""
    point("mail.begin")
    mail.send(turn.step_key("mail"), "hello")
    point("mail.end")
    return "sent"


def careless(mail: Mailbox, turn: Turn) -> str:
    """Sends under a key of its own."""
    point("mail.begin")
    mail.send(str(turn.token), "hello")
    point("mail.end")
    return "sent"


@pytest.fixture
def drill(database: Database) -> Iterator[Drill]:
    made = Drill(database.url)
    yield made
    made.close()


@pytest.fixture
def fast(sqlite_database: Database) -> Iterator[Drill]:
    made = Drill(sqlite_database.url)
    yield made
    made.close()


def failures(drill: Drill, handler: Any, **about: Any) -> dict[str, list[str]]:
    """The points at which the handler does not survive, by fault."""
    with pytest.raises(DrillFailed) as raised:
        drill.run(handler, **about)
    found: dict[str, list[str]] = {}
    for fault, at in CASE.findall(str(raised.value)):
        found.setdefault(fault, []).append(at)
    return found


def test_careful_handler_survives_every_fault_at_every_step(drill: Drill) -> None:
    cases = drill.run(careful, world=Mailbox, check=one_mail)
    steps = [case.point for case in cases if case.fault == "crash"]
    assert steps[:2] == ["submit_hot.begin", "submit_hot.commit"]
    assert steps[-4:] == ["mail.begin", "mail.end", "finish_hot.begin", "finish_hot.commit"]
    outside = [name for name in steps if not name.endswith(".commit")]
    for fault in FAULTS:
        played = [case.point for case in cases if case.fault == fault]
        assert played == (steps if fault in INSIDE else outside)


def test_careless_handler_is_caught_where_it_is_careless(fast: Drill) -> None:
    assert failures(fast, careless, world=Mailbox, check=one_mail) == {
        "crash": ["mail.end", "finish_hot.begin", "finish_hot.commit"],
        "arrival": ["mail.end", "finish_hot.begin", "finish_hot.commit"],
        "reclaim": ["mail.begin", "mail.end", "finish_hot.begin"],
        "late": ["mail.begin", "mail.end", "finish_hot.begin"],
        "stop": ["mail.end", "finish_hot.begin", "finish_hot.commit"],
    }


class Outbox:
    """A provider that knows a key, and tells which messages its mails answer."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[str]] = {}

    def send(self, key: str, *ids: str) -> None:
        self.by_key.setdefault(key, list(ids))


def each_was_answered_once(case: Case) -> None:
    answered = [message_id for ids in case.world.by_key.values() for message_id in ids]
    assert sorted(answered) == sorted(case.messages)


def test_effect_under_one_key_for_the_turn_is_lost_for_a_message_that_arrives(fast: Drill) -> None:
    def one_mail_a_turn(box: Outbox, turn: Turn) -> str:
        point("mail.begin")
        box.send(turn.step_key("mail"), *(message.message_id for message in turn.messages))
        point("mail.end")
        return "sent"

    about: dict[str, Any] = {"world": Outbox, "check": each_was_answered_once}
    assert failures(fast, one_mail_a_turn, **about) == {
        "arrival": ["mail.end", "finish_hot.begin", "finish_hot.commit"]
    }
    with pytest.raises(DrillFailed, match=r"\(arrival: .* another message arrives, and the next turn has both\)"):
        fast.run(one_mail_a_turn, faults=["arrival"], **about)


def test_effect_under_a_key_for_each_message_survives_every_fault(fast: Drill) -> None:
    held: list[int] = []

    def one_mail_a_message(box: Outbox, turn: Turn) -> str:
        held.append(len(turn.messages))
        for message in turn.messages:
            point("mail.begin")
            box.send(turn.step_key(f"mail:{message.message_id}"), message.message_id)
            point("mail.end")
        return "sent"

    cases = fast.run(one_mail_a_message, world=Outbox, check=each_was_answered_once)
    assert set(held) == {1, 2}
    assert {len(case.messages) for case in cases if case.fault != "arrival"} == {1}
    assert {len(case.messages) for case in cases if case.fault == "arrival"} == {2}


def test_check_before_the_effect_keeps_a_late_turn_from_making_it(fast: Drill) -> None:
    def checks(mail: Mailbox, turn: Turn) -> str:
        point("mail.begin")
        turn.check()
        mail.send(str(turn.token), "hello")
        return "sent"

    caught = failures(fast, checks, world=Mailbox, check=one_mail, faults=["reclaim", "late"])
    assert caught == {"reclaim": ["finish_hot.begin"], "late": ["finish_hot.begin"]}


def test_handler_that_remembers_in_its_process_is_caught(fast: Drill) -> None:
    done: set[str] = set()

    def remembers(mail: Mailbox, turn: Turn) -> str:
        head = turn.messages[0].message_id
        if head not in done:
            done.add(head)
            point("noted")
            mail.send(head, "hello")
        return "sent"

    caught = failures(fast, remembers, world=Mailbox, check=one_mail, faults=["crash"])
    assert caught == {"crash": ["noted"]}


def test_handler_that_fails_when_it_is_run_again_is_caught(fast: Drill) -> None:
    def refuses(turn: Turn) -> str:
        if turn.previous_incomplete is not None:
            raise RuntimeError("not again")
        point("once")
        return "ok"

    caught = failures(fast, refuses, faults=["crash"])
    assert caught == {"crash": ["once", "finish_hot.begin", "finish_hot.commit"]}


def test_crashed_process_runs_nothing_of_its_cleanup_before_the_takeover(fast: Drill) -> None:
    def tidies(log: list[str], turn: Turn) -> str:
        log.append(f"run {turn.token}")
        try:
            point("inside")
            return "ok"
        finally:
            log.append(f"tidied {turn.token}")

    cases = fast.run(tidies, world=list, faults=["crash"])
    (inside,) = [case for case in cases if case.point == "inside"]
    assert inside.runs == 2
    assert [line.split()[0] for line in inside.world] == ["run", "run", "tidied", "tidied"]


def test_turn_that_lost_its_claim_is_told_at_its_next_call(fast: Drill) -> None:
    def marks(log: list[str], turn: Turn) -> str:
        point("before")
        try:
            turn.mark("here")
        except ClaimLost:
            log.append("lost")
            raise
        return "ok"

    cases = fast.run(marks, world=list, faults=["reclaim", "late"])
    lost = {(case.fault, case.point) for case in cases if case.world == ["lost"]}
    assert lost == {(fault, at) for fault in ("reclaim", "late") for at in ("before", "mark.begin")}


def test_callers_are_told_one_answer(fast: Drill) -> None:
    cases = fast.run(careful, world=Mailbox, faults=["duplicate", "stop"])
    assert {case.reply for case in cases} == {"sent"}
    assert all(len(case.told) > 1 for case in cases if case.fault == "duplicate")


def test_stop_hands_the_turn_back_uncharged(fast: Drill) -> None:
    def sees(log: list[str], turn: Turn) -> str:
        before = turn.previous_incomplete
        log.append(before.state if before is not None else "none")
        point("inside")
        return "ok"

    cases = fast.run(sees, world=list, faults=["stop"])
    (inside,) = [case for case in cases if case.point == "inside"]
    assert inside.world == ["none", "released"]


def test_log_leaves_out_what_the_drill_brings_about(fast: Drill, caplog: pytest.LogCaptureFixture) -> None:
    def fails_when_it_is_run_again(turn: Turn) -> str:
        if turn.previous_incomplete is not None and turn.previous_incomplete.state == "reclaimed":
            raise RuntimeError("not again")
        point("once")
        return "ok"

    fast.run(fails_when_it_is_run_again, faults=["reclaim", "late", "stop"])
    assert {record.message.partition(" at ")[0] for record in caplog.records} == {"turn.failed: RuntimeError"}
    caplog.clear()
    logging.getLogger("chatlock").warning("turn.reclaimed")
    assert caplog.messages == ["turn.reclaimed"]


def test_handlers_of_every_kind_are_driven(fast: Drill) -> None:
    async def answers(turn: AsyncTurn) -> str:
        await turn.mark("here")
        return "ok"

    async def streams(turn: AsyncTurn) -> AsyncIterator[str]:
        yield "o"
        await turn.mark("here")
        yield "k"

    for handler in (answers, streams):
        cases = fast.run(handler)
        assert {case.fault for case in cases} == set(FAULTS)
        assert {"mark.begin", "mark.commit"} <= {case.point for case in cases}


def test_turn_finds_all_the_messages(fast: Drill) -> None:
    def joins(turn: Turn) -> str:
        return " ".join(message.payload for message in turn.messages)

    cases = fast.run(joins, messages=["one", "two"], faults=["late"])
    assert {case.reply for case in cases if case.point == "finish_hot.begin"} == {"one two"}


def test_what_the_handler_raised_is_the_cause(fast: Drill) -> None:
    def takes_nothing() -> str:
        return "ok"

    said = r"^the handler fails without any fault: .* ended as Dead; the handler raised TypeError: .*takes_nothing\(\)"
    with pytest.raises(DrillFailed, match=said) as raised:
        fast.run(takes_nothing)
    assert isinstance(raised.value.__cause__, TypeError)

    def refuses(turn: Turn) -> str:
        point("once")
        if turn.previous_incomplete is not None:
            raise LookupError
        return "ok"

    with pytest.raises(
        DrillFailed, match=r"crash at step \d+ \(once\): .* the handler raised LookupError at "
    ) as raised:
        fast.run(refuses, faults=["crash"])
    assert isinstance(raised.value.__cause__, LookupError)


def test_check_that_fails_without_any_fault_is_told(fast: Drill) -> None:
    def refuse(case: Case) -> None:
        raise AssertionError(f"{case.runs} runs")

    with pytest.raises(DrillFailed, match=r"without any fault: .* 1 runs"):
        fast.run(lambda turn: "ok", check=refuse)


def test_handler_that_takes_other_steps_every_time_is_told(fast: Drill) -> None:
    runs = iter(range(1000))

    def wanders(turn: Turn) -> str:
        point(f"step{next(runs)}")
        return "ok"

    with pytest.raises(DrillFailed, match="must take the same steps every time"):
        fast.run(wanders, faults=["duplicate"])


@pytest.mark.parametrize("about", [{"faults": ["fire"]}, {"messages": []}])
def test_drill_without_sense_is_refused(fast: Drill, about: Any) -> None:
    with pytest.raises(InvalidInput):
        fast.run(lambda turn: "ok", **about)


def test_example_of_the_docs_passes_and_its_careless_twins_do_not(tmp_path: Path) -> None:
    """As an application runs it: pytest finds the fixtures by the plugin's entry point."""
    page = (ROOT / "docs" / "testing-your-handler.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    key = 'f"{turn.key.tenant}:{turn.key.thread}:{message.message_id}"'
    assert key in example
    (tmp_path / "test_shop.py").write_text(example)
    (tmp_path / "test_careless.py").write_text(example.replace("turn.key.thread", "turn.token"))
    (tmp_path / "test_one_key.py").write_text(example.replace(key, 'turn.step_key("order")'))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:valkey"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "PASSED test_shop.py" in ran.stdout
    careless, one_key = re.findall(r"^E .* (\d+ of 30 cases failed):$", ran.stdout, re.MULTILINE)
    assert f"\n    {careless}:\n" in page
    failures = ran.stdout.partition("short test summary info")[0]  # where CI is set, the summary repeats each of them
    of_one_key = failures.partition(one_key)[2].replace("E       ", "")
    assert {fault for fault, _ in CASE.findall(of_one_key)} == {"arrival"}

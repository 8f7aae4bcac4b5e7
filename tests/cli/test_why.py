"""`chatlock why`: one golden line for each cause, and where one cause ends and the next begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from chatlock.inputs import Key
from chatlock.ops import report
from chatlock.ops.report import Page, Scope, Service, Surroundings, ThreadReport
from chatlock.protocol import Limits
from chatlock.why import OVERDUE_MS, POLLER_UNSEEN_MS, Cause, explain
from chatlock.wording import counted, span

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from tests.cli.scene import Scene

LINES = {
    "answered": "answered: nothing pending (every message is resolved; its last turn ended done);"
    " there is nothing to free; now: chatlock turns ls --tenant acme answered",
    "deleted": "deleted: deleted (its tombstone keeps the token); there is nothing to free;"
    " now: chatlock audit --tenant acme deleted",
    "parked": "parked: parked (by olga: looks [bold]wrong\\x1b[0m; 2 messages wait); does not free itself;"
    " now: chatlock threads resume --reason WHY --tenant acme parked",
    "awaiting": "awaiting: awaiting (question question-1 is open; 1 message waits);"
    " frees itself when the question is answered;"
    " now: chatlock answer --question question-1 --decision TEXT --tenant acme awaiting",
    "untaken": "untaken: no worker (1 message waits, due for 28 min; a poller sweeps, but no process has a"
    " handler of agent night: start the application; or a limit is reached: 5 turns run (turns_max), 5 of its"
    " tenant (tenant_turns_max));"
    " does not free itself; now: chatlock doctor",
    "hung": "hung: holder hung (turn 1 of worker-1, claimed 6 min ago; it has run for over half of its window of"
    " 10 min); frees itself when its window ends in 3 min;"
    " to end a turn that lives: chatlock threads free --turn 1 --force --reason WHY --tenant acme hung",
    "silent": "silent: holder silent (turn 1 of worker-2, claimed 20 s ago; its last heartbeat was 7 s ago);"
    " frees itself when its lease passes in 5 s;"
    " now: chatlock threads show --tenant acme silent",
    "stale": "stale: holder dead (turn 1 of worker-3, claimed 20 s ago; its lease passed 10 s ago;"
    " a poller left its mark 10 s ago); frees itself by a sweep in 9 s;"
    " now: chatlock threads free --turn 1 --reason WHY --tenant acme stale",
    "unbeaten": "unbeaten: holder alive (turn 1 of worker-4, claimed 7 s ago, without a heartbeat);"
    " frees itself when its turn ends, or its window in 9 min;"
    " now: chatlock threads show --tenant acme unbeaten",
    "alive": "alive: holder alive (turn 1 of worker-1, claimed 5 s ago; its last heartbeat was 2 s ago);"
    " frees itself when its turn ends, or its window in 9 min;"
    " now: chatlock threads show --tenant acme alive",
    "delayed": "delayed: head delayed (its last turn ended failed (TimeoutError); used attempts: 1 of 5,"
    " stalls: 0 of 20); frees itself by its next turn in 2 s; now: chatlock threads show --tenant acme delayed",
    "due": "due: due now (1 message waits); frees itself by the next sweep in 2 s; now: chatlock top --all-tenants",
}
CAP = (
    "answered: cap (1 message waits, due for 28 min; 5 turns of agent default run, 0 of its tenant,"
    " and no slot took this one); frees itself when one of them ends; now: chatlock top --all-tenants"
)


@pytest.mark.parametrize("thread", LINES)
def test_line(scene: Scene, thread: str) -> None:
    result = scene.run("why", thread)
    assert (result.exit_code, result.stdout) == (0, f"{LINES[thread]}\n")


def test_line_of_a_thread_that_waits_for_a_slot(scene: Scene) -> None:
    assert scene.run("why", "answered", tenant="beta").stdout == f"{CAP}\n"


def test_line_without_a_poller(fresh: Scene) -> None:
    fresh.claim(fresh.send("held", "m1"), "worker-1")
    fresh.send("waits", "m1", "m2")
    once = "once a poller or a client with one runs"
    assert fresh.run("why", "waits").stdout == (
        f"waits: due now (2 messages wait; no poller has swept yet); frees itself by the next sweep, {once};"
        " now: chatlock top --all-tenants\n"
    )
    fresh.clock.advance(13_000)
    assert fresh.run("why", "held").stdout == (
        "held: holder dead (turn 1 of worker-1, claimed 13 s ago; its lease passed 3 s ago; no poller has swept yet);"
        f" frees itself by a sweep, {once};"
        " now: chatlock threads free --turn 1 --reason WHY --tenant acme held\n"
    )
    fresh.clock.advance(47_000)
    assert fresh.run("why", "waits").stdout == (
        "waits: no poller (2 messages wait, due for 60 s; no poller has swept yet: start the application, or a poller"
        " beside it); does not free itself; now: chatlock poller\n"
    )
    fresh.swept(ago_ms=600_000)
    assert fresh.run("why", "held").stdout == (
        "held: no poller (turn 1 of worker-1, claimed 60 s ago; its lease passed 50 s ago; no poller has swept for"
        " 10 min: start the application, or a poller beside it); does not free itself; now: chatlock poller\n"
    )


def test_a_list_without_stuck_threads_says_how_far_it_looked(fresh: Scene) -> None:
    fresh.send("waits", "m1")
    fresh.clock.advance(29_000)
    for arguments, span_ in (((), "30 s"), (("--older", "5m"), "5 min")):
        result = fresh.run("threads", "ls", "--stuck", *arguments)
        assert (result.exit_code, result.stderr) == (0, f"no thread is stuck for {span_} or more\n")


def test_a_list_tells_of_each_thread_what_why_tells_of_it_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "LAST_TURNS_MAX", 5)

    def op(conn: Connection) -> list[ThreadReport]:
        listed = report.list_threads(conn, Scope(None), Page(100, Key("", "")))
        around = report.read_surroundings(conn, listed)
        assert around == [one for thread in listed for one in report.read_surroundings(conn, [thread])]
        endings = {thread.thread_id: (of_it.ended, of_it.error) for thread, of_it in zip(listed, around, strict=True)}
        assert endings["poison"] == ("gave_up", "KeyError")
        assert endings["delayed"] == ("failed", "TimeoutError")
        assert endings["alive"] == (None, None)
        return listed

    assert len(scene.executor.snapshot("surroundings", op)) > 2 * report.LAST_TURNS_MAX


def test_a_thread_that_is_not_there_is_refused(scene: Scene) -> None:
    for thread, tenant in (("nowhere", "acme"), ("poison", "beta")):
        result = scene.run("why", thread, tenant=tenant)
        assert result.exit_code == 1
        assert result.stderr == f"Error: there is no thread {thread} of this tenant\n"


IDLE = ThreadReport(
    tenant="acme", thread_id="t", incarnation=1, agent="a", status="idle", token=1, owner=None, claimed_at=None,
    expires_at=None, window_ends_at=None, lease_ms=None, beat=0, last_seq=2, fetched_seq=1, done_seq=1, holes=0,
    attempts=0, stalls=0, not_before=0, quiet_until=0, awaiting=None, awaiting_rule=None, created_at=0,
    due_at=1_000_000, dispatched_until=0, now=1_000_000,
)  # fmt: skip
RUNNING = replace(
    IDLE, status="running", owner="w", claimed_at=990_000, lease_ms=10_000, beat=3, expires_at=1_008_000,
    window_ends_at=1_590_000, due_at=None,
)  # fmt: skip
SWEPT = Surroundings(Service(oldest_due_at=None, swept_at=990_000), running_of_agent=0)
UNSWEPT = replace(SWEPT, service=Service(oldest_due_at=None, swept_at=1_000_000 - POLLER_UNSEEN_MS - 1))


def cause(thread: ThreadReport, around: Surroundings = SWEPT) -> Cause:
    return explain(thread, around, Limits()).cause


def test_every_cause_has_a_line() -> None:
    told = {line.split(": ", 1)[1].split(" (")[0] for line in [*LINES.values(), CAP]}
    assert told | {Cause.NO_POLLER.value} == {one.value for one in Cause}


@pytest.mark.parametrize(
    ("expires_at", "expected"),
    [
        (1_008_000, Cause.ALIVE),
        (1_004_000, Cause.ALIVE),  # two beats of silence are nothing
        (1_003_999, Cause.SILENT),
        (1_000_000, Cause.SILENT),
        (999_999, Cause.DEAD),
    ],
)
def test_silence(expires_at: int, expected: Cause) -> None:
    assert cause(replace(RUNNING, expires_at=expires_at)) is expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"claimed_at": 410_000}, Cause.ALIVE),
        ({"claimed_at": 409_999}, Cause.HUNG),
        ({"expires_at": 1_001_000, "window_ends_at": 1_001_000}, Cause.HUNG),  # the window cuts the lease
        ({"expires_at": 999_000, "window_ends_at": 999_000, "claimed_at": 400_000}, Cause.HUNG),
        ({"expires_at": 999_000, "window_ends_at": 999_000, "claimed_at": 400_000, "beat": 0}, Cause.DEAD),
    ],
)
def test_hanging(change: dict[str, int], expected: Cause) -> None:
    assert cause(replace(RUNNING, **change)) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "around", "expected"),
    [
        ({"not_before": 1_000_001}, SWEPT, Cause.DELAYED),
        ({"quiet_until": 1_000_001}, SWEPT, Cause.DELAYED),
        ({"not_before": 1_000_000 + 60_001}, SWEPT, Cause.DUE),  # the clock stepped: it counts as due
        ({"due_at": 1_000_000 - OVERDUE_MS}, UNSWEPT, Cause.DUE),
        ({"due_at": 1_000_000 - OVERDUE_MS - 1}, UNSWEPT, Cause.NO_POLLER),
        ({"due_at": 1_000_000 - OVERDUE_MS - 1}, SWEPT, Cause.NO_WORKER),
        ({"due_at": 1_000_000 - OVERDUE_MS - 1}, replace(SWEPT, running_of_agent=1), Cause.CAP),
        ({"due_at": None}, UNSWEPT, Cause.DUE),
        ({"last_seq": 1}, SWEPT, Cause.NOTHING_PENDING),
        ({"awaiting": "q", "awaiting_rule": "hold", "due_at": None}, UNSWEPT, Cause.AWAITING),
        ({"awaiting": "q", "awaiting_rule": "run"}, SWEPT, Cause.DUE),
        ({"last_seq": 1, "awaiting": "q", "awaiting_rule": "run"}, SWEPT, Cause.AWAITING),
    ],
)
def test_waiting(change: dict[str, int], around: Surroundings, expected: Cause) -> None:
    assert cause(replace(IDLE, **change), around) is expected  # type: ignore[arg-type]


def test_a_thread_that_was_handed_to_a_worker_says_so() -> None:
    handed = replace(IDLE, due_at=900_000, dispatched_until=915_000)
    assert "it was handed to a worker, and none claimed it" in explain(handed, SWEPT, Limits()).text


@pytest.mark.parametrize(
    ("dispatched_until", "running", "limits"),
    [
        (0, {}, None),
        (0, {"running": 3}, "3 turns run (turns_max)"),
        (0, {"running": 3, "running_of_tenant": 2}, "3 turns run (turns_max), 2 of its tenant (tenant_turns_max)"),
        (915_000, {"running": 1}, None),  # workers took it from the poller: it has no slots
        (915_000, {"running": 3, "running_of_tenant": 2}, "2 turns of its tenant run (tenant_turns_max)"),
        (1_000_000, {"running": 3, "running_of_tenant": 2}, "2 turns of its tenant run (tenant_turns_max)"),
        (1_000_001, {"running": 3, "running_of_tenant": 2}, None),  # it is handed out, so no limit held it back
    ],
)
def test_limits_are_named_where_they_may_be_the_cause(
    dispatched_until: int, running: dict[str, int], limits: str | None
) -> None:
    thread = replace(IDLE, due_at=900_000, dispatched_until=dispatched_until)
    told = explain(thread, replace(SWEPT, **running), Limits())
    assert told.cause is Cause.NO_WORKER
    assert told.text.partition("; or a limit is reached: ")[2] == (limits or "")
    assert ("_max" in told.text) == (limits is not None)


@pytest.mark.parametrize(
    ("ms", "text"), [(-5, "0 ms"), (1_999, "1999 ms"), (2_000, "2 s"), (119_999, "119 s"), (7_200_000, "2 h")]
)
def test_span(ms: int, text: str) -> None:
    assert span(ms) == text


@pytest.mark.parametrize(
    ("count", "many", "text"),
    [(0, None, "0 turns"), (1, None, "1 turn"), (2, None, "2 turns"), (1, "x", "1 turn"), (2, "x", "2 x")],
)
def test_a_count_agrees_with_its_words(count: int, many: str | None, text: str) -> None:
    assert counted(count, "turn", many) == text

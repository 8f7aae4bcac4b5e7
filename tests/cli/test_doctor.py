"""`chatlock doctor`: each check passes where all is well, fails or warns where it is not, and shows no URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from chatlock import doctor, migrations
from chatlock.cli import main
from chatlock.doctor import Finding, Level
from chatlock.ops.diagnose import Server
from chatlock.ops.report import Service
from chatlock.ops.runs import CutOff
from chatlock.schema import SCHEMA_VERSION
from tests.cli.scene import START_MS

if TYPE_CHECKING:
    from tests.cli.scene import Scene
    from tests.support.databases import Database

OK, WARNING, FAILED = Level.OK, Level.WARNING, Level.FAILED


def examined(scene: Scene, *arguments: str, code: int) -> dict[str, tuple[str, str]]:
    lines = scene.json("doctor", *arguments, code=code, tenant=None)
    return {line["check"]: (line["level"], line["text"]) for line in lines}


def test_a_healthy_installation(fresh: Scene, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatlock.doctor.time.time", lambda: START_MS / 1000)
    fresh.swept()
    seen = examined(fresh, "--redis-url", redis_url, code=0)
    own = {"wal"} if fresh.database.kind == "sqlite" else {"pooler"}
    shared = {"database", "tables", "clock", "poller", "due", "stuck", "windows", "redis", "rq"}
    assert seen.keys() == shared | own
    assert {check for check, (level, _) in seen.items() if level != OK} <= {"wal"}
    assert seen["tables"] == ("ok", f"revision {SCHEMA_VERSION}")
    assert seen["redis"] == ("ok", "it answers")


def test_a_neglected_installation(fresh: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    held = fresh.claim(fresh.send("t1", "m1"), "worker-1")
    fresh.beat(held)
    fresh.send("t2", "m1")
    fresh.execute(
        "INSERT INTO chatlock_turns(tenant, thread_id, incarnation, token, claim_id, agent, from_seq, state, error,"
        f" started_at, ended_at, late_ended_at) VALUES ('acme', 't0', 1, 1, 'c', 'crawler', 0, 'reclaimed', 'window',"
        f" {START_MS - 100_000}, {START_MS - 50_000}, {START_MS - 40_000})"
    )
    fresh.clock.advance(120_000)
    monkeypatch.setenv("CHATLOCK_REDIS_URL", "redis://:s3cret@127.0.0.1:1/0")
    seen = examined(fresh, code=1)
    assert {check for check, (level, _) in seen.items() if level == FAILED} == {"poller", "due", "stuck", "redis"}
    assert seen["poller"][1] == "no poller has swept yet: run `chatlock poller`"
    assert seen["due"][1].startswith("a thread has been due for 2 min: ")
    assert seen["stuck"][1].startswith("1 turn is past its lease and not freed: ")
    assert seen["windows"] == (
        "warning",
        "healthy runs were reclaimed at their window in the last 7 days (crawler: 1 run, the longest took 60 s):"
        " see `chatlock windows backtest`",
    )
    text = fresh.run("doctor", tenant=None)
    assert text.exit_code == 1
    assert text.stderr == "Error: 4 checks failed\n"
    assert "s3cret" not in text.output


def test_old_tables_are_a_finding(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    result = CliRunner(env={"CHATLOCK_URL": database.url}).invoke(main, ["doctor"])
    assert result.exit_code == 1
    last = result.stdout.splitlines()[-1]
    assert last.startswith("failed   tables    the chatlock tables are at revision")
    assert last.endswith("run `chatlock db upgrade`")


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (doctor.judge_server(Server("postgresql", (15, 3), 2, None)), OK),
        (doctor.judge_server(Server("postgresql", (14, 9), 2, None)), FAILED),
        (doctor.judge_server(Server("sqlite", (3, 34, 1), 2, "wal")), FAILED),
        (doctor.judge_wal(Server("sqlite", (3, 44, 5), 2, "wal")), WARNING),
        (doctor.judge_wal(Server("sqlite", (3, 44, 6), 2, "wal")), OK),
        (doctor.judge_wal(Server("sqlite", (3, 45, 9), 2, "wal")), WARNING),
        (doctor.judge_wal(Server("sqlite", (3, 50, 6), 2, "wal")), WARNING),
        (doctor.judge_wal(Server("sqlite", (3, 50, 7), 2, "wal")), OK),
        (doctor.judge_wal(Server("sqlite", (3, 51, 2), 2, "wal")), WARNING),
        (doctor.judge_wal(Server("sqlite", (3, 51, 3), 2, "wal")), OK),
        (doctor.judge_wal(Server("sqlite", (3, 52, 0), 2, "delete")), FAILED),
        (doctor.judge_pooler(False, None), OK),
        (doctor.judge_pooler(True, "transaction"), OK),
        (doctor.judge_pooler(True, None), FAILED),
        (doctor.judge_clock(2_000), OK),
        (doctor.judge_clock(-2_001), WARNING),
        (doctor.judge_clock(2_001), WARNING),
        (doctor.judge_poller(1_000_000, Service(None, 820_000)), OK),
        (doctor.judge_poller(1_000_000, Service(None, 819_999)), FAILED),
        (doctor.judge_poller(1_000_000, Service(None, 0)), FAILED),
        (doctor.judge_due(1_000_000, Service(940_000, 0)), OK),
        (doctor.judge_due(1_000_000, Service(939_999, 0)), FAILED),
        (doctor.judge_due(1_000_000, Service(None, 0)), OK),
        (doctor.judge_stuck(0), OK),
        (doctor.judge_stuck(1), FAILED),
        (doctor.judge_windows([]), OK),
        (doctor.judge_windows([CutOff("a", 1, 5)]), WARNING),
        (doctor.judge_redis(None), OK),
        (doctor.judge_redis("no url at all"), FAILED),
        (doctor.judge_rq(None), OK),
        (doctor.judge_rq("2.10.0"), FAILED),
        (doctor.judge_rq("3.0.0"), OK),
    ],
)
def test_judgement(finding: Finding, level: Level) -> None:
    assert finding.level is level, finding
    assert finding.text

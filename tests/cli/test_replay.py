"""`chatlock replay`: of a file without a database, and of what a database recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from chatlock.cli import main
from chatlock.policies import POLICIES
from tests.support import ROOT

if TYPE_CHECKING:
    from tests.cli.scene import Scene

WITHOUT = {"CHATLOCK_URL": None, "CHATLOCK_TENANT": None}


def test_the_recorded_arrivals_are_replayed_under_every_policy() -> None:
    result = CliRunner(env=WITHOUT).invoke(main, ["replay", str(ROOT / "examples/data/arrivals.csv"), "--json"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["policy"] for line in lines] == list(POLICIES)
    for line in lines:
        told = sum(line[name] for name in ("answered", "superseded", "refused", "attached"))
        assert (line["messages"], told) == (10_627, 10_627)
        assert line["first_reply_p50_ms"] <= line["first_reply_p95_ms"]


def test_the_docs_show_what_it_prints() -> None:
    result = CliRunner(env=WITHOUT).invoke(main, ["replay", str(ROOT / "examples/data/arrivals.csv")])
    assert f"```text\n{result.stdout}```" in (ROOT / "docs/policies.md").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("who,offset_s\na,1\n", "need the columns thread and offset_s"),
        ("", "need the columns thread and offset_s"),
        ("thread,offset_s\na,1\na,soon\n", "line 3: offset_s is no number"),
        ("thread,offset_s\na,1\na\n", "line 3: offset_s is no number"),
        ("thread,offset_s\na,inf\n", "line 2: offset_s is no number"),
    ],
)
def test_a_file_that_is_none_of_arrivals_is_refused(text: str, said: str) -> None:
    result = CliRunner(env=WITHOUT).invoke(main, ["replay", "-"], input=text)
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_without_a_file_the_database_and_its_tenant_must_be_named(scene: Scene) -> None:
    alone = CliRunner(env=WITHOUT).invoke(main, ["replay"])
    assert (alone.exit_code, "ARRIVALS, or a database" in alone.output) == (2, True)
    result = scene.run("replay", tenant=None)
    assert (result.exit_code, "say whose threads" in result.output) == (2, True)


def test_a_turn_takes_as_long_as_the_one_that_answered_its_oldest_message(fresh: Scene) -> None:
    key = fresh.send("t", "m1")
    held = fresh.claim(key, "worker")
    fresh.clock.advance(4_000)
    fresh.send("t", "m2")
    fresh.clock.advance(1_000)
    fresh.answer(held, upto=1)
    (line,) = fresh.json("replay", "--policy", "enqueue", "--run-ms", "3000")
    # m1 is answered after its 5 s; m2, which has no turn yet, 1 s + 3 s after it came
    assert (line["turns"], line["first_reply_p50_ms"], line["first_reply_p95_ms"]) == (2, 4_000, 5_000)


def test_what_nobody_received_lately_is_no_line(fresh: Scene) -> None:
    assert fresh.json("replay") == []

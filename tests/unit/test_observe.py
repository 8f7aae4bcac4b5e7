"""What is counted, under which names, and in processes that follow each other."""

from __future__ import annotations

import ast
import os
import re
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from chatlock import Chatlock, InvalidInput
from chatlock.hooks import ClaimGranted, DeliveryEnded, SubmitEnded, TurnEnded, TurnReclaimed
from chatlock.inputs import Key
from chatlock.observe import prometheus, share_files_as
from chatlock.ops.base import Claim
from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = Key("secret-tenant", "secret-thread")
CLAIM = Claim(KEY, 1, 1, "claim", 0, "default", 10_000)
NOTICES = (
    SubmitEnded(KEY, "m1", "default", "answered", 2.0),
    ClaimGranted(CLAIM, "wait", 3.0),
    ClaimGranted(CLAIM, "rq", None),
    TurnEnded(CLAIM, "done", 4.0, 1),
    TurnEnded(CLAIM, "failed", 4.0, 1),
    TurnEnded(CLAIM, "lost", 4.0, 1),
    TurnReclaimed(KEY, 1, "window"),
    DeliveryEnded(KEY, 1, "default", 1, "retried"),
)


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample of the registry that is not zero, but for when counters began."""
    lines = (line.rsplit(" ", 1) for line in generate_latest(registry).decode().splitlines() if line[0] != "#")
    return {name: float(value) for name, value in lines if float(value) and "_created" not in name}


def test_notices_are_counted_by_name_and_never_by_thread(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with Chatlock(f"sqlite:///{tmp_path / 'x.db'}", poller=False) as chat:
        prometheus(chat, registry)
        prometheus(chat, registry)
        for notice in NOTICES:
            chat._flows.hooks.tell(notice)
    found = samples(registry)
    assert {name: value for name, value in found.items() if "_bucket" not in name} == {
        'chatlock_submits_total{outcome="answered"}': 1,
        'chatlock_claims_total{by="wait"}': 1,
        'chatlock_claims_total{by="rq"}': 1,
        "chatlock_wait_seconds_count": 1,
        "chatlock_wait_seconds_sum": 3,
        "chatlock_turn_seconds_count": 3,
        "chatlock_turn_seconds_sum": 12,
        "chatlock_failed_turns_total": 1,
        "chatlock_lost_turns_total": 1,
        'chatlock_reclaims_total{reason="window"}': 1,
        'chatlock_deliveries_total{how="retried"}': 1,
    }
    assert found['chatlock_turn_seconds_bucket{le="5.0"}'] == 3
    assert 'chatlock_turn_seconds_bucket{le="2.5"}' not in found
    assert not [name for name in found if "secret" in name]


def test_without_the_library_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with (
        Chatlock(f"sqlite:///{tmp_path / 'x.db'}", poller=False) as chat,
        pytest.raises(InvalidInput, match="its extra 'metrics'"),
    ):
        prometheus(chat)


def in_a_child(work: Callable[[], None]) -> None:
    """Runs it in a forked process that ends as a work-horse does: without any cleanup."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("shares", "files"), [(True, 1), (False, 3)])
def test_processes_that_follow_each_other_add_up_in_shared_files(tmp_path: Path, shares: bool, files: int) -> None:
    def worker() -> None:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(tmp_path)
        process_value: Any = values.MultiProcessValue
        values.ValueClass = process_value()  # as prometheus_client begins where the variable is set
        chat = Chatlock("sqlite:///unused.db", poller=False)
        prometheus(chat, CollectorRegistry())

        def horse() -> None:
            if shares:
                share_files_as(os.getppid())
            chat._flows.hooks.tell(TurnReclaimed(KEY, 1, "lease"))

        for _ in range(3):
            in_a_child(horse)

    in_a_child(worker)
    registry, collector = CollectorRegistry(), cast("Any", MultiProcessCollector)
    collector(registry, path=str(tmp_path))
    assert samples(registry) == {'chatlock_reclaims_total{reason="lease"}': 3}
    assert len(list(tmp_path.glob("counter_*.db"))) == files


def said() -> dict[str, tuple[set[str], set[str]]]:
    """What the product's code logs: the levels and fields of each event."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    named = CLAIM.named()
    for path in sorted((ROOT / "chatlock").rglob("*.py")):
        tree = ast.parse(path.read_text())
        kept = {}
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as value):
                    kept[name] = value
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.BinOp(left=ast.Call(func=ast.Attribute(attr="named")), right=ast.Dict() as value),
                ):
                    value.keys += [ast.Constant(key) for key in named]
                    kept[name] = value
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log"), attr=level),
                    args=[ast.Constant(value=text), *_] | [ast.Name(id="level"), ast.Constant(value=text), *_],
                ):
                    given = [word.value for word in node.keywords if word.arg == "extra"]
                    fields = [kept[value.id] if isinstance(value, ast.Name) else value for value in given]
                    for event in names_of(text):
                        levels, names = found.setdefault(event, (set(), set()))
                        levels |= {"log": {"warning", "error"}, "exception": {"error"}}.get(level, {level})
                        names |= {key.value for value in fields for key in value.keys}  # type: ignore[attr-defined]
    return found


def names_of(text: str) -> list[str]:
    """The events that a message names; the poller's two loops log in one place."""
    event = text.partition(":")[0]
    return [event.replace("%s", loop) for loop in ("sweep", "dispatch")] if "%s" in event else [event]


def test_every_log_event_is_documented_with_its_levels_and_fields() -> None:
    table = (ROOT / "docs" / "observing.md").read_text().split("| event | level | fields | means |\n| --- |")[1]
    documented = {}
    for row in table.split("\n\n")[0].splitlines()[1:]:
        events, levels, fields = (column for column in row.split("|")[1:4])
        for event in re.findall(r"`([\w.]+)`", events):
            assert event not in documented
            documented[event] = (set(levels.strip().split(", ")), set(re.findall(r"`(\w+)`", fields)))
    assert documented == said()

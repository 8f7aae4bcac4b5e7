"""What operators do by command: each act, its refusals, its exit code and the row it leaves."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from chatlock import Chatlock
from chatlock.console import Console
from chatlock.hooks import Hooks
from chatlock.inputs import Key
from chatlock.sweep import Sweep
from chatlock.testing.clock import MonotonicClock
from chatlock.window import Windows
from tests.cli.scene import LIMITS, Scene
from tests.conformance.rows import dispositions, dump, messages, table, thread_row, turns

T1 = Key("acme", "t1")
WHY = ("--reason", "looks wrong", "--actor", "olga")

pytestmark = pytest.mark.usefixtures("sound")


def acts(scene: Scene) -> list[tuple[str, int, str, str]]:
    return [(r["action"], r["token"], r["actor"], r["reason"]) for r in table(scene.database, "chatlock_audit")]


# -- free -----------------------------------------------------------------------------------------------------------
def test_a_live_turn_is_not_freed_without_force(fresh: Scene) -> None:
    fresh.claim(fresh.send("t1", "m1"), "worker-1")
    fresh.clock.advance(5_000)
    before = dump(fresh.database)
    result = fresh.run("threads", "free", "t1", "--turn", "1", *WHY)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: t1: refused (alive); turn 1 runs, held by worker-1 for 5 s\n"
    (refused,) = fresh.json("threads", "free", "t1", "--turn", "1", *WHY, code=1)
    assert (refused["done"], refused["reason"], refused["thread"]["owner"]) == (False, "alive", "worker-1")
    assert dump(fresh.database) == before


def test_a_live_turn_is_freed_by_force_and_can_commit_nothing_more(fresh: Scene) -> None:
    held = fresh.claim(fresh.send("t1", "m1"), "worker-1")
    fresh.send("t1", "m2")
    transcript = messages(fresh.database, "t1")
    (freed,) = fresh.json("threads", "free", "t1", "--turn", "1", "--force", *WHY)
    assert (freed["done"], freed["status"], freed["thread"]["token"], freed["thread"]["pending"]) == (
        True,
        "idle",
        2,
        2,
    )
    with pytest.raises(AssertionError):
        fresh.answer(held, upto=1)
    assert messages(fresh.database, "t1") == transcript
    assert [(t["state"], t["error"]) for t in turns(fresh.database, "t1")] == [("released", "freed")]
    assert thread_row(fresh.database, "t1")["attempts"] == 0
    assert acts(fresh) == [("free", 1, "olga", "looks wrong")]


def test_a_stale_turn_is_freed_and_charged_like_a_reclaim(fresh: Scene) -> None:
    held = fresh.claim(fresh.send("t1", "m1"), "worker-1")
    fresh.beat(held)
    fresh.clock.advance(60_000)
    result = fresh.run("threads", "free", "t1", "--turn", "1", *WHY)
    assert result.stdout == "freed turn 1 of t1; it is idle now, its token 2, 1 message pending\n"
    assert [t["state"] for t in turns(fresh.database, "t1")] == ["reclaimed"]
    assert thread_row(fresh.database, "t1")["attempts"] == 1
    again = fresh.run("threads", "free", "t1", "--turn", "1", *WHY)
    assert (again.exit_code, again.stderr) == (4, "Error: t1: refused (not running); no turn runs\n")
    assert acts(fresh) == [("free", 1, "olga", "looks wrong")]


def test_another_turn_than_the_one_that_was_seen_is_left_alone(fresh: Scene) -> None:
    fresh.answer(fresh.claim(fresh.send("t1", "m1"), "worker-1"), upto=1)
    fresh.claim(fresh.send("t1", "m2"), "worker-2")
    result = fresh.run("threads", "free", "t1", "--turn", "1", "--force", *WHY)
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == "Error: t1: refused (other turn); turn 2 runs, held by worker-2 for 0 ms\n"
    assert acts(fresh) == []


def test_an_idle_and_an_unknown_thread_are_told_apart(fresh: Scene) -> None:
    fresh.send("t1", "m1")
    idle = fresh.run("threads", "free", "t1", "--turn", "1", "--force", *WHY)
    unknown = fresh.run("threads", "free", "nowhere", "--turn", "1", "--force", *WHY)
    foreign = fresh.run("threads", "free", "t1", "--turn", "1", "--force", *WHY, tenant="beta")
    assert (idle.exit_code, unknown.exit_code, foreign.exit_code) == (4, 1, 1)
    assert unknown.stderr == "Error: there is no thread nowhere of this tenant\n"
    assert foreign.stderr == "Error: there is no thread t1 of this tenant\n"


@pytest.mark.parametrize("thread", ["two words", "-dash", "it's", "$(reboot)", "*", "\u202eevil", "ünï"])
def test_a_thread_whose_name_needs_quoting_is_freed(fresh: Scene, thread: str) -> None:
    fresh.claim(fresh.send(thread, "m1"), "worker-1")
    result = fresh.run("threads", "free", "--turn", "1", "--force", *WHY, "--", thread)
    assert result.exit_code == 0
    assert "\u202e" not in result.output
    assert thread_row(fresh.database, thread)["status"] == "idle"


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_dry_run_changes_nothing(fresh: Scene, force: tuple[str, ...]) -> None:
    fresh.claim(fresh.send("t1", "m1"), "worker-1")
    before = dump(fresh.database)
    result = fresh.run("threads", "free", "t1", "--turn", "1", *force, *WHY, "--dry-run")
    assert result.exit_code == (0 if force else 1)
    assert ("would free turn 1 of t1" in result.stdout) is bool(force)
    assert dump(fresh.database) == before


def test_of_two_operators_one_wins_and_the_other_is_told(fresh: Scene) -> None:
    fresh.claim(fresh.send("t1", "m1"), "worker-1")
    barrier, codes = threading.Barrier(2), []

    def operate(actor: str) -> None:
        console = Console(fresh.executor)
        barrier.wait(10)
        freed = console.free(T1, 1, force=True, actor=actor, reason="both saw it")
        codes.append((freed.receipt.done, freed.receipt.reason))

    operators = [threading.Thread(target=operate, args=(name,)) for name in ("olga", "pavel")]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join()
    assert sorted(codes) == [(False, "not_running"), (True, "freed")]
    assert len(acts(fresh)) == 1


# -- the reclaim after a crash --------------------------------------------------------------------------------------
@pytest.mark.parametrize("first", ["sweep", "command"])
def test_a_crashed_turn_is_freed_once_by_a_sweep_or_by_the_command(fresh: Scene, first: str) -> None:
    held = fresh.claim(fresh.send("t1", "m1"), "worker-1")
    fresh.beat(held)
    fresh.send("t1", "m2")
    monotonic = MonotonicClock()
    sweep = Sweep(
        fresh.executor, LIMITS, Windows(fresh.executor, LIMITS, "sweeper", heartbeat=True), Hooks(), monotonic
    )
    sweep.reclaim_stale()
    fresh.clock.advance(60_000)
    monotonic.advance(60_000)

    def free() -> int:
        return fresh.run("threads", "free", "t1", "--turn", "1", *WHY).exit_code

    if first == "sweep":
        assert (sweep.reclaim_stale(), free()) == (1, 4)
    else:
        assert (free(), sweep.reclaim_stale()) == (0, 0)
    row = thread_row(fresh.database, "t1")
    assert (row["status"], row["token"], row["attempts"]) == ("idle", 2, 1)
    fresh.clock.advance(60_000)
    retried = fresh.claim(T1, "worker-2")
    assert retried.token == 3
    fresh.answer(retried, upto=1)
    assert dispositions(fresh.database, "t1") == ["answered", "pending"]


# -- park, resume, cancel, drop ------------------------------------------------------------------------------------
def test_park_and_resume(fresh: Scene) -> None:
    fresh.send("t1", "m1")
    parked = fresh.run("threads", "park", "t1", *WHY)
    assert (parked.exit_code, parked.stdout) == (0, "parked t1\n")
    assert fresh.json("threads", "ls", "--status", "parked")[0]["thread"] == "t1"
    assert fresh.json("threads", "resume", "t1", *WHY) == [
        {"schema_version": 1, "done": True, "reason": "resumed", "status": "idle"}
    ]
    again = fresh.run("threads", "resume", "t1", *WHY)
    assert (again.exit_code, again.stderr) == (4, "Error: t1: refused (not parked); it is not parked\n")
    assert [action for action, *_ in acts(fresh)] == ["park", "resume"]


def test_a_running_thread_is_parked_only_by_its_turn(fresh: Scene) -> None:
    held = fresh.claim(fresh.send("t1", "m1"), "worker-1")
    unnamed = fresh.run("threads", "park", "t1", *WHY)
    assert (unnamed.exit_code, unnamed.stderr) == (
        1,
        "Error: t1: refused (running); a turn runs: name it with --turn\n",
    )
    assert fresh.run("threads", "park", "t1", "--turn", "9", *WHY).exit_code == 4
    assert fresh.run("threads", "park", "t1", "--turn", "1", *WHY).exit_code == 0
    with pytest.raises(AssertionError):
        fresh.answer(held, upto=1)
    assert fresh.run("threads", "park", "nowhere", *WHY).exit_code == 1


def test_cancel_resolves_a_pending_message_and_no_other(fresh: Scene) -> None:
    fresh.claim(fresh.send("t1", "m1"), "worker-1")
    fresh.send("t1", "m2")
    assert fresh.run("cancel", "t1", "m2").stdout == "cancelled m2\n"
    in_turn = fresh.run("cancel", "t1", "m1")
    assert (in_turn.exit_code, in_turn.output) == (1, "Error: m1 is not cancelled: in turn\n")
    assert fresh.json("cancel", "t1", "m9", code=1) == [
        {"schema_version": 1, "message_id": "m9", "seq": None, "outcome": "NotFound", "done": False}
    ]
    assert dispositions(fresh.database, "t1") == ["pending", "cancelled"]


def test_cancel_asks_the_named_turn_to_stop_and_no_other(fresh: Scene) -> None:
    held = fresh.claim(fresh.send("t1", "m1"), "worker-1")
    fresh.send("t1", "m2")
    asked = fresh.run("cancel", "t1", "--turn", "1", "--queued", "cancel")
    assert asked.stdout == "asked turn 1 of t1 to stop; it has 1 message, 1 waits (cancel)\n"
    assert dispositions(fresh.database, "t1") == ["pending", "cancelled"]
    (again,) = fresh.json("cancel", "t1", "--turn", "1")
    assert (again["done"], again["queued"], again["held"], again["waiting"]) == (True, "keep", ["m1"], [])
    other = fresh.run("cancel", "t1", "--turn", "2")
    assert (other.exit_code, other.stderr) == (4, "Error: t1: refused (other turn)\n")
    fresh.answer(held, upto=1)
    (late,) = fresh.json("cancel", "t1", "--turn", "1", code=4)
    assert (late["done"], late["reason"]) == (False, "not_running")
    for arguments in ((), ("m1", "--turn", "1"), ("m1", "--queued", "keep")):
        assert fresh.run("cancel", "t1", *arguments).exit_code == 2


def test_drop_names_what_it_could_not_drop(fresh: Scene) -> None:
    fresh.claim(fresh.send("t1", "m1"), "worker-1")
    fresh.send("t1", "m2", "m3", "m4")
    some = fresh.run("inbox", "drop", "t1", "m2", "m1")
    assert some.stdout == "m2 is dropped\nm1 is not dropped: in_turn\n"
    assert (some.exit_code, some.stderr) == (1, "Error: 1 of 2 messages not dropped\n")
    rest = fresh.run("inbox", "drop", "t1", "--all", "--yes")
    assert rest.stdout == "m1 is not dropped: in_turn\nm3 is dropped\nm4 is dropped\n"
    assert dispositions(fresh.database, "t1") == ["pending", "cancelled", "cancelled", "cancelled"]


# -- dead messages and intents -------------------------------------------------------------------------------------
def make_dead(scene: Scene, thread: str, *ids: str, tenant: str = "acme") -> None:
    for message_id in ids:
        held = scene.claim(scene.send(thread, message_id, tenant=tenant), "worker-1")
        scene.fail(held, "ValueError", attempts_max=1)


def test_redrive_sends_a_dead_message_once(fresh: Scene) -> None:
    make_dead(fresh, "t1", "m1")
    first = fresh.run("dead", "redrive", "t1", "m1")
    assert (first.exit_code, first.stdout) == (0, "m1 is sent again\n")
    assert fresh.json("dead", "redrive", "t1", "m1")[0]["outcome"] == "Queued"
    assert [m["redrive_of"] for m in messages(fresh.database, "t1")] == [None, "m1"]
    fresh.answer(fresh.claim(T1, "worker-2"), upto=2)
    assert fresh.json("dead", "redrive", "t1", "m1")[0]["outcome"] == "AlreadyAnswered"
    assert fresh.run("dead", "redrive", "t1", "m9").exit_code == 1


def test_redrive_of_all_takes_the_tenant_s_or_the_thread_s(fresh: Scene) -> None:
    make_dead(fresh, "t1", "m1", "m2")
    make_dead(fresh, "t2", "m1")
    make_dead(fresh, "t3", "m1", tenant="beta")
    assert len(fresh.json("dead", "redrive", "t1", "--all", "--yes")) == 2
    assert len(fresh.json("dead", "redrive", "--all", "--yes")) == 3
    pending = [line["thread"] for line in fresh.json("inbox", "ls", "--all-tenants")]
    assert pending == ["t1", "t1", "t2"]


def test_purge_forgets_old_payloads_of_dead_messages_only(fresh: Scene) -> None:
    make_dead(fresh, "t1", "m1")
    make_dead(fresh, "t3", "m1", tenant="beta")
    fresh.clock.advance(10_000)
    make_dead(fresh, "t1", "m2")
    fresh.answer(fresh.claim(fresh.send("t1", "m3"), "worker-1"), upto=3)
    assert fresh.json("dead", "purge", "--older", "5s", "--yes") == [{"schema_version": 1, "purged": 1}]
    assert [m["payload"] for m in messages(fresh.database, "t1")] == [None, '"hello"', '"hello"']
    assert messages(fresh.database, "t3")[0]["payload"] == '"hello"'
    assert fresh.json("dead", "purge", "--older", "5s", "--yes") == [{"schema_version": 1, "purged": 0}]
    purged = fresh.run("dead", "redrive", "t1", "m1")
    assert (purged.exit_code, purged.stdout) == (1, "m1 is not sent again: purged\n")


def test_purge_of_the_database_forgets_what_is_old(fresh: Scene) -> None:
    fresh.answer(fresh.claim(fresh.send("t1", "m1"), "worker-1"), upto=1)
    fresh.clock.advance(10_000)
    fresh.answer(fresh.claim(fresh.send("t1", "m2"), "worker-2"), upto=2)
    assert fresh.json("db", "purge", "--older", "5s", "--yes") == [{"schema_version": 1, "changed": 2}]
    assert [m["payload"] for m in messages(fresh.database, "t1")] == [None, '"hello"']
    assert fresh.run("db", "purge", "--older", "5s").exit_code == 2


def test_retry_puts_a_failed_intent_back_and_no_other(fresh: Scene) -> None:
    fresh.answer(fresh.claim(fresh.send("t1", "m1"), "worker-1"), upto=1, deliver=True)
    command = ("intents", "retry", "t1", "--turn", "1", *WHY)
    pending = fresh.run(*command)
    assert (pending.exit_code, pending.stderr) == (4, "Error: reply of turn 1 is not failed: it is pending\n")
    fresh.execute("UPDATE chatlock_intents SET state = 'failed', ended_at = 1, error = 'x', attempts = 8")
    assert fresh.run(*command).stdout == "reply of turn 1 is pending again\n"
    (intent,) = fresh.json("intents", "ls", "t1")
    assert (intent["state"], intent["attempts"]) == ("pending", 0)
    assert acts(fresh) == [("retry_intent", 1, "olga", "looks wrong")]
    for arguments in (("t1", "--turn", "2"), ("t1", "--turn", "1", "--name", "mail"), ("nowhere", "--turn", "1")):
        assert fresh.run("intents", "retry", *arguments, *WHY).exit_code == 1


# -- whose ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "command",
    [
        ("threads", "show", "shared"),
        ("threads", "free", "shared", "--turn", "1", "--force", *WHY),
        ("threads", "park", "shared", "--turn", "1", *WHY),
        ("threads", "resume", "shared", *WHY),
        ("why", "shared"),
        ("cancel", "shared", "m1"),
        ("answer", "shared", "--question", "q", "--decision", "yes"),
        ("inbox", "show", "shared", "m1"),
        ("inbox", "drop", "shared", "m1"),
        ("dead", "show", "shared", "m1"),
        ("dead", "redrive", "shared", "m1"),
        ("intents", "show", "shared", "--turn", "1"),
        ("intents", "retry", "shared", "--turn", "1", *WHY),
    ],
)
def test_another_tenant_s_thread_is_as_one_that_never_was(fresh: Scene, command: tuple[str, ...]) -> None:
    fresh.claim(fresh.send("shared", "m1"), "worker-1")
    before = dump(fresh.database)
    foreign = fresh.run(*command, tenant="beta")
    unknown = fresh.run(*(part.replace("shared", "nowhere") for part in command), tenant="beta")
    assert foreign.exit_code == unknown.exit_code == 1
    assert foreign.output.replace("shared", "nowhere") == unknown.output
    assert dump(fresh.database) == before


@pytest.mark.parametrize("command", ["threads ls", "inbox ls", "dead ls", "turns ls", "intents ls", "audit"])
def test_lists_show_one_tenant_unless_all_are_asked_for(fresh: Scene, command: str) -> None:
    for tenant in ("acme", "beta"):
        fresh.answer(fresh.claim(fresh.send("t1", "m1", tenant=tenant), "w"), upto=1, deliver=True)
        make_dead(fresh, "t2", "m1", tenant=tenant)
        fresh.park(fresh.send("t3", "m1", tenant=tenant), "why not")
    own = fresh.json(*command.split())
    both = fresh.json(*command.split(), "--all-tenants")
    assert own
    assert {line["tenant"] for line in own} == {"acme"}
    assert {line["tenant"] for line in both} == {"acme", "beta"}
    assert len(both) == 2 * len(own)


def test_a_list_that_was_cut_says_how_to_go_on(fresh: Scene) -> None:
    for thread in ("a", "b c", "d"):
        fresh.send(thread, "m1")
    first = fresh.run("threads", "ls", "--limit", "2")
    assert first.stderr == "there may be more: add --after 'b c'\n"
    rest = fresh.run("threads", "ls", "--limit", "2", "--after", "b c")
    assert (rest.stderr, [line.split()[0] for line in rest.stdout.splitlines()[1:]]) == ("", ["d"])


def test_the_same_id_of_two_tenants_is_two_messages(fresh: Scene) -> None:
    for tenant in ("acme", "beta"):
        fresh.send("shared", "m1", tenant=tenant)
    assert fresh.run("cancel", "shared", "m1", tenant="beta").exit_code == 0
    assert fresh.json("inbox", "show", "shared", "m1")[0]["disposition"] == "pending"


@pytest.mark.parametrize(
    "scoped", [("threads", "ls"), ("why", "t1"), ("threads", "ls", "--tenant", "a", "--all-tenants")]
)
def test_without_a_tenant_or_with_two_answers_it_is_misuse(fresh: Scene, scoped: tuple[str, ...]) -> None:
    result = fresh.run(*scoped, tenant=None)
    assert result.exit_code == 2
    assert "tenant" in result.stderr


def test_a_client_sees_what_the_operator_did(fresh: Scene) -> None:
    fresh.send("t1", "m1")
    fresh.run("threads", "park", "t1", *WHY)
    with Chatlock(fresh.database.url, tenant="acme", poller=False) as chat:
        outcome: Any = chat.status("t1", "m1")
    assert type(outcome).__name__ == "Parked"


def test_promote_puts_a_thread_among_the_first(fresh: Scene) -> None:
    key = fresh.send("t", "m1")
    for name in ("chatlock_threads", "chatlock_due"):
        fresh.execute(f"UPDATE {name} SET priority = 20")
    result = fresh.run("inbox", "promote", "t")
    assert (result.exit_code, result.stdout) == (0, "t is among the first\n")
    assert [row["priority"] for row in table(fresh.database, "chatlock_due")] == [0]
    fresh.answer(fresh.claim(key, "worker"), upto=1)
    refused = fresh.run("inbox", "promote", "t")
    assert (refused.exit_code, refused.output) == (1, "Error: t: refused (nothing pending)\n")

"""`chatlock verify`: each invariant, broken by hand, is named, in the whole store and in what moved lately."""

from __future__ import annotations

import pytest

from chatlock.ops.verify import CHECKS
from tests.cli.scene import Scene

THREADS, TURNS, MESSAGES = "chatlock_threads", "chatlock_turns", "chatlock_messages"
BREAKS = {
    "S.one_running_turn": f"UPDATE {TURNS} SET state = 'released', ended_at = started_at WHERE thread_id = 'running'",
    "S.turn_without_claim": f"UPDATE {THREADS} SET status = 'idle', claim_id = NULL, expires_at = NULL,"
    " window_ends_at = NULL WHERE thread_id = 'running'",
    "S.stop": f"UPDATE {THREADS} SET cancel_token = token WHERE thread_id = 'running'",
    "T.token": f"UPDATE {THREADS} SET token = 1 WHERE thread_id = 'answered'",
    "T.order": f"UPDATE {TURNS} SET token = 0 WHERE thread_id = 'answered' AND token = 2",
    "R.tiles": f"UPDATE {TURNS} SET to_seq = 2 WHERE thread_id = 'answered' AND token = 1",
    "R.pending_below": f"UPDATE {MESSAGES} SET disposition = 'pending', turn_token = NULL"
    " WHERE thread_id = 'answered' AND seq = 1",
    "R.answered": f"UPDATE {MESSAGES} SET turn_token = 2 WHERE thread_id = 'answered' AND seq = 1",
    "R.superseded_by": f"UPDATE {MESSAGES} SET superseded_by = 2 WHERE thread_id = 'answered' AND seq = 1",
    "R.empty_turn": f"UPDATE {MESSAGES} SET disposition = 'cancelled', turn_token = NULL"
    " WHERE thread_id = 'answered' AND seq = 1",
    "R.each_seq_once": f"DELETE FROM {MESSAGES} WHERE thread_id = 'answered' AND seq = 1",
    "H.head_pending": f"UPDATE {MESSAGES} SET disposition = 'cancelled' WHERE thread_id = 'waiting' AND seq = 1",
    "H.holes": f"UPDATE {THREADS} SET holes = 1 WHERE thread_id = 'waiting'",
    "D.due": "UPDATE chatlock_due SET due_at = due_at + 100000 WHERE thread_id = 'waiting'",
    "D.class": "UPDATE chatlock_due SET priority = priority + 1 WHERE thread_id = 'waiting'",
    "A.held": f"UPDATE {THREADS} SET awaiting = 'q', awaiting_rule = 'hold' WHERE thread_id = 'running'",
    "A.asked": f"UPDATE {THREADS} SET awaiting = 'q' WHERE thread_id = 'waiting'",
}


def populate(scene: Scene) -> None:
    for message_id in ("m1", "m2"):
        held = scene.claim(scene.send("answered", message_id), f"worker-{message_id}")
        scene.answer(held, upto=held.from_seq + 1)
    scene.claim(scene.send("running", "m1"), "worker-1")
    scene.send("waiting", "m1", "m2")


def test_each_check_has_a_breach_here() -> None:
    assert BREAKS.keys() == CHECKS.keys()


@pytest.mark.parametrize("invariant", BREAKS)
def test_a_breach_is_named(fresh: Scene, invariant: str) -> None:
    populate(fresh)
    fresh.execute(BREAKS[invariant])
    for since in ([], ["--since", "1h"]):
        (verified,) = fresh.json("verify", *since, code=1)
        assert verified["ok"] is False
        named = {(breach["invariant"], breach["tenant"], breach["text"]) for breach in verified["breaches"]}
        assert (invariant, "acme", CHECKS[invariant].text) in named


def test_a_breach_in_words(fresh: Scene) -> None:
    populate(fresh)
    fresh.execute(BREAKS["D.due"])
    result = fresh.run("verify", "--all-tenants", tenant=None)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[2:] == [
        "TENANT  THREAD   INVARIANT  IS BROKEN",
        "acme    waiting  D.due      an idle thread with pending messages has a due row no later than it may start",
    ]
    assert result.stderr.splitlines()[-1] == "Error: 1 breach"


def test_it_is_bounded_by_tenant_and_since(fresh: Scene) -> None:
    populate(fresh)
    fresh.execute(BREAKS["R.answered"])
    assert fresh.json("verify", tenant="beta") == [
        {"schema_version": 1, "ok": True, "messages": {}, "turns": {}, "breaches": []}
    ]
    fresh.clock.advance(3_600_000)
    assert fresh.json("verify", "--since", "1m")[0]["ok"] is True
    assert fresh.json("verify", code=1)[0]["ok"] is False


def test_progress_is_for_whoever_watches(fresh: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fresh.run("verify", "--json").stderr == ""
    monkeypatch.setattr("chatlock.cli.output._watched", lambda: True)
    result = fresh.run("verify", "--json")
    assert result.stderr.splitlines() == [f"{done} of {len(CHECKS)} checks" for done in range(1, len(CHECKS) + 1)]
    assert result.stdout.count("\n") == 1

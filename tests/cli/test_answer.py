"""`chatlock answer`: a decision is taken once, and only by the question that was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chatlock.inputs import Key
from chatlock.ops.finish import Question
from tests.conformance.rows import dump, messages

if TYPE_CHECKING:
    from tests.cli.scene import Scene

pytestmark = pytest.mark.usefixtures("sound")


def ask(scene: Scene, thread: str = "t1") -> Key:
    """A turn ended with the question "q"."""
    key = scene.send(thread, "m1")
    scene.answer(scene.claim(key, "worker-1"), upto=1, reply="book it?", question=Question("q", "hold"))
    return key


def decide(scene: Scene, decision: str, thread: str = "t1", question: str = "q") -> tuple[int, str]:
    result = scene.run("answer", thread, "--question", question, "--decision", decision)
    return result.exit_code, result.output


def test_a_decision_is_taken_once(fresh: Scene) -> None:
    key = ask(fresh)
    taken = (0, "question q of t1 is answered: the next turn takes the decision\n")
    assert decide(fresh, "yes") == decide(fresh, "yes") == taken
    assert decide(fresh, "no") == (4, "Error: question q has another decision\n")
    held = fresh.claim(key, "worker-2")
    assert decide(fresh, "yes") == (0, "question q of t1 is answered: turn 2 has the decision\n")
    fresh.answer(held, upto=2)
    assert decide(fresh, "yes") == (0, "question q of t1 is answered: turn 2 took the decision\n")
    assert [(m["message_id"], m["payload"]) for m in messages(fresh.database, "t1")] == [
        ("m1", '"hello"'),
        ("q", '"yes"'),
    ]


def test_a_decision_on_no_open_question_is_refused_and_nothing_is_stored(fresh: Scene) -> None:
    ask(fresh)
    fresh.send("t2", "m1")
    before = dump(fresh.database)
    assert decide(fresh, "yes", question="other") == (4, "Error: question other: refused (other question)\n")
    assert decide(fresh, "yes", "t2") == (4, "Error: question q: refused (not awaiting)\n")
    (refused,) = fresh.json("answer", "t2", "--question", "q", "--decision", "yes", code=4)
    assert (refused["outcome"], refused["done"]) == ("Refused", False)
    for decision in ((), ("--decision", "yes", "--decision-json", "1"), ("--decision-json", "{yes}")):
        assert fresh.run("answer", "t1", "--question", "q", *decision).exit_code == 2
    assert dump(fresh.database) == before
    fresh.delete(Key("acme", "t1"))
    assert decide(fresh, "yes") == (1, "Error: thread t1 is deleted\n")


def test_a_decision_may_be_any_json_and_a_parked_thread_keeps_it(fresh: Scene) -> None:
    fresh.park(ask(fresh), "looks wrong")
    decided = fresh.run("answer", "t1", "--question", "q", "--decision-json", '{"approved": true}')
    assert (
        decided.stdout == "question q of t1 is answered: the thread is parked, and its next turn takes the decision\n"
    )
    assert messages(fresh.database, "t1")[1]["payload"] == '{"approved":true}'
    assert fresh.run("cancel", "t1", "q").exit_code == 0
    assert decide(fresh, "yes") == (4, "Error: question q has another decision\n")
    again = fresh.run("answer", "t1", "--question", "q", "--decision-json", '{"approved": true}')
    assert (again.exit_code, again.output) == (1, "Error: the decision of question q is cancelled\n")

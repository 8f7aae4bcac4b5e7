"""Every (status, event) pair of the protocol, through its real operation; an illegal one changes no row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.engine import Connection

from chatlock.errors import ClaimLost
from chatlock.executor import Executor
from chatlock.inputs import Key, new_id, payload_json
from chatlock.ops import edit, fence, fetch, operate, stop, unanswered
from chatlock.ops.audit import Act
from chatlock.ops.base import Claim, run
from chatlock.ops.claim import Request, claim_for
from chatlock.ops.finish import Finish, Question, finish
from chatlock.ops.heartbeat import heartbeat
from chatlock.ops.hot import hot_finish
from chatlock.ops.submit import RECREATE, Submission, submit
from chatlock.policies import PRIORITIES, Backlog, Interrupt
from chatlock.protocol import TRANSITIONS, Event, Limits, Status, Transition, conformance_cases
from tests.conformance import rows
from tests.support.databases import KINDS, Database

KEY = Key("t", "c1")
LIMITS = Limits()
ACT = Act("test", "tester", "a reason")
RAISING = (Event.FETCH, Event.FENCE, Event.SESSION)
"""What is refused by an exception, because its caller would else go on."""
ONCE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""For what no SQL decides."""
ILLEGAL = [(source, event) for source, event, targets in conformance_cases() if not targets]


def submission(message_id: str, **options: Any) -> Submission:
    text, text_hash = payload_json(message_id)
    return Submission(KEY, message_id, text, text_hash, "default", priority=PRIORITIES["background"], **options)


def request() -> Request:
    return Request(new_id(), "tester", 10_000, 60_000, LIMITS)


class Subject:
    """One thread, brought into a status and put to an event through the executor."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.executor = Executor(database.url, pool_size=2, pooler=None)

    def do(self, op: Callable[[Connection], Any]) -> Any:
        return self.executor.transaction("test", op)

    @property
    def status(self) -> Status:
        found = rows.table(self.database, "chatlock_threads")
        return Status(found[0]["status"]) if found else Status.ABSENT

    def claim(self) -> Claim:
        """The claim that the row is under, or would be: only its status can tell it from a live one."""
        found = rows.table(self.database, "chatlock_threads")
        row = found[0] if found else {"incarnation": 1, "token": 1, "claim_id": None, "done_seq": 0}
        return Claim(
            key=KEY,
            incarnation=row["incarnation"],
            token=row["token"],
            claim_id=row["claim_id"] or new_id(),
            from_seq=row["done_seq"],
            agent="default",
            lease_ms=10_000,
        )

    def bring(self, status: Status) -> None:
        """Two pending messages in every status that can have them; a running turn holds the first."""
        if status is Status.ABSENT:
            return
        self.do(lambda c: submit(c, submission("m1"), request() if status is Status.RUNNING else None, LIMITS))
        self.do(lambda c: submit(c, submission("m2"), None, LIMITS))
        if status is Status.PARKED:
            self.do(lambda c: operate.park(c, KEY, None, ACT))
        if status is Status.DELETED:
            self.do(lambda c: operate.delete(c, KEY, ACT))
        assert self.status is status

    def stop(self, queued: Backlog) -> Any:
        token = self.claim().token
        return self.do(lambda c: stop.stop(c, KEY, token, queued, grace_ms=60_000, backoff_max_ms=60_000))

    def apply(self, event: Event, limits: Limits = LIMITS) -> Any:
        """The event, through its operation, with every argument right for the row as it is."""
        claim = self.claim()
        token = claim.token
        match event:
            case Event.SUBMIT:
                return self.do(lambda c: submit(c, submission("m3"), None, limits))
            case Event.RECREATE:
                return self.do(lambda c: run(c, RECREATE, KEY, incarnation=claim.incarnation))
            case Event.CLAIM:
                return self.do(lambda c: claim_for(c, KEY, request(), claim.incarnation, 2))
            case Event.FETCH:
                return self.do(lambda c: fetch.fetch(c, claim, claim.from_seq, limits))
            case Event.HEARTBEAT:
                return self.executor.beat(lambda c: heartbeat(c, claim)).beat == "extended"
            case Event.FENCE:
                return self.do(lambda c: fence.fence(c, claim))
            case Event.SESSION:
                return self.do(lambda c: fence.keep_session(c, claim, "provider", "s1"))
            case Event.FINISH:
                return self.do(lambda c: finish(c, Finish(claim, claim.from_seq + 1, 1, '"reply"')))
            case Event.SUSPEND:
                asked = Question("q1", "hold")
                return self.do(lambda c: finish(c, Finish(claim, claim.from_seq + 1, 1, '"ask"', question=asked)))
            case Event.HAND_OFF:
                return self.do(lambda c: finish(c, Finish(claim, claim.from_seq + 1, 1, '"reply"'), request()))
            case Event.FAIL:
                return self.do(lambda c: unanswered.fail(c, claim, held=0, error="Wrong", limits=limits, jitter=0.5))
            case Event.RELEASE:
                return self.do(lambda c: unanswered.release(c, KEY, claim.claim_id))
            case Event.RECLAIM:
                rows.pass_lease(self.database)
                seen = unanswered.Observed(KEY, token, 0, stale=True)
                return self.do(lambda c: unanswered.reclaim(c, seen, limits, 0.5))
            case Event.FREE:
                return self.do(
                    lambda c: unanswered.free(c, KEY, token, ACT, force=limits is LIMITS, limits=limits, jitter=0.5)
                )
            case Event.CANCEL:
                return self.do(lambda c: operate.cancel(c, KEY, "m2", 60_000))
            case Event.ANSWER:
                answer = replace(submission("q1"), if_awaiting="q1")
                return self.do(lambda c: submit(c, answer, None, limits))
            case Event.EDIT:
                text, text_hash = payload_json("edited")
                what = edit.Edit("m2", "e2", text, text_hash)
                return self.do(lambda c: edit.edit(c, KEY, what, limits))
            case Event.INTERRUPT:
                what = submission("m3", policy="interrupt", interrupt=Interrupt(), if_turn=token)
                return self.do(lambda c: submit(c, what, None, limits))
            case Event.ROLLBACK:
                what = submission("m3", policy="rollback", if_turn=token)
                return self.do(lambda c: submit(c, what, None, limits))
            case Event.STOP:
                return self.stop("keep")
            case Event.FORCE:
                rows.pass_grace(self.database)
                seen = unanswered.Observed(KEY, token, 0, stale=False, overdue=True)
                return self.do(lambda c: stop.force(c, seen))
            case Event.PROMOTE:
                return self.do(lambda c: operate.promote(c, KEY, 60_000))
            case Event.PARK:
                return self.do(lambda c: operate.park(c, KEY, token, ACT))
            case Event.RESUME:
                return self.do(lambda c: operate.resume(c, KEY, ACT))
            case Event.DELETE:
                return self.do(lambda c: operate.delete(c, KEY, ACT))


@pytest.fixture
def subject(database: Database) -> Iterator[Subject]:
    made = Subject(database)
    yield made
    made.executor.close()


def name_of(case: Any) -> str:
    return "-".join(str(part) for part in case if isinstance(part, Status | Event))


@pytest.mark.parametrize("edge", TRANSITIONS, ids=name_of)
def test_legal_event_takes_the_thread_to_its_target(subject: Subject, edge: Transition) -> None:
    subject.bring(edge.source)
    if (edge.event, edge.target) == (Event.CLAIM, Status.IDLE):
        rows.expire_all(subject.database)
    if edge.event is Event.ANSWER:
        rows.open_question(subject.database)
    stopped = edge.target is Status.PARKED and edge.event in (Event.FINISH, Event.RELEASE, Event.FORCE)
    if stopped or edge.event is Event.FORCE:
        subject.stop("park" if stopped else "keep")
    before = rows.dump(subject.database)
    charged = edge.target is Status.PARKED and not stopped and edge.event is not Event.PARK
    if charged and edge.event is Event.FREE:
        rows.pass_lease(subject.database)
    subject.apply(edge.event, Limits(stalls_max=1) if charged else LIMITS)
    assert subject.status is edge.target
    if edge.event is not Event.FENCE:  # it holds a lock, and leaves no trace
        assert rows.dump(subject.database) != before


@pytest.mark.parametrize("case", ILLEGAL, ids=name_of)
def test_illegal_event_changes_no_row(subject: Subject, case: tuple[Status, Event]) -> None:
    source, event = case
    subject.bring(source)
    before = rows.dump(subject.database)
    with pytest.raises(ClaimLost) if event in RAISING else nullcontext():
        subject.apply(event)
    assert rows.dump(subject.database) == before


OF_A_CLAIM = [
    Event.FETCH, Event.HEARTBEAT, Event.FENCE, Event.SESSION, Event.FINISH, Event.SUSPEND, Event.HAND_OFF,
    Event.FAIL,
]  # fmt: skip
NAMED = [Event.RECLAIM, Event.FREE, Event.PARK, Event.STOP, Event.FORCE, Event.INTERRUPT, Event.ROLLBACK]
STALE = [(event, "token") for event in [*OF_A_CLAIM, Event.RELEASE, *NAMED]]
STALE += [(event, "incarnation") for event in OF_A_CLAIM]


@pytest.mark.parametrize(("event", "stale"), STALE)
def test_event_under_a_stale_claim_changes_no_row(
    subject: Subject, event: Event, stale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject.bring(Status.RUNNING)
    held = subject.claim()
    old = {"claim_id": new_id(), stale: getattr(held, stale) - 1}
    monkeypatch.setattr(Subject, "claim", lambda self: replace(held, **old))
    if event is Event.RECLAIM:
        rows.pass_lease(subject.database)
    if event is Event.FORCE:
        rows.pass_grace(subject.database)
    before = rows.dump(subject.database)
    with pytest.raises(ClaimLost) if event in RAISING else nullcontext():
        subject.apply(event)
    assert rows.dump(subject.database) == before


@pytest.fixture(params=["hot", "locked"])
def finished(request: pytest.FixtureRequest, subject: Subject) -> Callable[[Finish], Any]:
    """Finishes by the hot statement or by the locked operation."""

    def hot(what: Finish) -> Any:
        return subject.executor.hot("test", lambda cursor: hot_finish(cursor, what))

    def locked(what: Finish) -> Any:
        return subject.do(lambda c: finish(c, what))

    return hot if request.param == "hot" else locked


@pytest.mark.parametrize(
    "wrong",
    [{"upto": 2, "held": 2}, {"upto": 0, "held": 0}, {"held": 2}, {"held": 0}, {"from_seq": 1, "upto": 2}],
    ids=["more than fetched", "nothing", "more than there is", "less than there is", "another place"],
)
def test_finish_of_other_messages_than_it_holds_changes_no_row(
    subject: Subject, finished: Callable[[Finish], Any], wrong: dict[str, int]
) -> None:
    subject.bring(Status.RUNNING)
    before = rows.dump(subject.database)
    claim = replace(subject.claim(), from_seq=wrong.get("from_seq", 0))
    what = Finish(claim, wrong.get("upto", 1), wrong.get("held", 1), '"reply"')
    with suppress(AssertionError):  # the locked operation is sure of what it holds
        finished(what)
    assert rows.dump(subject.database) == before


@pytest.mark.parametrize("database", KINDS, indirect=True)  # the hot statement refuses a session's other isolation
def test_finish_of_what_it_holds_ends_the_turn(subject: Subject, finished: Callable[[Finish], Any]) -> None:
    subject.bring(Status.RUNNING)
    assert finished(Finish(subject.claim(), 1, 1, '"reply"')).left
    assert subject.status is Status.IDLE
    assert len(rows.table(subject.database, "chatlock_due")) == 1  # for the message that came meanwhile


def test_repeated_hand_off_finds_the_claim_that_it_has(subject: Subject) -> None:
    """As after a lost acknowledgement: the next turn is this client's, and nobody else would run it."""
    subject.bring(Status.RUNNING)
    what, asked = Finish(subject.claim(), 1, 1, '"reply"'), request()
    first, again = (subject.do(lambda c: finish(c, what, asked)) for _ in range(2))
    assert (first.left, again.left) == (True, True)
    assert again.granted.claim == first.granted.claim


@ONCE
def test_repeated_submit_finds_the_claim_that_it_has_and_no_others(subject: Subject) -> None:
    what, asked = submission("m1"), request()
    first, again = (subject.do(lambda c: submit(c, what, asked, LIMITS)) for _ in range(2))
    assert again.granted.claim == first.granted.claim
    assert subject.do(lambda c: submit(c, what, request(), LIMITS)).granted is None


@ONCE
@pytest.mark.parametrize("end", ["failed", "gave up", "stopped"])
def test_repeated_failure_finds_its_own_end(subject: Subject, end: str) -> None:
    """As after a lost acknowledgement: the turn is not lost, and nothing is charged twice."""
    subject.bring(Status.RUNNING)
    claim, limits = subject.claim(), Limits(attempts_max=1) if end == "gave up" else LIMITS
    if end == "stopped":
        subject.stop("keep")

    def fails() -> Any:
        return subject.do(lambda c: unanswered.fail(c, claim, held=1, error="Wrong", limits=limits, jitter=0.5))

    assert fails().left
    before = rows.dump(subject.database)
    assert fails().left
    assert rows.dump(subject.database) == before


@ONCE
def test_oldest_message_is_its_turns_before_it_is_fetched(subject: Subject) -> None:
    """After a failure the claim comes without messages, and the oldest is promised to it all the same."""
    subject.bring(Status.RUNNING)
    subject.apply(Event.FAIL)
    rows.pass_backoff(subject.database)
    assert subject.do(lambda c: claim_for(c, KEY, request(), 1, 1)).messages == ()
    before = rows.dump(subject.database)
    assert subject.do(lambda c: operate.cancel(c, KEY, "m1", 60_000)).reason == "in_turn"
    assert rows.dump(subject.database) == before


@pytest.mark.parametrize("changed", ["beat", "token", "lease"])
def test_reclaim_of_a_turn_that_changed_since_it_was_observed_changes_no_row(subject: Subject, changed: str) -> None:
    subject.bring(Status.RUNNING)
    if changed != "lease":
        rows.pass_lease(subject.database)
    seen = unanswered.Observed(KEY, subject.claim().token - (changed == "token"), int(changed == "beat"), stale=True)
    before = rows.dump(subject.database)
    assert subject.do(lambda c: unanswered.reclaim(c, seen, LIMITS, 0.5)) is None
    assert rows.dump(subject.database) == before

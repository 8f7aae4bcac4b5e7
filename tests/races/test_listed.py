"""Listed schedules of three actors: what each is told, and that nothing is lost or done twice."""
# ruff: noqa: E501 the schedules are a table

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.races.judge import drain, play

if TYPE_CHECKING:
    from tests.races.arena import Arena

NOTHING = "-"


class Listed(NamedTuple):
    """A schedule: the scene, the moves of A, B and C, the order of their steps, and the events that each is told.

    A letter in the order lets that actor pass one point. Where SKIP LOCKED lets PostgreSQL pass by a row that another
    holds, SQLite's one writer is waited for: `sqlite` is what it tells then.
    """

    title: str
    scene: str
    moves: str
    order: str
    told: str
    sqlite: str = ""


SCHEDULES = """\
# first contact
three first messages                   | absent  | submit_hot submit_hot submit_hot      | ABACBC   | submit+claim submit submit
one message three times                | absent  | submit_same submit_same submit_same   | ABACBC   | submit+claim submit submit
first messages and a poller            | absent  | submit_hot claim_due submit_hot       | ABACBC   | submit+claim - submit
# a holder's finish, a submitter, a poller
submit during a finish                 | running | finish_hot submit_hot claim_due       | ABABCC   | finish submit+claim -
poller passes by a finish              | more    | finish_hot claim_due submit           | ABABCC   | finish - submit+claim | finish claim submit
submit before the finish commits       | more    | submit_hot finish_hot claim_due       | ABABCC   | submit finish claim
finish told twice                      | running | finish_hot finish_hot submit_hot      | ABABCCBB | finish finish submit+claim
hand-off then submit then poller       | more    | hand_off submit_hot claim_due         | ABABCC   | hand_off submit -
hand-off then waiter then poller       | more    | hand_off claim_for claim_due          | ABACBC   | hand_off - -
# stale turns
late finish after reclaim              | stale   | reclaim finish_hot claim_due          | ABABBBCC | reclaim - claim
late finish after the next claim       | stale   | reclaim claim_due finish_hot          | AABCBC   | reclaim claim -
reclaim during a finish                | stale   | finish_hot reclaim submit             | ABACBC   | finish - submit+claim
reclaim during a hand-off              | stale   | hand_off reclaim submit               | ABACBC   | hand_off - submit
hand-off during a reclaim              | stale   | reclaim hand_off submit               | ABACBC   | reclaim - submit+claim
heartbeat before reclaim               | stale   | beat reclaim finish_hot               | ABCBC    | heartbeat - finish
heartbeat during a reclaim             | stale   | reclaim beat claim_for                | ABACC    | reclaim - claim
late failure after the next claim      | stale   | reclaim claim_due fail                | AABCBC   | reclaim claim -
free of the turn before                | stale   | reclaim claim_due free                | AABCBC   | reclaim claim -
park of the turn before                | stale   | reclaim claim_due park                | AABCBC   | reclaim claim -
late release after the next claim      | stale   | reclaim claim_due release             | AABCBC   | reclaim claim -
late heartbeat after the next claim    | stale   | reclaim claim_due beat                | AABBC    | reclaim claim -
two sweeps and a poller                | stale   | reclaim reclaim claim_due             | ABABCC   | reclaim - claim
an operator and a sweep and a failure  | stale   | free_stale reclaim fail               | ABABCC   | free - -
forced and unforced free               | more    | free free_stale finish_hot            | ABACBC   | free - -
unforced free of a live turn           | more    | free_stale beat finish_hot            | AABCC    | - heartbeat finish
# cancel
fetch during a cancel                  | more    | cancel fetch_more submit_hot          | ABACBC   | cancel fetch submit
cancel during a fetch                  | more    | fetch_more cancel submit_hot          | ABACBC   | fetch - submit
submit during a fetch before a finish  | more    | fetch_and_finish submit_hot beat      | ABBAAAC  | fetch+finish submit -
claim during a cancel of the head      | pending | cancel_head claim_for submit          | ABACBC   | cancel claim submit
cancel of the head during a claim      | pending | claim_due cancel_head submit          | ABACBC   | claim - submit
cancel of the head before its fetch    | charged | claim_due cancel_head cancel          | AABBCC   | claim - cancel
cancel of a waiter's message           | pending | cancel claim_for claim_due            | ABABCC   | cancel claim -
# delete
finish during a delete                 | more    | delete finish_hot submit_hot          | ABACBC   | delete - -
delete during a finish                 | more    | finish_hot delete submit_hot          | ABACBC   | finish delete -
late finish during recreate            | deleted | recreate finish_hot submit_hot        | AAABACBC | recreate+submit+claim - submit
# park and resume
submit during a resume                 | parked  | resume submit claim_due               | ABABCC   | resume submit+claim -
finish during a park                   | more    | park finish_hot submit_hot            | ABACBC   | park - submit
park during a resume                   | parked  | resume park claim_due                 | ABABCC   | resume park -
# claims
two waiters and a poller               | pending | claim_for claim_for claim_due         | ABABCC   | claim - -
a caller comes back                    | pending | submit_again claim_due submit         | AAABABCC | claim - submit
submit during a failure                | more    | fail submit claim_due                 | ABABCC   | fail submit+claim -
a late commit and a quick turn         | idle    | submit_only submit_only claim_and_finish | ABBBCCCC | submit submit - | submit submit claim+finish
release twice and a waiter             | more    | release release claim_for             | ABACBC   | release - claim
claims after a failure                 | charged | claim_due claim_for submit            | ABACBC   | claim - submit
a claim is freed at once               | pending | claim_due free_current beat           | AABBBC   | claim free -
poller drops a surplus due row         | surplus | claim_due submit_only beat            | ABABC    | - submit -
messages that nobody claims            | idle    | submit_only submit_only cancel        | ABACBC   | submit submit -
# the application's own transaction
sweep passes by a fenced write         | stale   | fenced_write reclaim claim_for        | ABABCC   | fence - - | fence reclaim claim
fenced write during a reclaim          | stale   | reclaim fenced_write claim_for        | ABACC    | reclaim - claim
free during a fenced write             | more    | fenced_write free claim_for           | ABBACC   | fence free claim
finish with the application's row      | stale   | finish_in_app free submit             | ABBACC   | finish - submit+claim
late finish with the application's row | stale   | reclaim finish_in_app submit          | ABACC    | reclaim - submit+claim
"""


def parsed(table: str) -> list[Listed]:
    lines = [line for line in table.splitlines() if not line.startswith("#")]
    return [Listed(*(cell.strip() for cell in line.split("|"))) for line in lines]


@pytest.mark.parametrize("listed", parsed(SCHEDULES), ids=lambda listed: listed.title.replace(" ", "-"))
def test_listed(listed: Listed, arena: Arena) -> None:
    tenant = listed.title
    held = arena.build(listed.scene, tenant, ["t"])["t"]
    game = play(arena, listed.scene, held, listed.moves.split(), listed.order)
    told = " ".join("+".join(game.told(actor)) or NOTHING for actor in "ABC")
    drain(arena, tenant)
    expected = listed.sqlite if arena.kind == "sqlite" and listed.sqlite else listed.told
    assert told == expected, f"{game.played} postponed {game.played.postponed}"

"""The heart alone: it beats for each live turn again and again, and only a lost claim is a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chatlock.errors import StoreUnavailable
from chatlock.heart import Heart
from chatlock.inputs import Key
from chatlock.ops.base import Claim
from chatlock.ops.heartbeat import Beat, Pulse
from tests.support.waiting import until

BEAT_MS = 5
TIMES = 4


class Turn:
    """As much of a turn as the heart sees."""

    def __init__(self, name: str) -> None:
        self.claim = Claim(Key("t", name), 1, 1, name, 0, "default", 10_000, asked_at=0.0)
        self.lives = True
        self.beats = self.losses = self.steered = 0
        self.cancelled = False

    def alive(self) -> bool:
        return self.lives

    def beaten(self, sent_at: float) -> None:
        self.beats += 1

    def told(self, *, cancelled: bool = False, steered: int = 0) -> None:
        self.cancelled, self.steered = self.cancelled or cancelled, steered

    def set_lost(self) -> None:
        self.losses += 1


class Hearts:
    """Makes hearts whose beats come to what the test says, and closes them."""

    def __init__(self) -> None:
        self.made: list[Heart] = []
        self.asked: list[str] = []

    def __call__(self, comes_to: Callable[[Claim], Beat] = lambda claim: Beat.EXTENDED) -> Heart:
        def beat(claim: Claim) -> Pulse:
            self.asked.append(claim.claim_id)
            return Pulse(comes_to(claim), cancelled=claim.claim_id == "stopped", steered=7)

        self.made.append(Heart(beat, BEAT_MS))
        return self.made[-1]

    def more(self, name: str) -> None:
        """Until this turn was beaten for some more times."""
        want = self.asked.count(name) + TIMES
        until(lambda: self.asked.count(name) >= want)


@pytest.fixture
def hearts() -> Iterator[Hearts]:
    made = Hearts()
    yield made
    for heart in made.made:
        heart.close()


def test_turn_is_beaten_for_again_and_again(hearts: Hearts) -> None:
    heart, turn = hearts(), Turn("a")
    heart.add(turn)
    until(lambda: turn.beats >= TIMES)
    assert turn.losses == 0


def test_end_of_one_turn_leaves_the_others(hearts: Hearts) -> None:
    heart, ended, goes_on = hearts(), Turn("ended"), Turn("goes on")
    heart.add(ended)
    heart.add(goes_on)
    hearts.more("ended")
    assert heart.remove("ended") is True
    assert heart.remove("ended") is False
    until(lambda: len(heart) == 1)
    hearts.more("goes on")
    before = hearts.asked.count("ended")
    hearts.more("goes on")
    assert hearts.asked.count("ended") == before


def test_locked_row_is_no_loss_and_is_tried_again(hearts: Hearts) -> None:
    came = iter([Beat.BUSY, Beat.BUSY])
    heart, turn = hearts(lambda claim: next(came, Beat.EXTENDED)), Turn("a")
    heart.add(turn)
    until(lambda: turn.beats >= 1)
    assert (turn.losses, hearts.asked[:3]) == (0, ["a", "a", "a"])


def test_lost_claim_is_told_once_and_not_beaten_for_any_more(hearts: Hearts) -> None:
    lost, goes_on = Turn("lost"), Turn("goes on")
    heart = hearts(lambda claim: Beat.LOST if claim is lost.claim else Beat.EXTENDED)
    heart.add(lost)
    heart.add(goes_on)
    hearts.more("goes on")
    assert (lost.losses, hearts.asked.count("lost")) == (1, 1)
    assert goes_on.losses == 0


def test_finished_turn_is_not_lost(hearts: Hearts) -> None:
    heart, turn = hearts(lambda claim: Beat.DONE), Turn("a")
    heart.add(turn)
    hearts.more("a")
    assert turn.losses == 0


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError(), SystemExit()])
def test_error_is_no_loss_and_stops_nobody(error: BaseException, hearts: Hearts, caplog: Any) -> None:
    broken, goes_on = Turn("broken"), Turn("goes on")

    def beat(claim: Claim) -> Beat:
        if claim is broken.claim:
            raise error
        return Beat.EXTENDED

    heart = hearts(beat)
    heart.add(broken)
    heart.add(goes_on)
    hearts.more("broken")
    hearts.more("goes on")
    assert (broken.losses, goes_on.losses) == (0, 0)


def test_turn_of_a_dead_caller_or_that_nobody_holds_is_forgotten(hearts: Hearts) -> None:
    heart, dead, dropped = hearts(), Turn("dead"), Turn("dropped")
    heart.add(dead)
    heart.add(dropped)
    hearts.more("dead")
    dead.lives = False
    del dropped
    until(lambda: len(heart) == 0)


def test_closed_heart_takes_no_turn(hearts: Hearts) -> None:
    heart, turn = hearts(), Turn("a")
    heart.close()
    heart.add(turn)
    assert len(heart) == 0

"""What is promised about time, on a clock that the test sets: recovery within 15 s, windows, and steps of the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chatlock import Chatlock, Debounce, Key, Turn
from chatlock import sweep as sweep_module
from chatlock.inputs import new_id
from chatlock.ops.claim import Request, claim_for
from chatlock.ops.heartbeat import Beat, heartbeat
from chatlock.ops.unanswered import fail
from chatlock.policies import QUIET_MAX_MS
from chatlock.protocol import Limits
from chatlock.store import finish_once, submit_once
from chatlock.testing import DatabaseClock, MonotonicClock
from tests.races.arena import finish_of, submission

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chatlock.ops.claim import Granted
    from tests.support.databases import Database

LIMITS = Limits()
HOUR_MS = 3_600_000
RECOVERY_MS_MAX = 15_000
GAP_MS = 2 * LIMITS.beat_ms + 1_000
LIVE = 3


class Times:
    """A process that holds turns, and a sweeper on another client; both clocks move together, as in life."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.holder = Chatlock(database.url, tenant="acme", poller=False, limits=LIMITS)
        self.sweeper = Chatlock(database.url, tenant="acme", poller=False, limits=LIMITS)
        self.answered: list[str] = []
        self.sweeper.handler()(self._answer)
        self.clock = DatabaseClock.install(database.url)
        self.monotonic = MonotonicClock()
        for client in (self.holder, self.sweeper):
            self.clock.attach(client)
            self.monotonic.attach(client)

    def close(self) -> None:
        for client in (self.holder, self.sweeper):
            client.close()

    def _answer(self, turn: Turn) -> str:
        self.answered.append(turn.key.thread)
        return "reply"

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.monotonic.advance(duration_ms)

    def claim(self, thread: str, window_ms: int = LIMITS.window_default_ms) -> Granted:
        """A turn without a heartbeat of its own: the test beats for it."""
        request = Request(new_id(), "holder", LIMITS.lease_ms, window_ms, LIMITS)
        stored = submit_once(self.holder._executor, submission(Key("acme", thread), f"of {thread}"), request, LIMITS)
        assert stored.granted is not None
        return stored.granted

    def beat(self, granted: Granted) -> bool:
        return self.holder._executor.beat(lambda c: heartbeat(c, granted.claim)).beat == Beat.EXTENDED

    def finish(self, granted: Granted) -> bool:
        return finish_once(self.holder._executor, finish_of(granted.claim, granted.messages, "reply"), None) is not None

    def errors(self) -> list[str | None]:
        rows = self.database.connect().execute("SELECT error FROM chatlock_turns WHERE state = 'reclaimed'")
        return [error for (error,) in rows.fetchall()]


@pytest.fixture
def times(database: Database) -> Iterator[Times]:
    made = Times(database)
    yield made
    made.close()


@pytest.mark.parametrize("phase_ms", [0, 1, 500, 999])
def test_thread_of_a_dead_process_runs_again_within_15_s(
    phase_ms: int, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the sweeps come after the last beat, and with the longest first backoff."""
    monkeypatch.setattr(sweep_module, "jitter", lambda: 1.0)
    granted = times.claim("t1")
    times.sweeper.sweep_once()
    times.pass_ms(LIMITS.beat_ms)
    assert times.beat(granted)
    silent_ms = phase_ms
    times.pass_ms(phase_ms)
    while not times.sweeper.sweep_once().turns:
        assert silent_ms <= RECOVERY_MS_MAX
        times.pass_ms(LIMITS.sweep_ms)
        silent_ms += LIMITS.sweep_ms
    assert times.answered == ["t1"]
    assert LIMITS.lease_ms < silent_ms <= LIMITS.lease_ms + 2 * LIMITS.sweep_ms + LIMITS.backoff_ms
    assert not times.finish(granted)


def test_hung_turn_that_still_beats_ends_at_its_window(times: Times) -> None:
    window_ms = 60_000
    granted = times.claim("t1", window_ms)
    lived_ms = 0
    while lived_ms < window_ms:
        assert times.sweeper.sweep_once().reclaimed == 0
        times.pass_ms(LIMITS.sweep_ms)
        lived_ms += LIMITS.sweep_ms
        if lived_ms % LIMITS.beat_ms == 0:
            assert times.beat(granted) == (lived_ms < window_ms)
    over_ms = 0
    while not times.sweeper.sweep_once().reclaimed:
        assert not times.beat(granted)
        assert over_ms <= GAP_MS
        times.pass_ms(LIMITS.sweep_ms)
        over_ms += LIMITS.sweep_ms
    assert times.errors() == ["window"]
    assert not times.finish(granted)


def beat_and_sweep(times: Times, live: list[Granted], duration_ms: int) -> int:
    """Time passes; live turns beat when they are due to, and the sweeper sweeps. How many turns it reclaimed."""
    reclaimed = 0
    for passed_ms in range(LIMITS.sweep_ms, duration_ms + 1, LIMITS.sweep_ms):
        times.pass_ms(LIMITS.sweep_ms)
        if passed_ms % LIMITS.beat_ms == 0:
            for granted in live:
                times.beat(granted)
        reclaimed += times.sweeper.sweep_once().reclaimed
    return reclaimed


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_step_of_the_databases_clock_reclaims_no_live_turn(step_ms: int, times: Times) -> None:
    live = [times.claim(f"t{number}", LIMITS.window_cap_ms) for number in range(LIVE)]
    assert beat_and_sweep(times, live, 2 * GAP_MS) == 0
    times.clock.advance(step_ms)
    assert times.sweeper.sweep_once().reclaimed == 0
    assert beat_and_sweep(times, live, 2 * GAP_MS) == 0
    assert all(times.finish(granted) for granted in live)


def test_step_reclaims_live_turns_without_the_second_sighting(times: Times) -> None:
    """Control: it is the rule of two sightings that saves them."""
    times.sweeper._sweep._gap_s = 0.0
    live = [times.claim(f"t{number}", LIMITS.window_cap_ms) for number in range(LIVE)]
    assert beat_and_sweep(times, live, 2 * GAP_MS) == 0
    times.clock.advance(HOUR_MS)
    assert times.sweeper.sweep_once().reclaimed == LIVE


def test_outage_of_the_database_reclaims_no_live_turn(times: Times) -> None:
    """Nobody could beat or sweep for a minute: the first sweep after it sees old sightings, but not the same beats."""
    live = [times.claim(f"t{number}", LIMITS.window_cap_ms) for number in range(LIVE)]
    assert beat_and_sweep(times, live, LIMITS.beat_ms) == 0
    times.pass_ms(60_000)
    for granted in live:
        assert times.beat(granted)
    assert times.sweeper.sweep_once().reclaimed == 0


def failed(times: Times) -> Granted:
    granted = times.claim("t1")
    ended = times.holder._executor.transaction(
        "fail", lambda c: fail(c, granted.claim, held=1, error="broke", limits=LIMITS, jitter=1.0)
    )
    assert ended is not None
    assert times.sweeper.sweep_once().turns == 0
    return granted


def test_backoff_outlives_a_step_back_by_no_more_than_a_sweep(times: Times) -> None:
    """A start time further off than the longest backoff counts as due."""
    failed(times)
    times.clock.advance(-HOUR_MS)
    assert times.sweeper.sweep_once().turns == 1


def test_quiet_time_outlives_a_step_back_by_no_more_than_the_longest_debounce(times: Times) -> None:
    """A step that could be a debounce is taken for one; a longer one counts as passed, for the sweep and the look."""
    times.holder.submit("t1", "hello", policy=Debounce(quiet_ms=1_000), wait_ms=0)
    times.clock.advance(-QUIET_MAX_MS // 2)
    assert times.sweeper.sweep_once().turns == 0
    times.clock.advance(-QUIET_MAX_MS)
    assert times.sweeper.sweep_once().turns == 1


def test_step_back_within_the_longest_backoff_only_delays(times: Times) -> None:
    """Control of the rule's other side: a step that could be a backoff is taken for one."""
    failed(times)
    times.clock.advance(-LIMITS.backoff_max_ms // 2)
    assert times.sweeper.sweep_once().turns == 0
    times.pass_ms(LIMITS.backoff_max_ms // 2 + LIMITS.backoff_ms)
    assert times.sweeper.sweep_once().turns == 1


def test_waiter_claims_after_a_step_back(times: Times) -> None:
    granted = failed(times)
    times.clock.advance(-HOUR_MS)
    request = Request(new_id(), "waiter", LIMITS.lease_ms, LIMITS.window_default_ms, LIMITS)
    claimed = times.holder._executor.transaction("claim", lambda c: claim_for(c, granted.claim.key, request, 1, 1))
    assert claimed is not None

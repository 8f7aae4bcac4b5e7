"""How a turn that ends unanswered is charged, and when its thread may start again: pure decisions, made by ops."""

from __future__ import annotations

from typing import NamedTuple

from chatlock.policies import QUIET_MAX_MS
from chatlock.protocol import Limits


class Charge(NamedTuple):
    """How a turn that ends without an answer is charged."""

    attempts: int
    stalls: int
    delay_ms: int
    head_dead: bool
    parked: bool


UNCHARGED = Charge(0, 0, 0, False, False)


def charge(limits: Limits, attempts: int, stalls: int, *, received: bool, jitter: float) -> Charge:
    """One attempt if the turn had messages in hand, else one stall.  jitter in 0.5..1 scales the backoff.

    The maximum of attempts makes the oldest message dead and starts its successor afresh; of stalls, parks the thread.
    """
    attempts, stalls = (attempts + 1, stalls) if received else (attempts, stalls + 1)
    if attempts >= limits.attempts_max:
        return Charge(0, 0, 0, True, False)
    if stalls >= limits.stalls_max:
        return Charge(attempts, stalls, 0, False, True)
    doublings = min(attempts + stalls - 1, 30)
    delay = min(limits.backoff_max_ms, limits.backoff_ms << doublings)
    return Charge(attempts, stalls, int(delay * jitter), False, False)


def starts_at(not_before: int, quiet_until: int, now: int, backoff_max_ms: int) -> int:
    """When an idle thread may start.  A backoff or a quiet time further off than its maximum means that the clock
    stepped: it counts as passed.
    """
    backoff = not_before if not_before <= now + backoff_max_ms else 0
    quiet = quiet_until if quiet_until <= now + QUIET_MAX_MS else 0
    return max(backoff, quiet)


def received(*, fetched_seq: int, done_seq: int, beat: int, attempts: int, stalls: int) -> bool:
    """Whether a reclaimed turn surely had messages in hand: a first fetch that rode in the claim is no proof of
    receipt.
    """
    return fetched_seq > done_seq and (attempts + stalls > 0 or beat > 0)

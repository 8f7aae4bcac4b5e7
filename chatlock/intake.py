"""How messages are taken in: the policy and the limit on pending messages, of a call, a handler or a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from chatlock.errors import InvalidInput
from chatlock.inputs import checked_int, checked_ms, checked_word, plain
from chatlock.policies import OVERFLOWS, POLICIES, QUIET_MAX_MS, Debounce, Interrupt, Overflow, PolicyName

Named: TypeAlias = "PolicyName | Debounce | Interrupt"
Choice: TypeAlias = "Named | Callable[[Any], Named]"
"""A policy, or a function that chooses it from the message's payload."""


class Chosen(NamedTuple):
    """The policy of one message, with its bounds where it has any."""

    policy: str
    debounce: Debounce | None = None
    interrupt: Interrupt | None = None


@dataclass(frozen=True)
class Intake:
    """What was said about it at one place; None: nothing."""

    policy: Choice | None = None
    pending_max: int | None = None
    overflow: Overflow | None = None

    def __post_init__(self) -> None:
        if self.policy is not None and (isinstance(self.policy, type) or not callable(self.policy)):
            checked_policy(self.policy)
        if self.overflow is not None:
            checked_word(self.overflow, "overflow", OVERFLOWS)
        if self.pending_max is not None:
            checked_int(self.pending_max, "pending_max", least=1)

    def before(self, other: Intake) -> Intake:
        """This one, and where it says nothing the other."""
        return Intake(
            self.policy if self.policy is not None else other.policy,
            self.pending_max if self.pending_max is not None else other.pending_max,
            self.overflow if self.overflow is not None else other.overflow,
        )

    def policy_for(self, payload: object) -> Chosen:
        """The policy for this payload."""
        chosen = self.policy(payload) if callable(self.policy) else self.policy
        chosen = "enqueue" if chosen is None else chosen
        checked_policy(chosen)
        if isinstance(chosen, Debounce):
            return Chosen("debounce", debounce=chosen)
        if isinstance(chosen, Interrupt):
            return Chosen("interrupt", interrupt=chosen)
        row = POLICIES[chosen]
        return Chosen(
            plain(chosen), Debounce() if row.quiet else None, Interrupt() if row.turn == "interrupt" else None
        )


def checked_policy(chosen: object) -> None:
    """Raises InvalidInput for what is no policy."""
    if isinstance(chosen, Debounce):
        checked_ms(chosen.quiet_ms, "quiet_ms", least=1, most=QUIET_MAX_MS)
        checked_ms(chosen.max_wait_ms, "max_wait_ms", least=1, most=QUIET_MAX_MS)
    elif isinstance(chosen, Interrupt):
        checked_ms(chosen.grace_ms, "grace_ms", least=1)
        checked_int(chosen.per_head_max, "per_head_max", least=1)
    elif not isinstance(chosen, str) or chosen not in POLICIES:
        raise InvalidInput("bad_policy", f"policy must be a Debounce, an Interrupt or one of {', '.join(POLICIES)}")

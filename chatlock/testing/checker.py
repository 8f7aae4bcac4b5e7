"""Judges a history in time linear in its length: is it one that chatlock promises?"""

from __future__ import annotations

from collections.abc import Sequence

from chatlock.inputs import Key
from chatlock.ops.verify import Breach
from chatlock.testing.checks_of_messages import NothingLeft, OutcomeWasTrue, RepliesAgree, StoredOnce, SubmitsInOrder
from chatlock.testing.checks_of_turns import (
    AnsweredOnce,
    AnsweredWasReceived,
    DeadWasTried,
    FencedAfterReclaim,
    HeldUntilAnswered,
    RangesTile,
    StopWasKept,
    TokensRise,
)
from chatlock.testing.facts import Check, Facts
from chatlock.testing.history import Event, History

CHECKS: tuple[type[Check], ...] = (
    TokensRise,
    RangesTile,
    AnsweredWasReceived,
    AnsweredOnce,
    StoredOnce,
    FencedAfterReclaim,
    StopWasKept,
    HeldUntilAnswered,
    OutcomeWasTrue,
    RepliesAgree,
    SubmitsInOrder,
    DeadWasTried,
    NothingLeft,
)


def check(history: History | Sequence[Event], *, attempts_max: int | None = None) -> tuple[Breach, ...]:
    """Every breach in the history, named by its check; none: what was noted is what chatlock promises.

    Checks that need the tables at the end say nothing where `History.tables` did not note them.

    Args:
        history: What was noted.
        attempts_max: The limit that the clients were made with, to count a dead message's tries.  None: 1.
    """
    events = history.events if isinstance(history, History) else history
    facts = Facts.of(events, attempts_max)
    checks = [kind(facts) for kind in CHECKS]
    found: list[Breach] = []
    for event in events:
        key = Key(event["tenant"], event["thread"])
        for one in checks:
            found += [_breach(one, key, what) for what in one.see(event, key)]
    for one in checks:
        found += [_breach(one, key, what) for key, what in one.end()]
    return tuple(found)


def _breach(check: Check, key: Key, what: str) -> Breach:
    return Breach(check.name, what, key.tenant, key.thread)

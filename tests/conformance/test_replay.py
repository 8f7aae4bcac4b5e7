"""A replay says what the real core would have done: both get the same arrivals, the core on a clock that is set."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, get_args

import pytest

from chatlock import Busy, Chatlock, Limits
from chatlock.backtest import at_share
from chatlock.inputs import reply_json
from chatlock.ops.fetch import fetch
from chatlock.ops.finish import Finish
from chatlock.ops.inspect import in_turn
from chatlock.ops.unanswered import release
from chatlock.policies import POLICIES, PolicyName
from chatlock.replay import Arrival, Replayed, replay
from chatlock.store import finish_once, submit_once
from chatlock.testing import DatabaseClock
from tests.conformance import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chatlock.inputs import Key
    from chatlock.ops.base import Claim, Message
    from chatlock.ops.claim import Granted
    from tests.support.databases import Database

RUN_MS = 20_000
LIMITS = Limits(batch_max=2)
POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)


def bursts(count: int) -> list[Arrival]:
    """Two people write in bursts, often in the millisecond in which a turn ends or a quiet time is over."""
    chosen, at_ms = random.Random(11), 0
    arrivals = []
    for _ in range(count):
        at_ms += chosen.choice([0, 500, 2_000, 2_000, 9_000, RUN_MS, RUN_MS + 2_000])
        arrivals.append(Arrival((chosen.choice("aab"),), at_ms))
    return arrivals


class Life:
    """The core, driven through the arrivals by its own operations; turns take RUN_MS of the clock that is set."""

    def __init__(self, database: Database, policy: PolicyName) -> None:
        self.database, self.policy = database, policy
        self.chat = Chatlock(database.url, tenant="t", poller=False, limits=LIMITS)
        self.clock = DatabaseClock.install(database.url)
        self.clock.attach(self.chat)
        self.start_ms = self.clock.now_ms
        self.running: dict[Key, tuple[int, Granted]] = {}
        self.hands: dict[Key, list[Message]] = {}
        self.attached: dict[Key, list[int]] = {}
        self.waits: list[int] = []
        self.replied: dict[tuple[str, int], int] = {}
        self.turns = self.fetches = self.refused = 0

    def play(self, arrivals: list[Arrival]) -> Replayed:
        for number, arrival in enumerate(arrivals):
            at_ms = self.start_ms + arrival.at_ms
            self.pass_until(at_ms)
            self.clock.set(at_ms)
            self.submit(arrival.thread[0], f"m{number}")
        while (moment := self.next()) is not None:
            self.pass_until(moment)
        return self.seen(len(arrivals))

    def submit(self, thread: str, message_id: str) -> None:
        flows = self.chat._flows
        what = self.chat._checked(thread, message_id, {"message_id": message_id, "policy": self.policy})
        if POLICIES[self.policy].store == "never":
            if self.chat._executor.read("in_turn", lambda c: in_turn(c, what.key))[1] is not None:
                self.attached.setdefault(what.key, []).append(self.clock.now_ms)
                return
            self.policy, attach = "enqueue", self.policy
            self.submit(thread, message_id)
            self.policy = attach
            return
        stored = submit_once(self.chat._executor, what, flows.windows.request("default"), LIMITS)
        self.refused += isinstance(stored.outcome, Busy)
        if stored.granted is not None:
            self.begin(stored.granted)
        elif what.key in self.running:
            self.tell(what.key, self.running[what.key][1].claim)

    def tell(self, key: Key, claim: Claim) -> None:
        """What a good handler does at once when it is told of a message, or asked to stop."""
        executor, hand = self.chat._executor, self.hands[key]
        if POLICIES[self.policy].turn == "tell":
            got = executor.transaction("fetch", lambda c: fetch(c, claim, hand[-1].seq, LIMITS))
            self.fetches += bool(got)
            hand += got
        elif rows.thread_row(self.database, key.thread)["cancel_token"] == claim.token:
            assert executor.transaction("release", lambda c: release(c, key, claim.claim_id))
            del self.running[key]

    def begin(self, granted: Granted) -> None:
        self.turns += 1
        self.running[granted.claim.key] = (self.clock.now_ms + RUN_MS, granted)
        self.hands[granted.claim.key] = [*granted.messages]

    def next(self) -> int | None:
        """The end of a turn, or the moment from which a thread may start."""
        due = [row["due_at"] for row in rows.table(self.database, "chatlock_due")]
        return min([ends_at for ends_at, _ in self.running.values()] + due, default=None)

    def pass_until(self, at_ms: int) -> None:
        while (moment := self.next()) is not None and moment <= at_ms:
            self.clock.set(max(moment, self.clock.now_ms))
            for key, (ends_at, granted) in list(self.running.items()):
                if ends_at <= moment:
                    self.finish(key, granted)
            for key, agent in self.chat._sweep.due(["default"], 100):
                claimed = self.chat._sweep.claim(key, agent)
                if claimed is not None:
                    self.begin(claimed)

    def finish(self, key: Key, granted: Granted) -> None:
        hand = self.hands[key]
        what = Finish(granted.claim, hand[-1].seq, len(hand), reply_json("reply"))
        assert finish_once(self.chat._executor, what, None) is not None
        del self.running[key]
        self.replied |= {(key.thread, message.seq): self.clock.now_ms for message in hand}
        self.waits += [self.clock.now_ms - at_ms for at_ms in self.attached.pop(key, [])]

    def seen(self, count: int) -> Replayed:
        """What the tables say in the end."""
        stored = rows.table(self.database, "chatlock_messages")
        attached = len(self.waits)
        by = {(row["thread_id"], row["seq"]): row for row in stored}
        for row in stored:
            told = row
            while told["disposition"] == "superseded":
                told = by[told["thread_id"], told["superseded_by"]]
            self.waits.append(self.replied[told["thread_id"], told["seq"]] - row["received_at"])
        dispositions = [row["disposition"] for row in stored]
        return Replayed(
            self.policy,
            messages=count,
            turns=self.turns,
            model_calls=self.turns + self.fetches,
            answered=dispositions.count("answered"),
            superseded=dispositions.count("superseded"),
            refused=self.refused,
            attached=attached,
            first_reply_p50_ms=at_share(sorted(self.waits), 0.5),
            first_reply_p95_ms=at_share(sorted(self.waits), 0.95),
        )


@pytest.fixture(params=POLICY_NAMES)
def life(request: pytest.FixtureRequest, sqlite_database: Database) -> Iterator[Life]:
    made = Life(sqlite_database, request.param)
    yield made
    made.chat.close()


def test_the_core_does_what_the_replay_says(life: Life) -> None:
    arrivals = bursts(40)
    assert life.play(arrivals) == replay(arrivals, life.policy, run_ms=RUN_MS, limits=LIMITS)


def test_control_each_policy_does_something_else() -> None:
    """So that one taken for another is seen."""
    played = [vars(replay(bursts(40), name, run_ms=RUN_MS, limits=LIMITS)) for name in POLICY_NAMES]
    assert len({tuple(found.values())[1:] for found in played}) == len(POLICY_NAMES)

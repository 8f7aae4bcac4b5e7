"""Judges a pass by the agent's own record alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from examples.demo.agent import Histories, Reply, Thread
    from examples.demo.arrivals import Arrival


@dataclass(frozen=True)
class Ledger:
    """What became of the messages of a pass."""

    messages: int
    turns: int
    answered: int
    lost: int
    answered_twice: int
    overlapping_turns: int
    history_lost: int

    @property
    def is_clean(self) -> bool:
        """Every message answered once, no turn overlapped another, no line of a history gone."""
        flaws = (self.lost, self.answered_twice, self.overlapping_turns, self.history_lost)
        return self.answered == self.messages and not any(flaws)

    def figures(self) -> dict[str, int]:
        """Each figure under its title."""
        return {
            "messages": self.messages,
            "replies sent": self.turns,
            "messages answered twice": self.answered_twice,
            "messages never answered": self.lost,
            "turns that overlapped another": self.overlapping_turns,
            "lines missing from histories": self.history_lost,
        }

    def __str__(self) -> str:
        return (
            f"ledger: {self.messages} messages, {self.answered} answered in {self.turns} turns, "
            f"{self.lost} lost, {self.answered_twice} answered twice"
        )


def judge(arrivals: Iterable[Arrival], sent: Iterable[Reply], histories: Histories) -> Ledger:
    """Compare what people wrote with what the agent sent and what the histories hold."""
    written = {a.message_id: (a.log, a.person) for a in arrivals}
    replies = list(sent)
    times = Counter(message_id for reply in replies for message_id in reply.entry.answers)
    if unknown := times.keys() - written.keys():
        raise ValueError(f"the agent answered messages that nobody wrote: {sorted(unknown)[:3]}")
    should_hold = {(thread, message_id) for message_id, thread in written.items()}
    should_hold |= {(reply.thread, reply.entry.entry_id) for reply in replies}
    holds = {(t, entry.entry_id) for t in set(written.values()) for entry in histories.read(t)}
    return Ledger(
        messages=len(written),
        turns=len(replies),
        answered=len(times),
        lost=len(written.keys() - times.keys()),
        answered_twice=sum(count > 1 for count in times.values()),
        overlapping_turns=overlapping(replies),
        history_lost=len(should_hold - holds),
    )


def overlapping(replies: Iterable[Reply]) -> int:
    """Turns that began while another turn of their thread was still at work."""
    busy_until: dict[Thread, float] = {}
    count = 0
    for reply in sorted(replies, key=lambda r: r.began_s):
        count += reply.began_s < busy_until.get(reply.thread, 0.0)
        busy_until[reply.thread] = max(reply.ended_s, busy_until.get(reply.thread, 0.0))
    return count

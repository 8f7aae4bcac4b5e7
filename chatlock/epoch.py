"""After a failover that lost acknowledged commits: tokens are raised past those given out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatlock.admin import act
from chatlock.ops import epoch

if TYPE_CHECKING:
    from collections.abc import Callable

    from chatlock.executor import Executor
    from chatlock.inputs import Key
    from chatlock.protocol import Limits

BATCH = 500


@dataclass(frozen=True)
class Bumped:
    """The epoch that began, and how many threads were raised."""

    epoch: int
    threads: int


def bump_epoch(
    executor: Executor,
    *,
    actor: str | None,
    reason: str,
    limits: Limits,
    progress: Callable[[int, int], object] | None = None,
) -> Bumped:
    """Raise every thread's token by a million and release every running turn.

    **Effect**: whoever still holds a turn from before is refused at its next call; its messages are
    pending again and due.  The epoch and an audit row come first, then one transaction per thread.
    `progress(done, of)` is called after each batch.  If it is cut short, run it again: tokens may
    rise twice.
    """
    what = act("bump_epoch", actor, reason)
    begun = executor.transaction("epoch.begin", lambda conn: epoch.begin_epoch(conn, what))
    total = executor.read("epoch.count", epoch.count_threads)
    done, last = 0, epoch.WHOLE_DATABASE
    while keys := _next(executor, last):
        for key in keys:
            _raise(executor, key, limits)
        done, last = done + len(keys), keys[-1]
        if progress is not None:
            progress(done, max(done, total))
    return Bumped(begun, done)


def _next(executor: Executor, after: Key) -> list[Key]:
    return executor.read("epoch.threads", lambda conn: epoch.threads_after(conn, after, BATCH))


def _raise(executor: Executor, key: Key, limits: Limits) -> None:
    executor.transaction("epoch.token", lambda conn: epoch.raise_token(conn, key, limits.backoff_max_ms))

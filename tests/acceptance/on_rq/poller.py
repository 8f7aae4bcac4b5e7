"""The poller's side of RQ in the test's process: the test says when it dispatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis
import rq

from chatlock.rq_jobs import FUNCTION, RqSender
from chatlock.service.dispatch import Remote
from chatlock.settings import Settings
from tests.acceptance.cases.support import TENANT, rows
from tests.acceptance.services import Served

if TYPE_CHECKING:
    from tests.support.databases import Database


class Poller:
    """The poller's side in this process: the test says when it dispatches."""

    def __init__(self, served: Served, **given: Any) -> None:
        told = {"url": served.database.url, **served.settings, **given}
        self.sender = RqSender(Settings(_env_file=None, **told))
        self._remote = Remote(served.client._executor, served.client._sweep, self.sender, 15_000)

    def dispatch(self) -> None:
        """One pass."""
        self._remote.dispatch_due()


def lapse(database: Database) -> None:
    """A: every dispatch lease has passed."""
    rows(database, "UPDATE chatlock_due SET dispatched_until = 0")


def enqueue(server: redis.Redis, thread: str, job_id: str = "early") -> None:
    """A wake-up that no poller sent."""
    queue = rq.Queue("chatlock", connection=server, serializer="json")
    queue.enqueue(FUNCTION, TENANT, thread, job_id=job_id, result_ttl=0)

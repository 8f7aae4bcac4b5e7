"""A program that opens its clients and then forks, as a server that preloads its application does.

Every child and the parent use the same client objects. It prints one line for each process that did all it should.
"""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any

from chatlock import AlreadyAnswered, Answered, AsyncChatlock, Chatlock
from tests.acceptance.cases.support import TENANT, Points
from tests.support.processes import exit_with
from tests.support.waiting import SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from chatlock import Turn

CHILDREN = 2
MESSAGES = 2


def answer(turn: Turn) -> list[str]:
    """The handler of every client here."""
    return [message.payload for message in turn.messages]


class Program:
    """The module-level clients of an application."""

    def __init__(self, url: str) -> None:
        self.sync = Chatlock(url, tenant=TENANT, poller=False)
        self.polled = Chatlock(url, tenant=TENANT)
        self.asynchronous = AsyncChatlock(url, tenant=TENANT, poller=False)
        for client in (self.sync, self.polled, self.asynchronous):
            client.handler()(answer)

    def use(self, who: str) -> None:
        """Everything that a process does: its own thread, one that all share, waiting, sweeping, both worlds."""
        for number in range(MESSAGES):
            for client, thread in ((self.sync, who), (self.polled, f"{who} polled"), (self.sync, "shared")):
                payload = f"{who} {number}"
                outcome = client.submit(thread, payload)
                assert isinstance(outcome, Answered | AlreadyAnswered), outcome
                assert payload in outcome.reply, "the reply to another message"
        assert asyncio.run(self._use_async(who)) == MESSAGES
        self.sync.sweep_once()

    async def _use_async(self, who: str) -> int:
        payloads = [f"{who} async {number}" for number in range(MESSAGES)]
        outcomes = await asyncio.gather(*(self.asynchronous.submit(payload, payload) for payload in payloads))
        assert [outcome.reply for outcome in outcomes] == [[payload] for payload in payloads]
        return len(outcomes)

    def close(self) -> None:
        """As an application that ends."""
        self.sync.close()
        self.polled.close()
        asyncio.run(self.asynchronous.close())


def fork(work: Callable[[], object]) -> int:
    """A child that does `work` and ends."""
    # newer Pythons say at a fork that other OS threads run: that is what these scenarios are about
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    pid = os.fork()
    if pid == 0:

        def run() -> int:
            work()
            return 0

        exit_with(run)
    return pid


def nothing() -> None:
    """Where a scenario has nothing to add."""


def run_children(
    program: Program, scenario: str, *, first: Callable[[], object] = nothing, beside: Callable[[], object] = nothing
) -> None:
    """Forks, lets all processes use the same clients at once, and waits for the children.

    first: what a child does first.  beside: what the parent does once it has forked.
    """

    def child(number: int) -> None:
        first()
        program.use(f"{scenario}, child {number}")
        program.close()
        print(f"{scenario}: child {number} used the clients", flush=True)

    children = [fork(lambda number=number: child(number)) for number in range(CHILDREN)]
    beside()
    program.use(f"{scenario}, parent")
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * CHILDREN, codes
    program.use(f"{scenario}, parent again")
    program.close()
    print(f"{scenario}: parent used the clients", flush=True)


# -- scenarios ---------------------------------------------------------------------------------------------------------
def unused(program: Program) -> None:
    """The clients were made and not used before the fork."""
    run_children(program, "unused")


def used(program: Program) -> None:
    """The parent has open connections, a poller and a heart."""
    program.use("preload")
    run_children(program, "used")


def in_an_operation(program: Program) -> None:
    """Another OS thread is inside a transaction when the fork begins, and ends it while the fork is under way."""
    program.use("preload")
    commit = Points(program.sync).hold("submit_hot.commit")
    # called before the client's own preparation for the fork, which was registered earlier
    os.register_at_fork(before=commit.open)
    told: list[Any] = []
    caller = threading.Thread(target=lambda: told.append(program.sync.submit("held", "held")))
    caller.start()
    commit.wait_entered()
    run_children(program, "in_an_operation", beside=lambda: caller.join(SECONDS_MAX))
    assert [outcome.reply for outcome in told] == [["held"]]


def under_locks(program: Program) -> None:
    """Another OS thread holds every Python lock of the clients that a fork does not wait for."""
    program.use("preload")
    held, forked = threading.Event(), threading.Event()
    os.register_at_fork(after_in_parent=forked.set)

    def locks_now() -> list[Any]:
        return [lock for client in (program.sync, program.polled, program.asynchronous) for lock in locks_of(client)]

    def hold() -> None:
        locks = locks_now()
        for lock in locks:
            lock.acquire()
        held.set()
        assert forked.wait(SECONDS_MAX)
        for lock in reversed(locks):
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(SECONDS_MAX)

    def find_none_locked() -> None:
        for lock in locks_now():
            assert lock.acquire(blocking=False), "a lock of the parent's is locked in the child"
            lock.release()

    run_children(program, "under_locks", first=find_none_locked, beside=lambda: holder.join(SECONDS_MAX))


def locks_of(client: Any) -> list[Any]:
    """The locks and conditions of a client: all that its parts hold as attributes, but the gate that a fork closes."""
    flows = client._flows
    parts = [client, client._executor, client._poller, flows, flows.waiters, flows.heart, flows.feeds, flows.store.io]
    kinds = (type(threading.Lock()), threading.Condition)
    found = [value for part in parts if part is not None for value in vars(part).values() if isinstance(value, kinds)]
    assert len(found) >= 5, found
    return found


SCENARIOS = {scenario.__name__: scenario for scenario in (unused, used, in_an_operation, under_locks)}


def run_all(url: str) -> None:
    """Every scenario, each with clients of its own."""
    for scenario in SCENARIOS.values():
        scenario(Program(url))

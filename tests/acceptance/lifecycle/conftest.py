"""No OS thread of chatlock outlives a test of its clients' life."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVING = ("chatlock-poller", "chatlock-heart", "chatlock-look")


def chatlock_os_threads() -> list[str]:
    """The OS threads of chatlock that serve it; a handler's own goes on as long as the handler does."""
    return [os_thread.name for os_thread in threading.enumerate() if os_thread.name.startswith(SERVING)]


@pytest.fixture(autouse=True)
def no_os_thread_is_left() -> Iterator[None]:
    before = chatlock_os_threads()
    yield
    until(lambda: chatlock_os_threads() == before, what="the end of chatlock's OS threads")

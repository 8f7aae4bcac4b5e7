"""FencedSaver: LangGraph checkpoints that only the turn which holds the claim can write."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from chatlock import AsyncTurn, InvalidInput, Turn
from chatlock.middleware import framework
from chatlock.middleware.langgraph_fences import fence_for

T = TypeVar("T")
BaseCheckpointSaver: Any = framework("langgraph.checkpoint.base", "langgraph").BaseCheckpointSaver

_EXTENDED = ("delete_for_runs", "copy_thread", "prune", "adelete_for_runs", "acopy_thread", "aprune")


def turn_of(config: Any) -> Turn | AsyncTurn | None:
    """The turn that a run was claimed with, in a node, a tool or a saver.

    Args:
        config: The config that LangGraph calls it with.
    """
    turn: Turn | AsyncTurn | None = config.get("configurable", {}).get("chatlock_turn")
    return turn


class FencedSaver(BaseCheckpointSaver):  # type: ignore[misc]  # frameworks are untyped here: checked without them too
    """A checkpoint saver that refuses the writes of a turn without its claim: they raise ClaimLost.

    Args:
        saver: An InMemorySaver, or one of SQLite or PostgreSQL on chatlock's own database, where fence and write are
            one transaction.
        same_database: False: the checkpoints live elsewhere; each write is checked only, which leaves a gap.
        allow_unclaimed: True: a write without a turn passes, for tools; else it is InvalidInput.
    """

    def __init__(self, saver: Any, *, same_database: bool = True, allow_unclaimed: bool = False) -> None:
        if not isinstance(saver, BaseCheckpointSaver):
            raise InvalidInput("bad_saver", f"saver must be a checkpoint saver, not {type(saver).__name__}")
        super().__init__(serde=saver.serde)
        self._saver, self._allow_unclaimed = saver, allow_unclaimed
        self._fence = fence_for(saver, same_database)
        self._lend_extended()

    def _lend_extended(self) -> None:
        """On the instance, since a class that has them all would say that every saver does."""
        for name in _EXTENDED:
            if getattr(type(self._saver), name) is not getattr(BaseCheckpointSaver, name):
                setattr(self, name, getattr(self._saver, name))

    def with_allowlist(self, extra_allowlist: Any) -> FencedSaver:
        """The same fence round the saver's clone."""
        clone = copy.copy(self)
        clone._saver = self._saver.with_allowlist(extra_allowlist)
        clone.serde = clone._saver.serde
        clone._lend_extended()
        return clone

    # -- writes, under the claim -------------------------------------------------------------------------------------
    @contextmanager
    def held(self, config: Any) -> Iterator[Any]:
        """The saver to write with.  Raises ClaimLost, InvalidInput."""
        turn = self._turn(config)
        if turn is None:
            yield self._saver
            return
        with self._fence.held(self._saver, turn) as saver:
            yield saver

    @asynccontextmanager
    async def aheld(self, config: Any) -> AsyncIterator[Any]:
        """See held."""
        turn = self._turn(config)
        if turn is None:
            yield self._saver
            return
        async with self._fence.aheld(self._saver, turn) as saver:
            yield saver

    def _turn(self, config: Any) -> Turn | AsyncTurn | None:
        turn = turn_of(config)
        if turn is None and not self._allow_unclaimed:
            raise InvalidInput("no_turn", "a checkpoint is written by a turn: run the graph with **claimed(turn)")
        return turn

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Stores a checkpoint."""
        if self._loop is not None:
            return self._on_loop(self.aput(config, checkpoint, metadata, new_versions))
        with self.held(config) as saver:
            return saver.put(config, checkpoint, metadata, new_versions)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Stores a checkpoint."""
        async with self.aheld(config) as saver:
            return await saver.aput(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Stores what a task wrote."""
        if self._loop is not None:
            self._on_loop(self.aput_writes(config, writes, task_id, task_path))
            return
        with self.held(config) as saver:
            saver.put_writes(config, writes, task_id, task_path)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Stores what a task wrote."""
        async with self.aheld(config) as saver:
            await saver.aput_writes(config, writes, task_id, task_path)

    @property
    def _loop(self) -> asyncio.AbstractEventLoop | None:
        """An async saver's event loop; a sync call comes from another OS thread."""
        loop: asyncio.AbstractEventLoop | None = getattr(self._saver, "loop", None)
        return loop

    def _on_loop(self, write: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(write, self._loop).result()

    def delete_thread(self, thread_id: str) -> None:
        """Deletes the checkpoints of a thread: an act of its owner, not of a turn."""
        self._saver.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """See delete_thread."""
        await self._saver.adelete_thread(thread_id)

    # -- reads -------------------------------------------------------------------------------------------------------
    def get_tuple(self, config: Any) -> Any:
        """The checkpoint that the config names, else the latest."""
        self._seen(config)
        return self._saver.get_tuple(config)

    async def aget_tuple(self, config: Any) -> Any:
        """See get_tuple."""
        self._seen(config)
        return await self._saver.aget_tuple(config)

    def _seen(self, config: Any) -> None:
        turn = turn_of(config)
        if turn is not None:
            self._fence.seen(turn)

    def list(self, config: Any, **options: Any) -> Any:
        """Checkpoints, the latest first."""
        return self._saver.list(config, **options)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[Any]:
        """See list."""
        async for found in self._saver.alist(config, **options):
            yield found

    def get_delta_channel_history(self, **options: Any) -> Any:
        """What the saver has for channels that store differences."""
        return self._saver.get_delta_channel_history(**options)

    async def aget_delta_channel_history(self, **options: Any) -> Any:
        """See get_delta_channel_history."""
        return await self._saver.aget_delta_channel_history(**options)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The saver's own versions."""
        return self._saver.get_next_version(current, channel)

    @property
    def config_specs(self) -> Any:
        """The saver's own options."""
        return self._saver.config_specs

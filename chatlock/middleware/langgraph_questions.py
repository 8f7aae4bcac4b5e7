"""A graph that stopped with `interrupt`: what the next turn needs to know of the question is noted where it stopped."""

from __future__ import annotations

import json
from typing import Any

from chatlock import AsyncTurn, Message, Turn
from chatlock.middleware import framework

Command: Any = framework("langgraph.types", "langgraph").Command


def decisions_of(turn: Turn | AsyncTurn) -> dict[str, Any]:
    """The decisions that the turn has, by the question that each answers."""
    return {message.answers: message.payload for message in turn.messages if message.answers}


def texts_of(messages: list[Message]) -> list[Message]:
    """The messages for the graph to read: those that are no decisions."""
    return [message for message in messages if not message.answers]


def written(unread: list[Message]) -> str:
    """Messages that the graph is still to read, as metadata."""
    return json.dumps([vars(message) for message in unread]) if unread else ""


def unread_at(found: Any) -> list[Message]:
    """The messages that turns before have answered with a question, and the graph has not read."""
    noted = found.metadata.get("chatlock_unread") if found is not None else None
    return [Message(**fields) for fields in json.loads(noted)] if noted else []


def decided(turn: Turn | AsyncTurn, found: Any, waiting: list[Any]) -> Any:
    """The input that goes on with a graph that waits: the decision of the question that was asked, for the interrupt
    that asked it; else None: the graph has gone on since, and asks what it asks now.
    """
    given, asked_by = decisions_of(turn), found.metadata.get("chatlock_interrupt")
    question = found.metadata.get("chatlock_question")
    if question in given and asked_by in [interrupt.id for interrupt in waiting]:
        return Command(resume={asked_by: given[question]})
    return None


def noted(turn: Turn | AsyncTurn, head: Any, interrupt: Any, unread: list[Message]) -> tuple[Any, ...]:
    """What a saver is put before the turn asks: the question and its interrupt, and what is still to be read."""
    return put_again(
        head,
        chatlock_question=turn.step_key("question:1"),
        chatlock_interrupt=interrupt.id,
        chatlock_unread=written(unread),
    )


def put_again(head: Any, **noted: Any) -> tuple[Any, ...]:
    """What a saver is put to note something at a checkpoint that is there."""
    configurable = head.config["configurable"]
    thread = {"configurable": {name: configurable[name] for name in ("thread_id", "checkpoint_ns")}}
    return head.parent_config or thread, head.checkpoint, {**head.metadata, **noted}, {}

"""chatlock: one turn per conversation thread, on SQLite and PostgreSQL."""

from __future__ import annotations

from chatlock.admin import Swept
from chatlock.async_client import AsyncChatlock
from chatlock.client import Chatlock
from chatlock.errors import (
    ChatlockError,
    ClaimLost,
    Closed,
    InvalidInput,
    LoginRefused,
    MissingTenant,
    SchemaMismatch,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    TransactionNotImmediate,
    TurnNotFinished,
    TurnNotGranted,
)
from chatlock.handlers import Event
from chatlock.inputs import Key
from chatlock.ops.audit import Receipt
from chatlock.ops.base import Incomplete, Message
from chatlock.ops.stop import CancelReceipt
from chatlock.ops.verify import Breach, Verified
from chatlock.options import ClientOptions, SubmitOptions
from chatlock.policies import Debounce, Interrupt
from chatlock.protocol import (
    AlreadyAnswered,
    Answered,
    Busy,
    Cancelled,
    Conflict,
    Dead,
    Expired,
    Gone,
    Limits,
    NotFound,
    Outcome,
    Parked,
    Queued,
    Refused,
    Superseded,
    Unknown,
)
from chatlock.turn import AsyncTurn, Turn
from chatlock.writes.intents import Delivery

__all__ = [
    "AlreadyAnswered",
    "Answered",
    "AsyncChatlock",
    "AsyncTurn",
    "Breach",
    "Busy",
    "CancelReceipt",
    "Cancelled",
    "Chatlock",
    "ChatlockError",
    "ClaimLost",
    "ClientOptions",
    "Closed",
    "Conflict",
    "Dead",
    "Debounce",
    "Delivery",
    "Event",
    "Expired",
    "Gone",
    "Incomplete",
    "Interrupt",
    "InvalidInput",
    "Key",
    "Limits",
    "LoginRefused",
    "Message",
    "MissingTenant",
    "NotFound",
    "Outcome",
    "Parked",
    "Queued",
    "Receipt",
    "Refused",
    "SchemaMismatch",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "SubmitOptions",
    "Superseded",
    "Swept",
    "TransactionNotImmediate",
    "Turn",
    "TurnNotFinished",
    "TurnNotGranted",
    "Unknown",
    "Verified",
]

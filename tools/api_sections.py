"""What docs/api.md shows, in the order in which a user needs it."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST = ("setup", "handler", "submit")
LAST = ("close",)
"""The methods that come before, and after, all others."""
TWINS = {"AsyncChatlock": "Chatlock", "AsyncTurn": "Turn"}
"""Where what is the same in both is shown."""

HEAD = """\
# API

<!-- Generated from the code and its docstrings by `python -m tools.docs`: edit those. -->

Every public name. Names that end in `_ms` are whole numbers of milliseconds of the database's clock. A JSON value is
what JSON can carry: None, True and False, text, finite numbers, integers up to 2**53, lists, and dicts with text as
keys, at most 64 levels deep. What ids hold: 1 to 200 bytes of UTF-8 without control characters."""


@dataclass(frozen=True)
class Section:
    """A part of the page.  names: what it shows, by module.  defaults: whether its fields are for the caller to set."""

    title: str
    text: str
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: bool = False
    by_module: bool = False
    tables: tuple[str, ...] = ()

    def heading(self, module: str, name: str) -> str:
        """The heading of a name; adapters have names in common, which their modules tell apart."""
        return f"{module.split('.')[-1]}.{name}" if self.by_module else name

    def headings(self) -> dict[str, str]:
        """The headings of its names, and where each is found."""
        return {self.heading(module, n): f"{module}.{n}" for module, names in self.names.items() for n in names}


ADAPTERS = {
    "fastapi": ("router", "turn", "install"),
    "asgi": ("ChatApp", "TurnMiddleware"),
    "slack": ("inbox", "addressed", "Place"),
    "aiogram": ("inbox", "addressed", "Place"),
    "telegram": ("inbox", "InboxQueue", "addressed", "Place"),
    "openai_agents": ("run_turn", "stream_turn", "TurnSession", "stored_session", "conversation_session"),
    "langgraph": ("run_turn", "run_turn_sync", "stream_turn", "claimed", "turn_of", "FencedSaver"),
    "otel": ("instrument",),
}

SECTIONS = (
    Section(
        "Clients",
        "`AsyncChatlock` has the methods of `Chatlock`: they are awaited, but `turn` stands in `async with`, `stream`"
        " and `follow` in `async for`, and `handler`, `on_rollback`, `deliver` and `subscribe` as in sync code."
        " [Embedding](embedding.md) shows them in use.",
        {"chatlock": ("Chatlock", "AsyncChatlock")},
    ),
    Section(
        "Options",
        "Keyword arguments of a client and of its calls. [Policies](policies.md) says what each policy promises, and"
        " [Recovery](recovery.md) what the limits are for.",
        {"chatlock": ("ClientOptions", "SubmitOptions", "Debounce", "Interrupt", "Limits")},
        defaults=True,
    ),
    Section("Types", "Short names in the signatures.", tables=("types",)),
    Section(
        "Turns",
        "What a handler is called with, and what `turn` and `begin` give.",
        {"chatlock": ("Turn", "AsyncTurn", "Message", "Incomplete", "Key")},
    ),
    Section(
        "Outcomes",
        "What becomes of a message, as its caller is told: match on the class. Each has the fields of"
        " [Outcome](#outcome). [Concepts](concepts.md) explains when which comes.",
        {
            "chatlock": (
                *("Outcome", "Answered", "AlreadyAnswered", "Queued", "Busy", "Superseded", "Cancelled", "Expired"),
                *("Dead", "Parked", "Gone", "NotFound", "Conflict", "Refused", "Unknown"),
            )
        },
    ),
    Section(
        "Other answers",
        "What a stream yields, and what the calls of operators return.",
        {"chatlock": ("Event", "Receipt", "CancelReceipt", "Swept", "Verified", "Breach")},
    ),
    Section(
        "Errors",
        "Errors are for misuse, broken setup and a lost claim; what happens to a message is told by an outcome. Exit"
        " codes of the command line stand in [Command line](cli.md), the problems over HTTP in [HTTP](http.md).",
        {
            "chatlock": (
                *("ChatlockError", "ClaimLost", "TurnNotGranted", "TurnNotFinished", "InvalidInput", "MissingTenant"),
                *("TransactionNotImmediate", "SchemaMismatch", "StoreUnavailable", "LoginRefused", "StoreReadOnly"),
                *("StoreFull", "Closed"),
            )
        },
    ),
    Section(
        "Reasons of InvalidInput",
        "`InvalidInput.reason` is one of these words, or `bad_NAME` where the argument NAME is of a wrong type or out"
        " of its bounds.",
        tables=("reasons",),
    ),
    Section(
        "Replies",
        "What the function registered with [deliver](#chatlockdeliver) is called with.",
        {"chatlock": ("Delivery",)},
    ),
    Section(
        "Hooks",
        "What a function registered with [subscribe](#chatlocksubscribe) is called with, from `chatlock.hooks`; see"
        " [Observing](observing.md#hooks). `claim` has `key`, `incarnation`, `token`, `claim_id` and `agent`.",
        tables=("notices",),
    ),
    Section(
        "Testing",
        "`chatlock.testing`: see [Testing your handler](testing-your-handler.md) and [Testing](testing.md). pytest has"
        " the fixtures `chatlock_url` and `chatlock_drill` by itself.",
        {
            "chatlock.testing": (
                *("Drill", "Case", "DrillFailed", "point", "Schedule", "Played", "Step", "ScheduleFailed"),
                *("DatabaseClock", "MonotonicClock", "History", "check"),
            )
        },
    ),
    Section(
        "Adapters",
        "Each is a module of `chatlock.middleware`. Without its framework an import raises `MissingExtra`, a"
        " ChatlockError and an ImportError that names the extra.",
        {f"chatlock.middleware.{name}": names for name, names in ADAPTERS.items()},
        by_module=True,
    ),
    Section(
        "Other modules",
        "Wakes for the option `wake`, migrations in a transaction of your own, metrics, and the receiver of"
        " `dispatch=http`.",
        {
            "chatlock.wake.redis": ("RedisWake",),
            "chatlock.wake.postgres": ("PostgresWake",),
            "chatlock.migrations": ("upgrade", "current", "check", "sql"),
            "chatlock.observe": ("prometheus",),
            "chatlock.service.receiver": ("verify", "accept", "run"),
        },
        by_module=True,
    ),
    Section(
        "Settings",
        "What `chatlock poller` and `chatlock worker` read from the environment and `.env`; the library reads none. See"
        " [Operations](operations.md#settings).",
        tables=("settings",),
    ),
)

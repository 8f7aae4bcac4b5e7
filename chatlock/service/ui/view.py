"""The pages of the view: threads, one thread, dead messages, windows.  Nothing is written, and no payload is read."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from chatlock.cli.facts import why_command, why_frees
from chatlock.cli.output import shown_time
from chatlock.console import Console, Page, Scope, Stuck, ThreadReport, TurnReport, WindowReport
from chatlock.errors import ChatlockError, InvalidInput
from chatlock.inputs import Key, checked_key
from chatlock.service.health import Page as Answer
from chatlock.service.ui.access import PREFIX, Access, Request
from chatlock.service.ui.markup import Markup, Part, joined, table, tag
from chatlock.service.ui.plot import plot
from chatlock.why import Cause
from chatlock.wording import counted, span

DAY_MS = 86_400_000
LISTED = 50
RUNS_PLOTTED = 50_000
REFRESH_S = 15
TABS = {"": "Threads", "/dead": "Dead messages", "/windows": "Windows"}
COLOURS = {
    "running": "good", "done": "good", "sent": "good", "answered": "good",
    "parked": "warn", "failed": "bad", "reclaimed": "bad", "gave_up": "bad", "deleted": "bad",
    Cause.ALIVE: "good", Cause.SILENT: "warn", Cause.DELAYED: "warn", Cause.AWAITING: "warn", Cause.PARKED: "warn",
    Cause.HUNG: "bad", Cause.DEAD: "bad", Cause.CAP: "bad", Cause.NO_WORKER: "bad", Cause.NO_POLLER: "bad",
}  # fmt: skip
STYLE = Path(__file__).with_name("style.css").read_text()
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class View:
    """Answers /ui and what is below it, for whoever has the token."""

    def __init__(self, console: Console, token: str) -> None:
        self._console, self._access = console, Access(token)
        self._pages: dict[str, Callable[[Request], Markup]] = {
            "": self._threads,
            "/thread": self._thread,
            "/dead": self._dead,
            "/windows": self._windows,
        }

    def answer(self, target: str, headers: dict[str, str]) -> Answer:
        """The page for a request line's target."""
        request = Request.of(target, headers)
        exchanged = self._access.exchanged(request)
        if exchanged is not None:
            return Answer(303, b"", headers=HEADERS | exchanged)
        if not self._access.granted(request):
            said = "give the token: Authorization: Bearer TOKEN, or once ?token=TOKEN"
            return _document(401, "No entry", tag("p", said), {"WWW-Authenticate": "Bearer"})
        page = self._pages.get(request.path.removeprefix(PREFIX).rstrip("/"))
        if page is None:
            return _not_found("There is no such page.")
        try:
            return _document(200, "chatlock", page(request), {}, here=request.path.removeprefix(PREFIX).rstrip("/"))
        except KeyError:
            return _not_found("There is no such thread.")
        except InvalidInput as error:
            return _document(400, "Bad request", tag("p", str(error)), {})
        except ChatlockError as error:
            return _document(503, "No answer", tag("p", str(error)), {})

    # -- the pages ---------------------------------------------------------------------------------------------------
    def _threads(self, request: Request) -> Markup:
        top = self._console.top(Scope(None), LISTED)
        after = Key(request.query.get("tenant", ""), request.query.get("thread", ""))
        listed = self._console.threads(Scope(None), Page(LISTED, after))
        dead = self._console.dead(Scope(None), DAY_MS, LISTED)
        waiting = sum(load.waiting for load in top.loads)
        oldest_ms = max((load.oldest_due_ms for load in top.loads), default=0)
        more = _link(PREFIX, listed[-1].key, "next page") if len(listed) == LISTED else None
        return joined(
            [
                tag("h1", "Threads"),
                tag(
                    "div",
                    _card("stuck", _upto(len(top.stuck)), bad=bool(top.stuck)),
                    _card("running", str(sum(load.running for load in top.loads))),
                    _card("waiting", str(waiting)),
                    _card("longest due", span(oldest_ms) if waiting else "-"),
                    _card("dead in 24 h", _upto(len(dead)), bad=bool(dead)),
                    class_="cards",
                ),
                tag("h2", "Stuck", tag("small", "should have moved 30 s ago")),
                table(
                    ("Tenant", "Thread", "Since", "Cause", "Why"),
                    [_stuck(stuck) for stuck in top.stuck],
                    "No thread is stuck.",
                ),
                tag("h2", "Running", tag("small", "the longest first")),
                _list(top.running, "No turn runs."),
                tag("h2", "All threads", tag("small", "by name")),
                _list(listed, "There is no thread."),
                tag("p", more, class_="more"),
            ]
        )

    def _thread(self, request: Request) -> Markup:
        key = checked_key(request.query.get("tenant"), request.query.get("thread", ""))
        view = self._console.thread(key, payloads=False)
        if view is None:
            raise KeyError(key)
        thread, why = view.thread, view.why
        pending = [
            [
                m.seq,
                tag("code", m.message_id),
                m.policy,
                shown_time(m.received_at),
                m.payload_chars,
                "yes" if m.in_turn else "no",
            ]
            for m in view.messages
        ]
        intents = [
            [i.token, i.name, _pill(i.state), i.attempts, shown_time(i.created_at), i.error] for i in view.intents
        ]
        return joined(
            [
                tag("h1", thread.thread_id, " ", _pill(thread.status)),
                tag(
                    "div",
                    _pill(why.cause),
                    tag("p", why.text, "; ", why_frees(why)),
                    tag("code", why_command(thread, why)),
                    class_="why",
                ),
                tag("h2", "Thread"),
                table(
                    ("Tenant", "Agent", "Token", "Incarnation", "Pending", "Attempts", "Stalls", "Owner", "Created"),
                    [
                        [
                            thread.tenant,
                            thread.agent,
                            thread.token,
                            thread.incarnation,
                            thread.pending,
                            thread.attempts,
                            thread.stalls,
                            thread.owner,
                            shown_time(thread.created_at),
                        ]
                    ],
                    "",
                ),
                tag("h2", "Pending messages", tag("small", "payloads are hidden")),
                table(
                    ("Seq", "Message", "Policy", "Received", "Characters", "In turn"), pending, "No message is pending."
                ),
                tag("h2", "Turns", tag("small", "the latest first")),
                table(
                    ("Turn", "State", "Agent", "Messages", "Started", "Took", "Owner", "Error"),
                    [_turn(turn, thread.now) for turn in view.turns],
                    "No turn has run.",
                ),
                tag("h2", "Intents"),
                table(("Turn", "Name", "State", "Attempts", "Created", "Error"), intents, "Nothing was to be sent."),
            ]
        )

    def _dead(self, request: Request) -> Markup:
        found = self._console.dead(Scope(None), 30 * DAY_MS, LISTED)
        rows: list[list[Part]] = [
            [
                m.tenant,
                _thread_link(Key(m.tenant, m.thread_id)),
                tag("code", m.message_id),
                shown_time(m.received_at),
                m.turn,
                m.error,
                m.payload_chars,
            ]
            for m in found
        ]
        return joined(
            [
                tag("h1", "Dead messages"),
                tag("p", "Given up after their attempts in the last 30 days, the latest first. ", class_="soft"),
                table(
                    ("Tenant", "Thread", "Message", "Received", "Last turn", "Error", "Characters"),
                    rows,
                    "No message was given up.",
                ),
            ]
        )

    def _windows(self, request: Request) -> Markup:
        found = [self._window(window) for window in self._console.windows(None)]
        legend = tag("p", tag("i"), "run", tag("i", class_="line"), "window in force", class_="legend soft")
        return joined(
            [
                tag("h1", "Windows"),
                legend if found else tag("p", "No run has been counted yet.", class_="empty"),
                found,
            ]
        )

    def _window(self, window: WindowReport) -> Markup:
        days = 7 if window.runs <= RUNS_PLOTTED else 1
        runs = self._console.judged_runs(window.agent, days * DAY_MS)
        longest = f"longest run {span(window.longest_ms)} · {counted(window.runs, 'run')}"
        said = f"window in force {span(window.window_ms)} · {longest}"
        return tag("section", tag("h2", window.agent), tag("p", said), plot(runs) if runs else None, class_="plot")


def _card(name: str, value: str, *, bad: bool = False) -> Markup:
    return tag("div", tag("span", name), tag("b", value), class_="card bad" if bad else "card")


def _upto(count: int) -> str:
    return f"{count}+" if count == LISTED else str(count)


def _pill(word: str) -> Markup:
    return tag("span", word.replace("_", " "), class_=f"pill {COLOURS.get(word, '')}".strip())


def _link(path: str, key: Key, text: str) -> Markup:
    return tag("a", text, href=f"{path}?{urlencode({'tenant': key.tenant, 'thread': key.thread})}")


def _thread_link(key: Key) -> Markup:
    return _link(f"{PREFIX}/thread", key, key.thread)


def _stuck(stuck: Stuck) -> list[Part]:
    thread = stuck.thread
    return [
        thread.tenant,
        _thread_link(thread.key),
        span(stuck.stuck_ms),
        _pill(stuck.why.cause),
        stuck.why.text,
    ]


def _list(threads: list[ThreadReport], empty: str) -> Markup:
    rows = [
        [
            thread.tenant,
            _thread_link(thread.key),
            _pill(thread.status),
            thread.agent,
            thread.pending,
            thread.turn,
            f"{span(thread.now - thread.claimed_at)} ago" if thread.claimed_at is not None else None,
            thread.owner,
        ]
        for thread in threads
    ]
    return table(("Tenant", "Thread", "Status", "Agent", "Pending", "Turn", "Claimed", "Owner"), rows, empty)


def _turn(turn: TurnReport, now: int) -> list[Part]:
    messages = None if turn.to_seq is None else f"{turn.from_seq + 1} to {turn.to_seq}"
    took = span((turn.ended_at if turn.ended_at is not None else now) - turn.started_at)
    facts: list[Part] = [turn.agent, messages, shown_time(turn.started_at), took, turn.owner, turn.error]
    return [turn.token, _pill(turn.state), *facts]


def _not_found(text: str) -> Answer:
    return _document(404, "Not found", tag("p", text), {})


def _document(status: int, title: str, body: Markup, headers: dict[str, str], *, here: str | None = None) -> Answer:
    """A whole page; with `here` it has the tabs, and lists look again by themselves."""
    tabs = [tag("a", name, href=PREFIX + path, class_="here" if path == here else None) for path, name in TABS.items()]
    content = body if here is not None else joined([tag("h1", title), body])
    page = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", http_equiv="refresh", content=str(REFRESH_S)) if here in TABS else None,
            tag("title", title),
            tag("style", Markup(STYLE)),
        ),
        tag(
            "body",
            tag("header", tag("b", "chatlock"), tag("nav", tabs if here is not None else None)),
            tag("main", content),
        ),
        lang="en",
    )
    return Answer(status, f"<!doctype html>{page}".encode(), "text/html; charset=utf-8", HEADERS | headers)

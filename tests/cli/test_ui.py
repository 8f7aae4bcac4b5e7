"""The web view over HTTP: who may look, what is shown, and that nothing is told, loaded or written."""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
from typing import TYPE_CHECKING, NamedTuple

import pytest
from pydantic import ValidationError

from chatlock.console import Console
from chatlock.service import Service
from chatlock.service.health import HealthServer
from chatlock.service.ui import View
from chatlock.settings import Settings
from tests.conformance import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.scene import Scene

TOKEN = "a token of the tests"
OPEN = {"Authorization": f"Bearer {TOKEN}"}
PAGES = ["/ui", "/ui/", "/ui/dead", "/ui/windows", "/ui/thread?tenant=acme&thread=poison"]
HOSTILE = "</td><script>alert(1)</script>'\"\u202e\x1b[31m"


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Site:
    def __init__(self, server: HealthServer) -> None:
        self.server = server
        server.start()

    def get(self, target: str, headers: dict[str, str] | None = None, method: str = "GET") -> Told:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            connection.request(method, target, headers=headers or {})
            answer = connection.getresponse()
            return Told(answer.status, dict(answer.headers.items()), answer.read().decode())
        finally:
            connection.close()


@pytest.fixture
def site(scene: Scene) -> Iterator[Site]:
    made = Site(HealthServer("127.0.0.1", 0, {}, View(Console(scene.executor), TOKEN).answer))
    yield made
    made.server.close()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer "},
        {"Cookie": f"chatlock_ui={TOKEN}"},
        {"Cookie": "chatlock_ui=\x80; ;=;"},
    ],
    ids=["none", "wrong", "scheme", "empty", "cookie", "broken"],
)
def test_without_the_token_nothing_is_shown(headers: dict[str, str]) -> None:
    view = View(None, TOKEN)  # type: ignore[arg-type]  # nothing is asked of the database
    for target in [*PAGES, "/ui/elsewhere"]:
        told = view.answer(target, headers)
        assert (told.status, told.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert TOKEN not in told.body.decode()


def test_a_wrong_token_in_the_address_sets_no_cookie(site: Site) -> None:
    told = site.get("/ui?token=wrong")
    assert (told.status, "Set-Cookie" in told.headers) == (401, False)


def test_the_token_in_the_address_is_changed_for_a_cookie_once(site: Site) -> None:
    told = site.get(f"/ui/thread?tenant=acme&token={TOKEN.replace(' ', '+')}&thread=poison")
    assert (told.status, told.headers["Location"]) == (303, "/ui/thread?tenant=acme&thread=poison")
    cookie = told.headers["Set-Cookie"]
    assert re.fullmatch(r"chatlock_ui=[0-9a-f]{64}; Path=/ui; HttpOnly; SameSite=Strict", cookie)
    assert site.get(told.headers["Location"], {"Cookie": cookie.partition(";")[0]}).status == 200


def test_the_way_back_stays_on_the_site(site: Site) -> None:
    told = site.get(f"/ui//elsewhere.example/?token={TOKEN.replace(' ', '+')}")
    assert told.headers["Location"].startswith("/ui/")


def test_no_page_loads_anything_or_tells_a_payload(site: Site) -> None:
    for target in PAGES:
        assert_harmless(site.get(target, {"authorization": f"bearer {TOKEN}"}))


def assert_harmless(told: Told) -> None:
    assert told.status == 200
    policy = told.headers["Content-Security-Policy"]
    style = re.findall(r"<style>(.*?)</style>", told.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ")
    assert (len(style), "unsafe" in policy) == (1, False)
    assert (told.headers["Referrer-Policy"], told.headers["Cache-Control"]) == ("no-referrer", "no-store")
    assert not re.search(r"\bsrc=|url\(|@import|<script|<link|<form|style=|://", told.text)
    assert not [word for word in ("hello", "boom", "evil") if word in told.text]


def test_stuck_threads_come_first_with_their_cause(site: Site) -> None:
    text = site.get("/ui", OPEN).text
    assert text.index("<h2>Stuck") < text.index(">untaken</a>") < text.index("<h2>Running") < text.index(">hung</a>")
    assert '<span class="pill bad">no worker</span>' in text
    assert site.get("/ui?tenant=acme&thread=silent", OPEN).text.count(">alive</a>") == 1  # among those that run alone


def test_a_thread_is_told_with_its_cause_and_the_command_for_now(site: Site) -> None:
    text = site.get("/ui/thread?tenant=acme&thread=stale", OPEN).text
    assert "holder dead" in text
    assert "<code>chatlock threads free --turn 1 --reason WHY --tenant acme stale</code>" in text
    assert "gave up" in site.get("/ui/thread?tenant=acme&thread=poison", OPEN).text
    alive = site.get("/ui/thread?tenant=acme&thread=hung", OPEN).text
    assert "to end a turn that lives:</p><code>chatlock threads free --turn 1 --force" in alive


def test_dead_messages_and_windows_are_told(site: Site, scene: Scene) -> None:
    assert "<code>p1</code>" in site.get("/ui/dead", OPEN).text
    text = site.get("/ui/windows", OPEN).text
    assert "crawler" in text
    assert "<svg" not in text  # its runs are counted, but not kept


def test_runs_are_plotted_against_the_window(fresh: Scene) -> None:
    now = fresh.clock.now_ms
    for n, run_ms in enumerate([4_000] * 10 + [20_000, 900_000, 5_000]):
        end = now - (20 - n) * 1_000_000
        fresh.execute(
            "INSERT INTO chatlock_turns(tenant, thread_id, incarnation, token, claim_id, agent, from_seq, to_seq,"
            " state, started_at, ended_at)"
            f" VALUES ('acme', 't{n}', 1, 1, 'c', 'a', 0, 1, 'done', {end - run_ms}, {end})"
        )
    fresh.execute(
        f"INSERT INTO chatlock_windows(agent, day, longest_ms, runs) VALUES ('a', {now // 86_400_000}, 900000, 13)"
    )
    text = View(Console(fresh.executor), TOKEN).answer("/ui/windows", OPEN).body.decode()
    assert text.count("<circle") == 13
    assert text.count('class="run over"') == 1  # 900 s, where the window was 60 s
    ((path,),) = [re.findall(r'<path d="([^"]+)" class="window"/>', text)]
    assert path.count("V") == 2  # from 10 min to 60 s after ten runs, and up after the long one


def test_people_s_words_are_text(fresh: Scene) -> None:
    fresh.send("t", "m1")
    # as a database could hold it that others write to
    for table in ("threads", "messages", "due"):
        fresh.execute(f"UPDATE chatlock_{table} SET thread_id = '{HOSTILE.replace(chr(39), chr(39) * 2)}'")
    view = View(Console(fresh.executor), TOKEN)
    page = view.answer("/ui", OPEN).body.decode()
    assert "&lt;script&gt;" in page
    assert not re.search("<script|\u202e|\x1b", page)
    (link,) = set(re.findall(r'href="(/ui/thread[^"]+)"', page))
    assert view.answer(link.replace("&amp;", "&"), OPEN).status in (200, 400)  # no client can make such a thread


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/ui/elsewhere", 404),
        ("/ui/thread?tenant=acme&thread=nobody", 404),
        ("/ui/thread?tenant=beta&thread=poison", 404),
        ("/ui/thread", 400),
        ("/uis", 404),
    ],
)
def test_what_is_not_there(site: Site, target: str, status: int) -> None:
    assert site.get(target, OPEN).status == status


def test_nothing_is_written_and_only_get_is_known(site: Site, scene: Scene) -> None:
    before = rows.dump(scene.database)
    for target in PAGES:
        site.get(target, OPEN)
        assert site.get(target, OPEN, method="POST").status == 501
    assert rows.dump(scene.database) == before


def test_the_service_has_it_only_with_a_token(scene: Scene) -> None:
    settings = {"url": scene.database.url, "dispatch": "http", "http_url": "http://app/", "http_secret": "s", "port": 0}
    for token, status in ((None, 404), (TOKEN, 200)):
        service = Service(Settings(_env_file=None, ui_token=token, **settings))
        site = Site(service.health)
        try:
            assert site.get("/ui", OPEN).status == status
            assert site.get("/livez").status == 200
        finally:
            service.health.close()
            service.executor.close()
    with pytest.raises(ValidationError, match="at least 16"):
        Settings(_env_file=None, ui_token="short", **settings)

"""The recipes: their code runs, with the framework's own test model, client or worker."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from chatlock.service.signature import HEADER, sign
from tests.support import ROOT
from tests.support.pages import Block, blocks_of
from tests.support.waiting import until

BLOCKS = {page.stem: blocks_of(page) for page in sorted((ROOT / "docs" / "recipes").glob("*.md"))}
ELSEWHERE = {"django", "celery", "twilio", "whatsapp", "google-adk"}  # the last one in adk_recipe.py
WHOLE = [block for recipe, blocks in BLOCKS.items() if recipe not in ELSEWHERE for block in blocks]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipes' chat.db is a file in the working directory."""
    monkeypatch.chdir(tmp_path)


def names_of(recipe: str) -> dict[str, Any]:
    """What the only block of a recipe defines."""
    (block,) = BLOCKS[recipe]
    return block.run()


@pytest.mark.parametrize("block", WHOLE, ids=[f"{Path(block.page).stem}-{block.number}" for block in WHOLE])
def test_recipe_runs(block: Block) -> None:
    block.run()


# -- Django ------------------------------------------------------------------------------------------------------------
def test_django_view_answers_sync_and_async() -> None:
    import django
    from django.conf import settings
    from django.test import AsyncClient, Client

    names = names_of("django")
    # Django refuses to run an async view in a transaction: the views have to be exempt.
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "ATOMIC_REQUESTS": True}
    settings.configure(ROOT_URLCONF=tuple(names["urlpatterns"]), DATABASES={"default": database}, SECRET_KEY="s")
    django.setup()
    names["chat"].setup()
    calls = [("m1", "hello"), ("m1", "hello"), ("m1", "other"), ("m2", "again")]
    answers = [
        (200, {"turn": 1, "reply": "You said: hello"}),
        (200, {"turn": 1, "reply": "You said: hello"}),
        (409, {"outcome": "Conflict"}),
        (200, {"turn": 2, "reply": "You said: again"}),
    ]

    def of(path: str, text: str) -> dict[str, Any]:
        return {"path": path, "data": {"text": text}, "content_type": "application/json"}

    sync = [Client().post(**of(f"/threads/t1/messages/{name}", text)) for name, text in calls]
    assert [(response.status_code, response.json()) for response in sync] == answers
    assert Client().get("/threads/t1/messages/m1").status_code == 405
    for body in ("{", '"\\u0000"'):
        assert Client().post("/threads/t1/messages/m3", body, content_type="application/json").status_code == 400
    names["chat"].delete("t1")
    assert Client().post(**of("/threads/t1/messages/m3", "late")).json() == {"outcome": "Gone"}
    names["chat"].close()

    async def posted() -> list[Any]:
        async with names["async_chat"]:
            client = AsyncClient()
            return [await client.post(**of(f"/async/threads/t2/messages/{name}", text)) for name, text in calls]

    assert [(response.status_code, response.json()) for response in asyncio.run(posted())] == answers


# -- Celery ------------------------------------------------------------------------------------------------------------
def test_celery_worker_runs_what_is_due_once(capsys: pytest.CaptureFixture[str]) -> None:
    from celery.contrib.testing.worker import start_worker

    names = names_of("celery")
    chat, wake, secret = names["chat"], names["wake"], names["SECRET"]
    body = json.dumps({"tenant": "acme", "thread": "t1"}).encode()

    def woken(by: str) -> int:
        return int(wake({HEADER: sign(by, int(time.time()), body)}, body))

    def answered(message_id: str) -> bool:
        return getattr(chat.status("t1", message_id), "reply", None) == "You said: hello"

    chat.setup()
    with type(chat)("sqlite:///chat.db", tenant="acme", poller=False) as web:
        web.submit("t1", {"text": "hello"}, message_id="m1", wait_ms=0)
        assert woken("another secret") == 401
        assert [woken(secret), woken(secret)] == [202, 202]
        assert not answered("m1"), "no worker is there yet"
        with start_worker(names["app"], perform_ping_check=False):
            until(lambda: answered("m1"), what="the answer")
            web.submit("t1", {"text": "hello"}, message_id="m2", wait_ms=0)
            woken(secret)
            until(lambda: answered("m2"), what="the second answer")
    assert chat.status("t1", "m1").turn == 1
    assert chat.status("t1", "m2").turn == 2, "the task too many ran no turn"
    assert capsys.readouterr().out.splitlines() == ["t1 You said: hello"] * 2
    chat.close()


# -- Twilio ------------------------------------------------------------------------------------------------------------
FORM = {
    "MessageSid": "SM1",
    "From": "whatsapp:+14155550123",
    "To": "whatsapp:+14155550100",
    "Body": "zwei Kaffee, größer bitte",
    "NumMedia": "1",
    "MediaUrl0": "https://api.twilio.com/media/1",
}


def signature(url: str, form: dict[str, str], token: str) -> str:
    """As Twilio documents it: the URL, then each name and value in order of the names, by HMAC-SHA1."""
    text = url + "".join(name + form[name] for name in sorted(form))
    return base64.b64encode(hmac.new(token.encode(), text.encode(), hashlib.sha1).digest()).decode()


def test_twilio_message_is_stored_when_its_200_comes_and_answered_once() -> None:
    from twilio.http.http_client import TwilioHttpClient
    from twilio.http.response import Response

    names = names_of("twilio")
    chat, url, token = names["chat"], names["URL"], names["AUTH_TOKEN"]

    class Recorded(TwilioHttpClient):
        """What would have gone to Twilio."""

        sent: list[tuple[str, str, dict[str, str]]] = []  # noqa: RUF012

        def request(self, method: str, url: str, **parts: Any) -> Response:
            self.sent.append((method, url, dict(parts["data"])))
            return Response(201, json.dumps({"sid": "SM9", "num_segments": "1"}))

    names["twilio"].http_client = Recorded()

    async def scenario() -> None:
        async with chat, httpx.AsyncClient(transport=httpx.ASGITransport(names["app"]), base_url="http://app") as http:
            await chat.setup()

            async def posted(form: dict[str, str], signed: str | None) -> int:
                headers = {"Content-Type": "application/x-www-form-urlencoded"}
                headers |= {} if signed is None else {"X-Twilio-Signature": signed}
                return (await http.post("/twilio", content=urlencode(form), headers=headers)).status_code

            good = signature(url, FORM, token)
            refused = [None, signature(url, FORM, "other"), signature(f"{url}/", FORM, token)]
            assert [await posted(FORM, signed) for signed in refused] == [403] * 3
            assert await posted(FORM | {"Body": "another"}, good) == 403
            assert (
                await http.post("/twilio", content=b"\xff", headers={"X-Twilio-Signature": good})
            ).status_code == 403
            thread = f"{FORM['To']}/{FORM['From']}"
            assert type(await chat.status(thread, "SM1")).__name__ == "NotFound"

            assert [await posted(FORM, good), await posted(FORM, good)] == [200, 200]
            assert type(await chat.status(thread, "SM1")).__name__ != "NotFound"
            await asyncio.to_thread(until, lambda: Recorded.sent, what="the reply")
        assert [(method, dict(data)) for method, _, data in Recorded.sent] == [
            ("POST", {"From": FORM["To"], "To": FORM["From"], "Body": f"You said: {FORM['Body']}"})
        ]

    asyncio.run(scenario())


# -- WhatsApp ----------------------------------------------------------------------------------------------------------
def posted_by_meta(*messages: tuple[str, str, str], **more: Any) -> bytes:
    """A request of the webhook, shaped as Meta's reference has it; a message is (from, id, text)."""
    shaped = [
        {"from": sender, "id": message_id, "timestamp": "1796000000", "type": "text", "text": {"body": text}}
        for sender, message_id, text in messages
    ]
    number = {"display_phone_number": "14155550100", "phone_number_id": "100200"}
    value = {"messaging_product": "whatsapp", "metadata": number, **more} | ({"messages": shaped} if shaped else {})
    entry = {"id": "300", "changes": [{"field": "messages", "value": value}]}
    return json.dumps({"object": "whatsapp_business_account", "entry": [entry]}).encode()


def test_whatsapp_messages_of_one_request_are_stored_before_its_200_and_answered_once() -> None:
    names = names_of("whatsapp")
    chat, secret, word = names["chat"], names["APP_SECRET"], names["VERIFY_TOKEN"]
    sent: list[tuple[str, Any]] = []

    def graph(request: httpx.Request) -> httpx.Response:
        sent.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json={"messages": [{"id": "wamid.reply"}]})

    names["graph"] = httpx.Client(transport=httpx.MockTransport(graph), base_url=str(names["graph"].base_url))
    status = {"id": "wamid.earlier", "status": "read", "timestamp": "1796000000", "recipient_id": "123"}
    both = posted_by_meta(("123", "wamid.1", "zwei Kaffee"), ("456", "wamid.2", "größer"), statuses=[status])
    again = posted_by_meta(("123", "wamid.1", "zwei Kaffee"))

    async def scenario() -> None:
        async with chat, httpx.AsyncClient(transport=httpx.ASGITransport(names["app"]), base_url="http://app") as http:
            await chat.setup()

            async def confirmed(token: str) -> tuple[int, str]:
                asked = {"hub.mode": "subscribe", "hub.verify_token": token, "hub.challenge": "1158201444"}
                answer = await http.get("/whatsapp", params=asked)
                return answer.status_code, answer.text

            async def posted(body: bytes, by: str) -> int:
                signed = "sha256=" + hmac.new(by.encode(), body, hashlib.sha256).hexdigest()
                return (await http.post("/whatsapp", content=body, headers={"X-Hub-Signature-256": signed})).status_code

            assert (await confirmed(word), (await confirmed("another"))[0]) == ((200, "1158201444"), 403)
            assert (
                await posted(both, "another secret") == (await http.post("/whatsapp", content=both)).status_code == 403
            )
            assert type(await chat.status("100200/123", "wamid.1")).__name__ == "NotFound"

            assert await posted(both, secret) == 200
            for thread, message_id in (("100200/123", "wamid.1"), ("100200/456", "wamid.2")):
                assert type(await chat.status(thread, message_id)).__name__ != "NotFound"
            assert [await posted(again, secret), await posted(posted_by_meta(statuses=[status]), secret)] == [200, 200]
            await asyncio.to_thread(until, lambda: len(sent) == 2, what="the replies")
        assert sorted((path, told["to"], told["text"]["body"]) for path, told in sent) == [
            ("/v23.0/100200/messages", "123", "You said: zwei Kaffee"),
            ("/v23.0/100200/messages", "456", "You said: größer"),
        ]

    asyncio.run(scenario())

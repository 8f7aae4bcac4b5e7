"""The endpoints against a real server, by the FastAPI router and by the pure ASGI application."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from chatlock import Chatlock
from tests.frameworks.conftest import Front, named, row_of
from tests.support.waiting import until

if TYPE_CHECKING:
    import httpx

    from tests.support.databases import Database


def answered(front: Front, key: str) -> bool:
    return bool(front.get(key).json()["outcome"] == "already_answered")


def test_message_is_answered(front: Front) -> None:
    answer = front.post(key="k")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert (answer.json()["outcome"], answer.json()["reply"]) == ("answered", "one two")
    assert front.http.get(answer.headers["content-location"]).json()["reply"] == "one two"


@pytest.mark.parametrize("again", ["k", '"k"'])
def test_repeated_key_gets_the_stored_answer(front: Front, again: str) -> None:
    first, second = front.post(key="k"), front.post(key=again)
    assert second.status_code == 200
    assert second.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert second.json()["reply"] == first.json()["reply"]
    assert front.runs == 1


def test_quoted_key_may_hold_what_has_to_be_escaped(front: Front) -> None:
    front.post(key='"a \\"b\\" \\\\"')
    assert front.get('a "b" \\').json()["message_id"] == 'a "b" \\'


def test_message_without_a_key_is_a_new_one_each_time(front: Front) -> None:
    assert {front.post().json()["seq"] for _ in range(2)} == {1, 2}


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_key_used_with_another_payload_is_refused(front: Front, accept: str) -> None:
    gate = front.hold()
    front.post("one", key="k", Prefer="respond-async")
    gate.wait_entered()
    answer = front.post("two", key="k", Accept=accept)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:chatlock:problem:idempotency-key-reused"
    gate.open()


def test_accepted_message_is_stored_before_it_is_told(front: Front) -> None:
    gate = front.hold()
    answer = front.post(key="k", Prefer="respond-async")
    assert answer.status_code == 202
    assert (int(answer.headers["retry-after"]) > 0, answer.headers["preference-applied"]) == (True, "respond-async")
    where = answer.headers["location"]
    assert front.http.get(where).json()["outcome"] == "queued"
    gate.open()
    until(lambda: answered(front, "k"), what="the answer")
    assert front.runs == 1


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        ("wait=0", "wait=0"),
        ("respond-async, wait=0", "respond-async, wait=0"),
        ("handling=strict, RESPOND-ASYNC", "respond-async"),
    ],
)
def test_wait_that_is_over_leaves_the_turn_running(front: Front, prefer: str, applied: str) -> None:
    gate = front.hold()
    answer = front.post(key="k", Prefer=prefer)
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, applied)
    gate.open()
    assert front.post(key="k").json()["reply"] == "one two"
    assert front.runs == 1


def test_wait_is_as_long_as_the_turn(front: Front) -> None:
    assert front.post(Prefer="respond-async, wait=50").status_code == 200


def test_queued_caller_learns_position_and_estimate(front: Front, served: Database) -> None:
    yesterday = int(time.time() * 1000) // 86_400_000 - 1
    served.connect().execute(
        "INSERT INTO chatlock_windows(agent, day, longest_ms, total_ms, runs)"
        f" VALUES ('default', {yesterday}, 20000, 20000000, 1000) ON CONFLICT DO NOTHING"
    )
    gate = front.hold()
    front.post(key="one", Prefer="wait=0")
    gate.wait_entered()
    behind = front.post(key="two", Prefer="wait=0")
    assert behind.json()["position"] == 1
    assert 10_000 < behind.json()["eta_ms"] <= 40_000
    assert behind.headers["retry-after"] == "10"
    gate.open()


def test_etag_names_the_turn_and_if_match_wants_it(front: Front) -> None:
    gate = front.hold()
    front.post(key="one", Prefer="wait=0")
    gate.wait_entered()
    etag = front.get("one").headers["etag"]
    assert etag == '"1-1"'
    assert front.post(key="two", Prefer="wait=0", If_Match=etag).status_code == 202
    stale = front.post(key="three", If_Match='"1-7"')
    assert (stale.status_code, stale.json()["reason"]) == (412, "other_turn")
    gate.open()
    until(lambda: answered(front, "two"), what="the answer")
    assert front.post(key="four", If_Match=etag).status_code == 412
    assert [front.get(key).status_code for key in ("three", "four")] == [404, 404]


@pytest.mark.parametrize("etag", ["*", "1-1", 'W/"1-1"', '"1-1", "1-2"', '"x"', '""'])
def test_malformed_if_match_is_refused(front: Front, etag: str) -> None:
    assert front.post(If_Match=etag).json()["type"] == "urn:chatlock:problem:bad-if-match"


def test_events_are_streamed_as_they_come(front: Front) -> None:
    gate = front.hold()
    data = []
    with front.events(key="k") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        for line in response.iter_lines():
            if line.startswith("data: "):
                data.append(json.loads(line[6:]))
                gate.open()
    stored, *chunks, outcome = data
    assert (stored["outcome"], stored["message_id"], stored["turn"]) == ("queued", "k", 1)
    assert (chunks, outcome["reply"]) == (["one ", "two"], "one two")


def test_turn_of_a_message_is_told_to_whoever_wants_to_stop_it(front: Front) -> None:
    gate = front.hold()
    front.post(key="k", Prefer="respond-async")
    gate.wait_entered()
    with front.http.stream("GET", f"{front.messages}/k/events") as response:
        lines = response.iter_lines()
        data = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
        assert (data["message_id"], data["incarnation"], data["turn"]) == ("k", 1, 1)
    too_late = front.cancel("k")
    assert (too_late.status_code, too_late.headers["etag"], too_late.json()["turn"]) == (409, '"1-1"', 1)
    stop = f"{front.base}/threads/{front.thread}/cancel"
    assert front.http.post(stop, headers={"If-Match": too_late.headers["etag"]}).status_code == 202
    gate.open()


def test_events_of_an_answered_message_are_its_reply(front: Front) -> None:
    front.post(key="k")
    text = front.get("k", "/events").text
    assert 'event: reply\ndata: "one two"' in text
    assert "id: k-outcome\nevent: outcome\n" in text


@pytest.mark.parametrize(("last_id", "first"), [("1-1-1", '"two"'), ("1-0-9", '"one "'), ("what", '"one "')])
def test_events_go_on_after_the_last_one_seen(front: Front, last_id: str, first: str) -> None:
    gate = front.hold()
    front.post(key="k", Prefer="respond-async")
    gate.wait_entered()
    with front.http.stream("GET", f"{front.messages}/k/events", headers={"Last-Event-ID": last_id}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("retry: ")
        gate.open()
        data = [line for line in lines if line.startswith("data: ")]
    assert data[0] == f"data: {first}"


def test_client_that_has_seen_the_last_event_is_told_to_stop(front: Front) -> None:
    front.post(key="k")
    assert front.get("k", "/events", Last_Event_ID="k-outcome").status_code == 204


def test_stream_begins_with_a_problem_where_nothing_is_stored(front: Front) -> None:
    with front.events(If_Match='"1-7"') as response:
        assert (response.status_code, response.headers["content-type"]) == (412, "application/problem+json")


def test_pending_message_is_cancelled(front: Front) -> None:
    gate = front.hold()
    front.post(key="one", Prefer="respond-async")
    gate.wait_entered()
    front.post(key="two", Prefer="respond-async")
    assert front.cancel("two").json()["outcome"] == "cancelled"
    in_turn = front.cancel("one")
    assert (in_turn.status_code, in_turn.json()["type"]) == (409, "urn:chatlock:problem:in-turn")
    gate.open()
    again = front.post(key="two")
    assert (again.status_code, again.json()["type"]) == (409, "urn:chatlock:problem:message-cancelled")


def test_edit_takes_the_place_of_a_message_that_waits(front: Front) -> None:
    gate = front.hold()
    front.post("one", key="one", Prefer="wait=0")
    gate.wait_entered()
    front.post("two", key="two", Prefer="wait=0")

    def edit(key: str, payload: str, edit_id: str, user: str = "ann") -> httpx.Response:
        headers = {"Idempotency-Key": edit_id, "X-User": user}
        return front.http.patch(f"{front.messages}/{key}", json=payload, headers=headers)

    conditional = front.http.patch(f"{front.messages}/two", json="two!", headers={"If-Match": '"1-9"'})
    assert conditional.json()["type"] == "urn:chatlock:problem:bad-if-match"
    told = edit("two", "two!", "edit")
    assert (told.status_code, told.json()["outcome"], told.json()["message_id"]) == (202, "queued", "edit")
    assert edit("two", "two!", "edit").json()["seq"] == told.json()["seq"]
    assert front.http.get(told.headers["location"]).json()["message_id"] == "edit"
    assert edit("two", "other", "edit").status_code == 422
    assert edit("two", "two!!", "late").json()["type"] == "urn:chatlock:problem:message-superseded"
    in_turn = edit("one", "one!", "e1")
    assert (in_turn.status_code, in_turn.json()["type"]) == (409, "urn:chatlock:problem:in-turn")
    theirs, nothing = edit("edit", "x", "e2", "bob"), edit("nothing", "x", "e2")
    assert (theirs.status_code, theirs.content) == (404, nothing.content)
    gate.open()
    until(lambda: answered(front, "edit"), what="the answer")
    assert edit("two", "two!", "edit").headers["idempotency-replayed"] == "true"
    answer = edit("one", "one!", "e3")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:chatlock:problem:message-answered")
    assert front.get("two").json()["outcome"] == "superseded"
    assert front.runs == 2


@pytest.mark.parametrize("of", ["", "/events", "/cancel"])
def test_other_tenant_sees_what_never_existed(front: Front, of: str) -> None:
    front.post(key="k")
    method = "POST" if of == "/cancel" else "GET"

    def ask(key: str, user: str) -> tuple[int, bytes, dict[str, str]]:
        answer = front.http.request(method, f"{front.messages}/{key}{of}", headers={"X-User": user})
        return answer.status_code, answer.content, {k: v for k, v in answer.headers.items() if k != "date"}

    assert ask("k", "bob") == ask("nothing", "bob")
    assert ask("k", "bob")[0] == 404
    assert ask("k", "ann")[0] == 200


def test_tenants_with_one_thread_name_and_key_are_apart(front: Front) -> None:
    gate = front.hold()
    front.post("ann's", key="k", Prefer="respond-async")
    forged = {"tenant": "ann", "thread": front.thread, "message_id": "k"}
    theirs = front.post(forged, key="k", X_User="bob", Prefer="respond-async", X_Tenant="ann", Cookie="tenant=ann")
    assert theirs.status_code == 202
    until(lambda: front.runs == 2, what="both turns at once")
    gate.open()
    until(lambda: answered(front, "k"), what="ann's answer")
    assert front.post(forged, key="k", X_User="bob").status_code == 200
    assert front.post("ann's", key="k").headers["idempotency-replayed"] == "true"
    assert front.runs == 2


def test_nobody_is_refused(front: Front) -> None:
    answer = front.post(X_User="")
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:chatlock:problem:no-tenant")
    assert front.get("k", X_User="").status_code == 401


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{bad", 400),
        (b"NaN", 400),
        (b"", 400),
        (b'"' + b"a" * 300_000 + b'"', 413),
        (b'"' + b"a" * 600_000 + b'"', 413),
        (b"[" * 100 + b"]" * 100, 400),
        (b"[" * 200_000, 400),
        (b'"\\u0000"', 400),
        (b'"\\ud83d"', 400),
        (b"9007199254740993", 400),
        (b"1" * 10_000, 400),
        (b"\xff\xfe", 400),
    ],
)
def test_malformed_body_is_a_problem_and_stores_nothing(
    front: Front, served: Database, content: bytes, status: int
) -> None:
    answer = front.http.post(front.messages, content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert row_of(served, front.thread, "last_seq") == ()


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
def test_body_of_another_kind_is_refused(front: Front, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    assert front.http.post(front.messages, content=b'"x"', headers=headers).status_code == 415


def test_body_may_name_its_charset_and_a_kind_of_json(front: Front) -> None:
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/cloudevents+json"):
        assert front.http.post(front.messages, content=b'"x"', headers={"Content-Type": kind}).status_code == 200


BAD_KEYS = ["", "two words", '"open', "k" * 300, '"a", "b"', "tab\tkey", "a/b", '".."', ".", '"a\\n"']


@pytest.mark.parametrize("key", BAD_KEYS)
def test_malformed_key_is_refused(front: Front, key: str) -> None:
    assert front.post(key=key).status_code == 400


def test_key_given_twice_is_refused(front: Front) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert front.http.post(front.messages, json="x", headers=headers).status_code == 400


def test_key_of_bytes_that_are_no_text_is_refused(front: Front) -> None:
    assert front.http.post(front.messages, json="x", headers={"Idempotency-Key": b"\xff\xfe"}).status_code == 400


def test_key_may_be_any_text(front: Front) -> None:
    answer = front.http.post(front.messages, json="x", headers={"Idempotency-Key": "grüße".encode()})
    assert answer.json()["message_id"] == "grüße"
    assert front.http.get(answer.headers["content-location"]).json()["message_id"] == "grüße"


def test_deleted_thread_is_gone(front: Front, served: Database) -> None:
    front.post(key="k")
    with Chatlock(served.url, tenant="ann", poller=False) as chat:
        chat.delete(front.thread)
    assert front.post(key="k2").status_code == 410


def test_parked_thread_keeps_the_message(front: Front, served: Database) -> None:
    front.post(key="k")
    with Chatlock(served.url, tenant="ann", poller=False) as chat:
        chat.park(front.thread)
    answer = front.post(key="k2")
    assert (answer.status_code, answer.json()["outcome"]) == (202, "parked")


def test_question_is_answered_once(front: Front) -> None:
    asked = front.post("ask").json()
    assert (asked["reply"], asked["question"] is not None) == ("sure?", True)
    url = f"{front.base}/threads/{front.thread}/questions"

    def decide(decision: str, question: str = asked["question"], user: str = "ann") -> httpx.Response:
        return front.http.post(f"{url}/{question}/answer", json=decision, headers={"X-User": user})

    absent = [decide("yes", question, user) for question, user in ((asked["question"], "bob"), ("other", "bob"))]
    assert [(answer.status_code, answer.json()["reason"]) for answer in absent] == [(409, "not_awaiting")] * 2
    assert absent[0].content == absent[1].content
    assert decide("yes", "other").json()["reason"] == "other_question"
    decided = decide("yes")
    assert (decided.status_code, decided.json()["reply"]) == (200, "one two")
    assert front.http.get(decided.headers["content-location"]).json()["message_id"] == asked["question"]
    assert decide("yes").headers["idempotency-replayed"] == "true"
    assert decide("no").status_code == 422


def test_turn_is_stopped_by_its_etag(front: Front) -> None:
    url, gate = f"{front.base}/threads/{front.thread}/cancel", front.hold()
    front.post(key="one", Prefer="wait=0")
    gate.wait_entered()
    front.post(key="two", Prefer="wait=0")

    def stop(user: str = "ann", query: str = "", **headers: str) -> httpx.Response:
        return front.http.post(url + query, headers={"X-User": user, **named(None, headers)})

    assert (stop().status_code, stop().json()["type"]) == (428, "urn:chatlock:problem:precondition-required")
    assert stop(If_Match="*").status_code == 400
    assert stop(query="?queued=park", If_Match='"1-1"').status_code == 400
    stale, theirs = stop(If_Match='"1-7"'), stop("bob", If_Match='"1-1"')
    assert (stale.status_code, stale.json()["reason"]) == (412, "other_turn")
    assert (theirs.status_code, theirs.json()["reason"], theirs.json()["state"]) == (412, "not_running", "absent")
    nowhere = front.http.post(url.replace(front.thread, "nowhere"), headers={"If-Match": '"1-1"'})
    assert theirs.content == nowhere.content
    told = stop(query="?queued=cancel", If_Match=front.get("one").headers["etag"])
    assert told.status_code == 202
    assert (told.json()["held"], told.json()["waiting"]) == (["one"], ["two"])
    gate.open()
    until(lambda: answered(front, "one"), what="its answer, which it gives anyway")
    assert front.get("two").json()["outcome"] == "cancelled"

"""The HTTP API: its answers, its events, turns around requests, and sockets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FAULTS = "tests/frameworks/test_faults.py -k"
HTTP = "tests/frameworks/test_http.py -k"
ENDPOINTS = "tests/frameworks/test_endpoints.py -k"
GONE = "tests/frameworks/test_disconnect.py -k"
EDITING = f"{ENDPOINTS} 'takes_the_place and asgi'"
STREAMED = f"{ENDPOINTS} 'streamed_as_they_come and asgi'"

WEB = (
    # -- answers -------------------------------------------------------------------------------------------------
    Mutant(
        "http_tells_who_holds_a_turn",
        "middleware/http.py",
        'NOT_TOLD = {"reason", "holder"}',
        'NOT_TOLD = {"reason"}',
        f"{HTTP} without_secrets",
    ),
    Mutant(
        "http_tells_why_a_message_died",
        "middleware/http.py",
        'NOT_TOLD = {"reason", "holder"}',
        'NOT_TOLD = {"holder"}',
        f"{HTTP} without_secrets",
    ),
    Mutant(
        "http_client_is_told_the_servers_fault",
        "middleware/problems.py",
        "    return problem(status, name, title, retry_s=retry_s)",
        "    return problem(status, name, title, retry_s=retry_s, detail=str(error))",
        f"{HTTP} 'broken_setup or no_more_than_is_known'",
    ),
    Mutant(
        "http_unknown_commit_is_said_to_be_none",
        "middleware/problems.py",
        "isinstance(error, StoreUnavailable) and error.commit_unknown:",
        "isinstance(error, StoreUnavailable) and error.commit_unknown is None:",
        f"{HTTP} no_more_than_is_known",
    ),
    Mutant(
        "http_lost_turn_is_for_nobody_to_retry",
        "middleware/problems.py",
        'return failure(503, "turn-lost",',
        'return failure(SETUP, "turn-lost",',
        f"{HTTP} no_more_than_is_known",
    ),
    Mutant(
        "http_fault_is_not_logged",
        "middleware/problems.py",
        "level = logging.ERROR if status == SETUP else logging.WARNING",
        "level = logging.DEBUG",
        f"{FAULTS} 'logged_once and of_chat_app'",
    ),
    Mutant(
        "http_wrong_tenant_is_the_clients_fault",
        "middleware/asked.py",
        "        raise NotATenant(told)",
        "        raise MissingTenant",
        f"{FAULTS} 'no_text_is and of_chat_app'",
    ),
    Mutant(
        "http_empty_tenant_is_one",
        "middleware/asked.py",
        "if not isinstance(told, str) or not told:",
        "if not isinstance(told, str):",
        f"{FAULTS} 'no_text_is and of_chat_app'",
    ),
    Mutant(
        "http_nobody_is_the_servers_fault",
        "middleware/asked.py",
        "        raise MissingTenant",
        "        raise NotATenant(told)",
        f"{FAULTS} 'no_text_is and of_chat_app'",
    ),
    Mutant(
        "http_precondition_is_a_refusal",
        "middleware/http.py",
        'PRECONDITIONS = ("not_running", "other_turn")',
        'PRECONDITIONS = ("not_running",)',
        f"{HTTP} without_secrets",
    ),
    Mutant(
        "http_edit_passes_over_if_match",
        "middleware/endpoints.py",
        "if asked.if_turn is not None:  # a precondition",
        "if asked.if_turn == 0:  # a precondition",
        EDITING,
    ),
    Mutant(
        "http_edit_is_told_the_old_messages_answer",
        "middleware/http.py",
        "if isinstance(found, AlreadyAnswered) and found.message_id != edit_id:",
        'if isinstance(found, AlreadyAnswered) and found.message_id == "":',
        EDITING,
    ),
    Mutant(
        "http_edit_of_an_ended_turn_is_in_its_way",
        "middleware/http.py",
        "if isinstance(outcome, Refused) and (now is None or isinstance(now, Queued)):\n        return answer_to_cancel",
        "if isinstance(outcome, Refused):\n        return answer_to_cancel",
        f"{HTTP} 'looked_up and edit'",
    ),
    Mutant(
        "http_cancel_of_an_ended_turn_is_in_its_way",
        "middleware/http.py",
        "if isinstance(outcome, Refused) and (now is None or isinstance(now, Queued)):\n        told",
        "if isinstance(outcome, Refused):\n        told",
        f"{HTTP} 'looked_up and cancel'",
    ),
    Mutant(
        "http_turn_in_the_way_is_not_named",
        "middleware/endpoints.py",
        'if isinstance(outcome, Refused) and outcome.reason == "in_turn":',
        'if isinstance(outcome, Refused) and outcome.reason == "no_turn":',
        f"{ENDPOINTS} 'wants_to_stop and asgi'",
    ),
    Mutant(
        "http_turn_in_the_way_has_no_etag",
        "middleware/http.py",
        'etag=etag(now) if now else "", **told)',
        'etag="", **told)',
        f"{ENDPOINTS} 'wants_to_stop and asgi'",
    ),
    Mutant(
        "http_attached_message_has_a_place_under_asgi",
        "middleware/asgi.py",
        "answer_to_submit(error.outcome))",
        "answer_to_submit(error.outcome, path_of(scope)))",
        "tests/frameworks/test_adapters.py -k 'nowhere and starlette'",
    ),
    Mutant(
        "http_attached_message_has_a_place_under_fastapi",
        "middleware/fastapi.py",
        "reply(answer_to_submit(error.outcome))",
        "reply(answer_to_submit(error.outcome, path_of(request.scope)))",
        "tests/frameworks/test_adapters.py -k 'nowhere and fastapi'",
    ),
    Mutant(
        "http_body_of_a_form_is_taken",
        "middleware/asked.py",
        'if not _JSON.fullmatch(headers.get("content-type", "").strip()):',
        'if not headers.get("content-type", "").strip():',
        f"{ENDPOINTS} 'another_kind and asgi'",
    ),
    Mutant(
        "http_stop_needs_no_turn",
        "middleware/asked.py",
        '        raise InvalidInput("precondition_required", "name the turn: If-Match with the ETag of a message that it has")',
        "        return 1",
        f"{ENDPOINTS} 'stopped_by_its_etag and asgi'",
    ),
    # -- events --------------------------------------------------------------------------------------------------
    Mutant(
        "events_do_not_name_their_turn",
        "middleware/endpoints.py",
        'first = as_stored(found) if last_id is None else b""',
        'first = b""',
        STREAMED,
    ),
    Mutant(
        "events_name_their_turn_again",
        "middleware/endpoints.py",
        'first = as_stored(found) if last_id is None else b""',
        "first = as_stored(found)",
        f"{ENDPOINTS} 'after_the_last_one and asgi'",
    ),
    Mutant(
        "events_seen_are_sent_again",
        "middleware/endpoints.py",
        "return turn != seen_turn or not known or int(number) > int(seen)",
        "return turn != seen_turn or not known or int(number) > 0",
        f"{ENDPOINTS} 'after_the_last_one and asgi'",
    ),
    Mutant(
        "events_of_another_turn_are_taken_for_seen",
        "middleware/endpoints.py",
        "return turn != seen_turn or not known or int(number) > int(seen)",
        "return not known or int(number) > int(seen)",
        f"{ENDPOINTS} 'after_the_last_one and asgi'",
    ),
    Mutant(
        "events_go_on_after_their_error",
        "middleware/events.py",
        'yield sse(None, "error",',
        'yield sse("error", "error",',
        f"{HTTP} after_the_stream_began",
    ),
    Mutant(
        "events_outlive_their_response",
        "middleware/fastapi.py",
        "        async with aclosing(self.body_iterator):\n            await super()",
        "        if self.body_iterator is not None:\n            await super()",
        f"{GONE} 'nobody_follows and router'",
    ),
    Mutant(
        "events_that_break_are_told_nobody",
        "middleware/asgi.py",
        "    if not sending.cancelled():\n        sending.result()\n",
        "",
        f"{GONE} fault_in_a_stream",
    ),
    # -- turns around requests, and detached ones ----------------------------------------------------------------
    Mutant(
        "request_of_a_client_that_has_gone_is_charged",
        "middleware/connection.py",
        "            if self.gone:\n",
        "            if self.gone and not self.begun:\n",
        f"{GONE} 'comes_back and middleware and plain and between'",
    ),
    Mutant(
        "request_whose_send_breaks_is_charged",
        "middleware/connection.py",
        "            self.gone = True\n            raise",
        "            raise",
        f"{GONE} 'comes_back and middleware and plain and between'",
    ),
    Mutant(
        "request_that_is_complete_is_taken_for_gone",
        "middleware/connection.py",
        'message["type"] == "http.disconnect" and not self._complete',
        'message["type"] == "http.disconnect"',
        f"{GONE} 'forgets_to_finish'",
    ),
    Mutant(
        "request_cut_short_is_taken_for_whole",
        "middleware/connection.py",
        "            raise ClientGone\n",
        "            return\n",
        f"{GONE} before_its_message",
    ),
    Mutant(
        "request_is_answered_twice",
        "middleware/asgi.py",
        "            if connection.begun:\n",
        "            if connection.gone:\n",
        f"{GONE} begun_again",
    ),
    Mutant(
        "drained_submit_is_said_to_store_nothing",
        "middleware/detached.py",
        'raise StoreUnavailable("this process goes down", commit_unknown=True)',
        'raise StoreUnavailable("this process goes down")',
        f"{HTTP} that_is_drained",
    ),
    Mutant(
        "drained_turn_cancels_whoever_waits",
        "middleware/detached.py",
        "self.task.result() if self.task.done() and not self.task.cancelled() else None",
        "self.task.result() if self.task.done() else None",
        f"{HTTP} that_is_drained",
    ),
    Mutant(
        "drained_process_takes_turns",
        "middleware/detached.py",
        "if self._draining or len(self._tasks) >= self._tasks_max:",
        "if len(self._tasks) >= self._tasks_max:",
        f"{HTTP} full_or_goes_down",
    ),
    # -- sockets -------------------------------------------------------------------------------------------------
    Mutant(
        "socket_of_a_wrong_tenant_blames_the_client",
        "middleware/socket.py",
        "owner = checked_owner(self._owner)",
        "owner = self._owner",
        f"{FAULTS} socket",
    ),
    Mutant(
        "socket_opens_for_a_page_of_another_site",
        "middleware/socket.py",
        'return origin is None or urlsplit(origin).netloc == headers.get("host")',
        "return origin is None or bool(urlsplit(origin).netloc)",
        "tests/frameworks/test_socket.py -k 'another_site and asgi'",
    ),
)

"""Limits on every input, and the derivations that must be injective or canonical."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chatlock import AsyncChatlock, Chatlock
from chatlock.errors import InvalidInput, MissingTenant
from chatlock.inputs import (
    DEPTH_MAX,
    ID_BYTES_MAX,
    INTEGER_MAX,
    MS_MAX,
    PAYLOAD_BYTES_MAX,
    REPLY_BYTES_MAX,
    Key,
    canonical_json,
    checked_id,
    checked_key,
    checked_ms,
    digest,
    from_json,
    key_hash,
    payload_json,
    reply_json,
    storable,
)

plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_text
)
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(plain_text, inner), max_leaves=6)
id_chars = st.characters(exclude_categories=["Cs", "Cc"])


def refused(call: Callable[..., object], *args: Any) -> str:
    """The reason of the refusal."""
    with pytest.raises(InvalidInput) as error:
        call(*args)
    return error.value.reason


def nested(depth: int, inner: Any = None) -> Any:
    """Lists in lists, `depth` of them."""
    for _ in range(depth):
        inner = [] if inner is None else [inner]
    return inner


# -- ids ---------------------------------------------------------------------------------------------------------------
@given(st.text(id_chars, min_size=1))
def test_id_of_one_to_two_hundred_bytes_is_taken_as_it_is(text: str) -> None:
    if len(text.encode()) <= ID_BYTES_MAX:
        assert checked_id(text, "thread") == text
    else:
        assert refused(checked_id, text, "thread") == "bad_thread"


@pytest.mark.parametrize("char", ["a", "é", "€", "😀"])
def test_length_of_an_id_is_counted_in_bytes(char: str) -> None:
    fits = char * (ID_BYTES_MAX // len(char.encode()))
    assert checked_id(fits, "thread") == fits
    assert refused(checked_id, fits + char, "thread") == "bad_thread"


@given(st.text(id_chars), st.characters(categories=["Cc"]), st.text(id_chars))
def test_id_with_a_control_character_is_refused(before: str, control: str, after: str) -> None:
    assert refused(checked_id, before[:20] + control + after[:20], "thread") == "bad_thread"


@given(st.text(id_chars), st.characters(categories=["Cs"]), st.text(id_chars))
def test_id_with_a_lone_surrogate_is_refused(before: str, surrogate: str, after: str) -> None:
    assert refused(checked_id, before[:20] + surrogate + after[:20], "thread") == "bad_thread"


@pytest.mark.parametrize("value", ["", None, 7, b"bytes", ["c1"], object()])
def test_what_is_no_id_is_refused(value: object) -> None:
    assert refused(checked_id, value, "thread") == "bad_thread"


def test_id_of_another_class_is_the_plain_text_of_its_characters() -> None:
    class Loud(str):
        def __str__(self) -> str:
            return self.upper()

    assert [
        type(each) for each in (checked_id(Loud("t"), "tenant"), *vars(checked_key(Loud("t"), Loud("c"))).values())
    ] == [str] * 3
    assert digest(Loud("t"), 1) == digest("t", 1)


def test_refusal_of_an_id_does_not_show_it() -> None:
    with pytest.raises(InvalidInput) as error:
        checked_id("secret\n", "thread")
    assert "secret" not in str(error.value)


def test_key_without_a_tenant_is_refused() -> None:
    with pytest.raises(MissingTenant) as error:
        checked_key(None, "c1")
    assert error.value.reason == "missing_tenant"
    assert refused(checked_key, "", "c1") == "bad_tenant"
    assert refused(checked_key, "t", "") == "bad_thread"
    assert checked_key("t", "c1") == Key("t", "c1")


@pytest.mark.parametrize("value", [0, 1, MS_MAX])
def test_milliseconds_are_whole_numbers_from_their_least(value: int) -> None:
    assert checked_ms(value, "wait_ms") == value


@pytest.mark.parametrize("value", [-1, MS_MAX + 1, 1.0, "1", None, True, math.nan])
def test_what_are_no_milliseconds_is_refused(value: object) -> None:
    assert refused(checked_ms, value, "wait_ms") == "bad_wait_ms"


def test_least_milliseconds_are_kept() -> None:
    with pytest.raises(InvalidInput):
        checked_ms(0, "age_ms", least=1)


# -- canonical JSON ----------------------------------------------------------------------------------------------------
@given(values)
def test_json_value_comes_back_equal(value: Any) -> None:
    text, _ = payload_json(value)
    assert from_json(text) == value


@given(st.dictionaries(plain_text, leaves).flatmap(lambda d: st.tuples(st.just(d), st.permutations(list(d)))))
def test_reordered_keys_have_the_same_text_and_hash(drawn: tuple[dict[str, Any], list[str]]) -> None:
    value, order = drawn
    reordered = {name: value[name] for name in order}
    assert payload_json([reordered, {"in": reordered}]) == payload_json([value, {"in": value}])


@given(values, values)
def test_different_texts_have_different_hashes(one: Any, other: Any) -> None:
    (first, first_hash), (second, second_hash) = payload_json(one), payload_json(other)
    assert (first == second) == (first_hash == second_hash)


@given(values)
def test_text_is_compact_utf8_json_with_sorted_keys(value: Any) -> None:
    text, _ = payload_json(value)
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_tuple_is_a_list_and_enums_are_their_values() -> None:
    class Number(IntEnum):
        ONE = 1

    class Word(StrEnum):
        YES = "yes"

    assert from_json(payload_json((1, (2,), Number.ONE, Word.YES))[0]) == [1, [2], 1, "yes"]


def test_none_is_json_null_and_no_text_is_none() -> None:
    assert payload_json(None)[0] == "null"
    assert from_json("null") is None
    assert from_json(None) is None


@pytest.mark.parametrize("char", ["x", "é", "€", "😀", '"', "\n"])
@pytest.mark.parametrize(("check", "bytes_max"), [(payload_json, PAYLOAD_BYTES_MAX), (reply_json, REPLY_BYTES_MAX)])
def test_size_is_counted_in_bytes_of_json(check: Callable[[object], object], bytes_max: int, char: str) -> None:
    size = len(json.dumps(char, ensure_ascii=False).encode()) - 2
    fits = char * ((bytes_max - 2) // size)
    check(fits)
    filled = fits + "x" * ((bytes_max - 2) % size)
    check(filled)
    assert refused(check, filled + "x") == "too_large"


@given(st.integers(1, DEPTH_MAX))
def test_nesting_up_to_the_limit_is_taken(depth: int) -> None:
    payload_json(nested(depth))


@pytest.mark.parametrize(
    "value",
    [nested(DEPTH_MAX + 1), nested(DEPTH_MAX, {}), {"a": nested(DEPTH_MAX)}, nested(5000)],
    ids=["lists", "dict inside", "dict outside", "far beyond"],
)
def test_nesting_beyond_the_limit_is_refused(value: Any) -> None:
    assert refused(payload_json, value) == "too_deep"


def test_value_that_holds_itself_is_refused() -> None:
    as_list: list[Any] = []
    as_list.append(as_list)
    as_dict: dict[str, Any] = {}
    as_dict["self"] = as_dict
    assert refused(payload_json, as_list) == refused(payload_json, as_dict) == "too_deep"


def test_value_shared_without_bound_is_refused() -> None:
    value: Any = "x"
    for _ in range(DEPTH_MAX - 1):
        value = [value, value]
    assert refused(payload_json, value) == "too_large"


def test_huge_list_is_refused_before_it_is_walked() -> None:
    class Counted(list[int]):
        walked = False

        def __iter__(self) -> Any:
            self.walked = True
            return super().__iter__()

    value = Counted([0] * (PAYLOAD_BYTES_MAX + 1))
    assert refused(payload_json, value) == "too_large"
    assert not value.walked


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, INTEGER_MAX + 1, -INTEGER_MAX - 1, 10**400])
def test_number_that_json_cannot_carry_is_refused(number: float) -> None:
    assert refused(payload_json, number) == refused(payload_json, {"a": [number]}) == "bad_number"


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "a\udfffb"])
def test_text_that_a_database_cannot_carry_is_refused(text: str) -> None:
    for value in (text, [text], {"a": text}, {text: 1}):
        assert refused(payload_json, value) == "bad_text"


@pytest.mark.parametrize(
    "value", [b"bytes", {1, 2}, object(), 1j, range(3), {1: "a"}, {None: 1}, {("a",): 1}, Exception()]
)
def test_what_json_has_no_word_for_is_refused(value: Any) -> None:
    assert refused(payload_json, value) == refused(payload_json, [value]) == "not_json"


strange = st.recursive(
    leaves | st.text() | st.floats() | st.integers() | st.binary() | st.complex_numbers() | st.datetimes(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=6,
)


@given(strange)
def test_anything_is_taken_or_refused_and_nothing_else(value: Any) -> None:
    try:
        text = canonical_json(value, "payload", 1000)
    except InvalidInput as refusal:
        told = refusal.reason
    else:
        told = "taken" if len(text.encode()) <= 1000 and json.loads(text) is not ... else "too long"
    assert told in ("taken", "too_large", "too_deep", "bad_number", "bad_text", "not_json")


@given(st.text(), st.integers(1, 50))
def test_storable_text_can_be_stored_and_is_not_longer(text: str, chars_max: int) -> None:
    stored = storable(text, chars_max)
    stored.encode()
    assert "\0" not in stored
    assert len(stored) <= chars_max


@given(plain_text)
def test_storable_text_that_fits_is_unchanged(text: str) -> None:
    assert storable(text, len(text)) == text


# -- derivations -------------------------------------------------------------------------------------------------------
@given(st.lists(plain_text), st.lists(plain_text))
def test_digest_is_injective_over_sequences_of_text(one: list[str], other: list[str]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


@given(st.lists(plain_text, min_size=1), st.data())
def test_digest_tells_apart_every_cut_of_one_text(parts: list[str], data: st.DataObject) -> None:
    whole = "".join(parts)
    cut = data.draw(st.integers(0, len(whole)))
    assume(parts != [whole[:cut], whole[cut:]])
    assert digest(*parts) != digest(whole[:cut], whole[cut:])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Key("a", "bc"), Key("ab", "c")),
        (Key("a", "b"), Key("b", "a")),
        (Key("1:a", "b"), Key("1", ":ab")),
        (Key("é", "c"), Key("e\u0301", "c")),
        (Key("A", "c"), Key("a", "c")),
        (Key("a", "c "), Key("a", "c")),
    ],
)
def test_keys_that_look_alike_have_different_hashes(one: Key, other: Key) -> None:
    assert key_hash(one) != key_hash(other)


@given(st.text(id_chars, min_size=1, max_size=50), st.text(id_chars, min_size=1, max_size=50))
def test_hash_of_a_key_is_sixty_four_hex_digits(tenant: str, thread: str) -> None:
    name = key_hash(Key(tenant, thread))
    assert len(name) == 64
    int(name, 16)


@pytest.mark.parametrize("kind", [Chatlock, AsyncChatlock])
@pytest.mark.parametrize(
    ("payload", "wrong"),
    [
        ("hello", {"wait_ms": -1}),
        ("hello", {"wait_ms": "1"}),
        ("hello", {"message_id": ""}),
        ("hello", {"policy": "no"}),
        ("hello", {"tenant": 5}),
        ({1}, {}),
    ],
)
def test_stream_is_refused_when_it_is_called(kind: Any, payload: object, wrong: dict[str, Any]) -> None:
    """Not when it is read: a response that streams it has begun by then."""

    async def play() -> None:  # an AsyncChatlock belongs to a running loop
        chat = kind("sqlite:///never-opened.db", tenant="acme", poller=False)
        with pytest.raises(InvalidInput):
            chat.stream("t", payload, **wrong)
        if "wait_ms" in wrong:
            with pytest.raises(InvalidInput):
                chat.follow("t", "m", **wrong)

    asyncio.run(play())

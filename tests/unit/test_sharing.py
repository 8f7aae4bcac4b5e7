"""Who is taken of what is due: tenants take turns, people go before background, and a limit per tenant holds."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chatlock.inputs import Key
from chatlock.ops.due import Waiting, share_out
from chatlock.policies import PRIORITIES

BACKGROUND = PRIORITIES["background"]
BATCH_MAX = 12

one = st.tuples(st.sampled_from("abcd"), st.sampled_from([*PRIORITIES.values()]), st.integers(0, 5))


def waiting(*of: tuple[str, int, int]) -> list[Waiting]:
    """(tenant, priority, due_at) of each."""
    return [Waiting(Key(tenant, f"t{n}"), "default", *rest) for n, (tenant, *rest) in enumerate(of)]


def tenants(taken: list[Waiting]) -> str:
    return "".join(one.key.tenant for one in taken)


@given(st.lists(one, max_size=40), st.integers(0, BATCH_MAX))
def test_each_of_the_tenants_gets_its_share_of_the_batch(due: list[tuple[str, int, int]], limit: int) -> None:
    offered = waiting(*due)
    taken = share_out(offered, limit, dict.fromkeys("abcd", limit))
    assert len(taken) == len(set(taken)) == min(limit, len(offered))
    people = Counter(one.key.tenant for one in offered if one.priority < BACKGROUND)
    taken_people = [one for one in taken if one.priority < BACKGROUND]
    assert taken[: len(taken_people)] == taken_people  # background comes after all others
    assert len(taken_people) == min(limit, people.total())
    got = Counter(one.key.tenant for one in taken_people)
    for tenant, count in people.items():
        assert got[tenant] >= min(count, limit // len(people))
    for tenant in "abcd":  # nobody of a tenant is passed over for another of it
        left = [(one.priority, one.due_at) for one in offered if one.key.tenant == tenant and one not in taken]
        mine = [(one.priority, one.due_at) for one in taken if one.key.tenant == tenant]
        assert not left or not mine or max(mine) <= min(left)


@given(
    st.lists(one, max_size=40), st.integers(0, BATCH_MAX), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3))
)
def test_no_tenant_gets_more_than_its_room(due: list[tuple[str, int, int]], limit: int, less: dict[str, int]) -> None:
    room = dict.fromkeys("abcd", BATCH_MAX) | less
    taken = Counter(one.key.tenant for one in share_out(waiting(*due), limit, room))
    offered = Counter(tenant for tenant, _, _ in due)
    assert all(taken[tenant] <= room[tenant] for tenant in taken)
    assert taken.total() == min(limit, sum(min(offered[tenant], room[tenant]) for tenant in "abcd"))


def test_of_one_class_the_longest_due_begins() -> None:
    due = waiting(("a", 0, 5), ("b", 0, 1), ("a", 0, 2), ("a", 10, 0), ("b", 20, 0))
    assert tenants(share_out(due, 9, {"a": 9, "b": 9})) == "baaab"

"""Plays moves in one order and judges the play: by the protocol's table, by what callers were told, and by a drain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatlock import Cancelled, CancelReceipt, Key
from chatlock.ops import fetch, operate, unanswered
from chatlock.ops.audit import Act
from chatlock.ops.claim import Granted
from chatlock.protocol import Event, Status, targets
from chatlock.store import finish_once
from tests.races.arena import AGENT, LIMITS, OF_THREAD, finish_of
from tests.races.moves import LATE, Actor, Turned, move_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chatlock.testing import Played, Step
    from tests.races.arena import Arena, Held

TURN_STATE = {
    Event.FINISH: ("done",),
    Event.HAND_OFF: ("done",),
    Event.FAIL: ("failed",),
    Event.RELEASE: ("released",),
    Event.RECLAIM: ("reclaimed",),
    Event.FREE: ("released", "reclaimed"),
    Event.FORCE: ("released",),
    Event.ROLLBACK: ("released",),
}
"""What these events leave of the turn that the scene started."""
OF_THE_HOLDER = {Event.FETCH, Event.HEARTBEAT, Event.FENCE, Event.FINISH, Event.HAND_OFF, Event.FAIL, Event.RELEASE}
APP_MOVES = {"fenced_write", "finish_in_app"}
SAFE_TO_REPEAT = {Event.FINISH, Event.FAIL, Event.PARK, Event.DELETE, Event.CANCEL}
"""Who asks for one of these again is told that it is done."""
STATUS_IN = {
    "absent": Status.ABSENT,
    "surplus": Status.IDLE,
    "idle": Status.IDLE,
    "running": Status.RUNNING,
    "more": Status.RUNNING,
    "stale": Status.RUNNING,
    "overdue": Status.RUNNING,
    "pending": Status.IDLE,
    "charged": Status.IDLE,
    "reclaimed": Status.IDLE,
    "fenced": Status.RUNNING,
    "parked": Status.PARKED,
    "deleted": Status.DELETED,
}
ROUNDS_MAX = 10
OF_TENANT = " WHERE tenant = ?"


@dataclass(frozen=True)
class Change:
    """What one step did to the thread: its committed status and token before and after."""

    actor: str
    point: str
    before: tuple[str, int]
    after: tuple[str, int]


@dataclass(frozen=True)
class Game:
    """One play on one thread."""

    held: Held
    moves: dict[str, str]
    played: Played
    changes: tuple[Change, ...]

    def told(self, actor: str) -> tuple[Event, ...]:
        """The events that the actor was told it had brought about."""
        return move_of(self.moves[actor]).done(self.played.value(actor))

    def turned(self) -> list[Turned]:
        """The turns that moves ran to their end, beside the scene's."""
        return [value for value in self.played.values.values() if isinstance(value, Turned)]

    def told_of_the_scenes_turn(self) -> set[Event]:
        """What was told by moves that act for the turn that the scene started."""
        of_its_own = [actor for actor, value in self.played.values.items() if isinstance(value, Turned)]
        others = {actor for actor in of_its_own if self.played.values[actor].claim != self.held.claim}
        return {event for actor in self.moves if actor not in others for event in self.told(actor)}

    def grants(self) -> list[Granted]:
        """The claims that were granted, by whatever move."""
        results = [self.played.value(actor) for actor in self.moves]
        found = [getattr(result, "granted", None) or result for result in results]
        return [grant for grant in found if isinstance(grant, Granted)]


def play(arena: Arena, scene: str, held: Held, moves: Sequence[str], order: str, *, exact: bool = False) -> Game:
    """Plays the moves (of actors A, B, ..) on one thread in the order, and judges what can be judged at once."""
    names = dict(zip("ABC", moves, strict=False))
    key = held.key
    for client, (name, made) in zip(arena.clients, names.items(), strict=False):
        actor = Actor(name, client._executor, held)
        arena.schedule.actor(name, lambda made=made, actor=actor: move_of(made).make(actor))
    changes: list[Change] = []
    before = arena.thread(key)
    assert before[0] == STATUS_IN[scene], f"the scene {scene} starts {before}"

    def watch(step: Step) -> None:
        nonlocal before
        after = arena.thread(key)
        changes.append(Change(step.actor, step.point, before, after))
        before = after

    played = arena.schedule.play(order, exact=exact, watch=watch)
    game = Game(held, names, played, tuple(changes))
    judge_table(game)
    judge_tokens(game)
    judge_told(arena, game)
    return game


def judge_table(game: Game) -> None:
    """Each change of status is an edge of the table, made by who was told so; who was refused changed nothing."""
    happened: set[Event] = set()
    for actor in _by_last_step(game):
        told = game.told(actor)
        mine = [change for change in game.changes if change.actor == actor]
        moved = [change for change in mine if change.before != change.after]
        if not told:
            assert not moved, f"{actor} was refused, yet the thread changed: {moved}\n{game.played}"
        elif not moved and not _repeats(told, mine[-1], happened):
            found = _found_since(game, mine[-1])
            kept = [(status, token) for status, token in found if status in _reached({status}, told)]
            assert kept, f"{actor} was told {told}, but found {found}\n{game.played}"
            assert _held(game, told, {token for _, token in kept}), f"{actor} did {told} under {kept}\n{game.played}"
        for change, events in _events_of(moved, told):
            status, token = change.before
            assert change.after[0] in _reached({status}, events), f"no edge {events}: {change}\n{game.played}"
            assert _held(game, events, {token}), f"{actor} did {events} under {token}\n{game.played}"
        happened.update(told)


def _events_of(moved: list[Change], told: tuple[Event, ...]) -> list[tuple[Change, tuple[Event, ...]]]:
    """Events that came one by one, each with its change; or those that came together, with the one change."""
    if len(moved) == len(told):
        return [(change, (event,)) for change, event in zip(moved, told, strict=True)]
    return [(change, told) for change in moved]


def _by_last_step(game: Game) -> list[str]:
    """Every transaction of a move but its last finds nothing to do, so it takes effect with its last step."""
    steps = [step.actor for step in game.played.trace][::-1]
    return sorted(game.moves, key=steps.index, reverse=True)


def _found_since(game: Game, last: Change) -> set[tuple[str, int]]:
    """What an operation that ended with `last` can have found of the thread; a heartbeat may have waited after it."""
    autocommit = not last.point.endswith(".commit")
    later = game.changes[game.changes.index(last) :] if autocommit else [last]
    return {change.after for change in later}


def _repeats(told: tuple[Event, ...], last: Change, happened: set[Event]) -> bool:
    """Whether the operation found that what it asks for is done."""
    done = happened | ({Event.FINISH} if Event.HAND_OFF in happened else set())
    already = (told[0], last.after[0]) in ((Event.PARK, Status.PARKED), (Event.DELETE, Status.DELETED))
    return already or (set(told) <= SAFE_TO_REPEAT and done.issuperset(told))


def _held(game: Game, told: tuple[Event, ...], tokens: set[int]) -> bool:
    """Whether what only a holder may do was done under a token that was given to one of the actors."""
    given = {game.held.claim.token, *(turned.claim.token for turned in game.turned())}
    return OF_THE_HOLDER.isdisjoint(told) or bool(given & tokens)


def _reached(sources: set[str], events: tuple[Event, ...]) -> set[str]:
    for event in events:
        sources = {target for source in sources for target in targets(Status(source), event)}
    return sources


def judge_tokens(game: Game) -> None:
    """Tokens rise, and no two claims share one."""
    for change in game.changes:
        assert change.after[1] >= change.before[1], f"the token fell: {change}"
    tokens = [grant.claim.token for grant in game.grants()]
    lost = game.held.claim.token
    assert len(set(tokens)) == len(tokens), f"two claims under one token: {tokens}"
    assert all(token > lost for token in tokens), f"claims {tokens} are not above the scene's {lost}"


def judge_told(arena: Arena, game: Game) -> None:
    """What the actors were told is what the tables hold."""
    key, claimed, told_by = game.held.key, game.held.claim.token, {actor: game.told(actor) for actor in game.moves}
    messages = {
        (incarnation, name): (seq, disposition, token)
        for incarnation, name, seq, disposition, token in arena.rows(
            "SELECT incarnation, message_id, seq, disposition, turn_token FROM chatlock_messages" + OF_THREAD,
            *(key.tenant, key.thread),
        )
    }
    turns = {
        token: (state, claim_id)
        for token, state, claim_id in arena.rows(
            "SELECT token, state, claim_id FROM chatlock_turns" + OF_THREAD, key.tenant, key.thread
        )
    }
    told = game.told_of_the_scenes_turn()
    for event, states in TURN_STATE.items():
        assert event not in told or turns[claimed][0] in states, f"told {event}: {turns[claimed]}\n{game.played}"
    answered = bool(told & {Event.FINISH, Event.HAND_OFF})
    hands = {claimed: game.held.hand if answered else ()} | {t.claim.token: t.hand for t in game.turned()}
    for token, hand in hands.items():
        in_hand = {message.message_id for message in hand}
        by_turn = {name for (_, name), (_, *resolved) in messages.items() if resolved == ["answered", token]}
        assert by_turn == in_hand, f"turn {token} answered {by_turn}, it had {in_hand} in hand\n{game.played}"
    values = {actor: game.played.value(actor) for actor in game.moves}
    cancelled = {value.message_id for value in values.values() if isinstance(value, Cancelled)}
    found_cancelled = {name for (_, name), (_, disposition, _) in messages.items() if disposition == "cancelled"}
    stops = [value for value in values.values() if isinstance(value, CancelReceipt) and value.done]
    at_once = cancelled.union(*(receipt.waiting for receipt in stops))
    at_the_end = at_once.union(*(receipt.held for receipt in stops))
    assert at_once <= found_cancelled <= at_the_end, f"told {stops}, found {found_cancelled} cancelled\n{game.played}"
    for grant in game.grants():
        assert turns[grant.claim.token][1] == grant.claim.claim_id, f"the turn of {grant.claim} is not its own"
    for actor, value in values.items():
        if Event.SUBMIT in told_by[actor]:
            stored = messages[value.incarnation, value.outcome.message_id]
            assert stored[0] == value.seq, f"{actor} was told seq {value.seq}, the table says {stored}"
    wrote = {actor for actor, events in told_by.items() if game.moves[actor] in APP_MOVES and events}
    written = {who for (who,) in arena.rows("SELECT who FROM app_log" + OF_THREAD, key.tenant, key.thread)}
    assert wrote == written, f"told {wrote}, but the application's table has rows of {written}\n{game.played}"


# -- nothing is lost --
def drain(arena: Arena, tenant: str) -> None:
    """Ends every turn, resumes every parked thread, and sweeps until nothing is due: then every message is resolved.

    Threads are found by their due rows alone, as the poller finds them.
    """
    verified(arena, tenant)
    for thread, status, claim_id in arena.rows(
        f"SELECT thread_id, status, claim_id FROM chatlock_threads{OF_TENANT}", tenant
    ):
        key = Key(tenant, thread)
        if status == Status.PARKED:
            act = Act("resume", "drain", "")
            arena.home.transaction("resume", lambda c, key=key, act=act: operate.resume(c, key, act))
        elif status == Status.RUNNING:
            arena.home.transaction("release", lambda c, k=key, i=claim_id: unanswered.release(c, k, i))
    sweep = arena.clients[-1]._sweep
    for _ in range(ROUNDS_MAX):
        grants = sweep.claim_due([AGENT], 100)
        if not grants:
            break
        for granted in grants:
            answer(arena, granted)
    left = arena.rows(
        f"SELECT thread_id, message_id FROM chatlock_messages{OF_TENANT} AND disposition = 'pending'", tenant
    )
    assert not left, f"never answered: {left}"
    verified(arena, tenant)


def answer(arena: Arena, granted: Granted) -> None:
    """Runs a granted turn to its end."""
    claim = granted.claim
    hand = granted.messages or arena.home.transaction("fetch", lambda c: fetch.fetch(c, claim, claim.from_seq, LIMITS))
    assert hand, f"the turn of {claim} has nothing to answer"
    assert finish_once(arena.home, finish_of(claim, hand, "drained"), None)


def verified(arena: Arena, tenant: str) -> None:
    """Every invariant holds in the tenant's threads."""
    breaches = arena.clients[-1].verify(tenant=tenant).breaches
    assert not breaches, "\n".join(f"{b.thread}: {b.invariant} {b.text}" for b in breaches)


__all__ = ["LATE", "Change", "Game", "answer", "drain", "play", "verified"]

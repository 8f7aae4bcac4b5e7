"""A negative control: how the product is weakened, and the test that then fails."""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NamedTuple

from sqlalchemy.exc import InvalidRequestError

from chatlock.executor import Executor
from tests.races import test_listed as schedules
from tests.races import test_pairs as pairs
from tests.races.weaken import Weakening
from tests.support import ROOT

LISTED = {listed.title: listed for listed in schedules.parsed(schedules.SCHEDULES)}
SEQS = count(100)
OF_TOKEN = " AND chatlock_threads.token = %(b_token)s::BIGINT"
OF_STATUS = " AND chatlock_threads.status = %(status_1)s::VARCHAR"
OF_STATE = " AND chatlock_turns.state = %(state_1)s::VARCHAR"
LOCKING = " FOR NO KEY UPDATE"
CANNOT_RUN = (NameError, TypeError, InvalidRequestError)
"""What a weakening that no longer fits the product raises: that shows nothing."""
NEW_TOKEN = "token=(chatlock_threads.token + %(token_1)s::BIGINT)"
WALL = "(extract(epoch FROM clock_timestamp())*1000)::bigint"


class Control(NamedTuple):
    """How the product is weakened, and the test that then fails."""

    weaken: Callable[[Weakening], None]
    red: Callable[..., None]

    def node_id(self) -> str:
        """The test as pytest names it, without parameters."""
        test = self.red.func if isinstance(self.red, partial) else self.red
        path = signatures.getfile(test).removeprefix(f"{ROOT}/")
        return f"{path}::{test.__name__}"


VARIANTS: dict[str, Control] = {}
"""By the names of the model's variants."""
GUARDS: dict[str, Control] = {}


def listed(title: str) -> Callable[..., None]:
    return partial(schedules.test_listed, LISTED[title])


def pair(*moves: str) -> Callable[..., None]:
    return partial(pairs.test_pair, moves)


def variant(red: Callable[..., None]) -> Callable[[Callable[[Weakening], None]], None]:
    return partial(_register, VARIANTS, red)


def guard(red: Callable[..., None]) -> Callable[[Callable[[Weakening], None]], None]:
    return partial(_register, GUARDS, red)


def _register(controls: dict[str, Control], red: Callable[..., None], weaken: Callable[[Weakening], None]) -> None:
    controls[weaken.__name__] = Control(weaken, red)


def locked_path_only(weak: Weakening) -> None:
    weak.attribute(Executor, "hot", lambda self, name, op: None)

"""A weakened rule of the model."""

from __future__ import annotations

from typing import NamedTuple

from .words import Breach


class Mutant(NamedTuple):
    """One weakened rule, what the explorer must find, and where it must find it."""

    weakens: str
    breaks: Breach
    where: dict[str, object]


def mutant(weakens: str, breaks: Breach, **where: object) -> Mutant:
    return Mutant(weakens, breaks, {"submitters": 2, "pollers": 1, "expire": 1, "crash": 1, **where})


B = {"extstore": False, "max_token": 40, "deadline": True}
D = {**B, "pollers": 3, "rq": True, "dispatchers": 2, "due": True, "lazy": True, "expire": 0, "retry": False}

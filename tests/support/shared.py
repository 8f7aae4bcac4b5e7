"""What a forked worker inherits from the runner; a plain `pytest` leaves it empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.databases import Templates
    from tests.support.servers import Endpoint

postgres: Endpoint | None = None
templates: Templates | None = None
# Which of the workers this process is: each has a Redis database of its own.
worker = 0

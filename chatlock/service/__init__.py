"""The service: a poller that runs beside the application, in any number, and the way in which it hands turns out."""

from __future__ import annotations

from chatlock.service.service import Service

__all__ = ["Service"]

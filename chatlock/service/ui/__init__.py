"""The read-only web view of the service: /ui, off unless a token is set."""

from __future__ import annotations

from chatlock.service.ui.view import View

__all__ = ["View"]

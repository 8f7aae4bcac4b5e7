"""Adapters for chat backends.  Each needs its framework, an extra of its own name, and uses public names only."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from urllib.parse import quote

from chatlock.errors import ChatlockError
from chatlock.inputs import Key


class MissingExtra(ChatlockError, ImportError):
    """An adapter's framework is not installed; the message names the extra."""


def framework(module: str, extra: str) -> ModuleType:
    """The framework's module, or an error that names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingExtra(f"this adapter needs {module}: install chatlock with its extra '{extra}'") from None


def qualified(key: Key) -> str:
    """A thread's name in a store that knows no tenants: <tenant>/<thread>, each quoted."""
    return f"{quote(key.tenant, safe='')}/{quote(key.thread, safe='')}"

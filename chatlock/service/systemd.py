"""What systemd is told of the service's state, over the socket that it names.  Elsewhere nothing happens."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Sends READY=1, WATCHDOG=1 or STOPPING=1."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract names
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_systemd:
        to_systemd.sendto(state.encode(), address)

"""The deployment of the service; not part of the wheel, whose users run `chatlock poller`."""

from __future__ import annotations

"""Exit status 0 if the poller in this container has swept lately: what a container's health check runs."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

SECONDS = 2


def main() -> int:
    """Asks /livez on this machine."""
    url = f"http://127.0.0.1:{os.environ.get('CHATLOCK_PORT', '8008')}/livez"
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return 0 if answer.status == 200 else 1
    except (urllib.error.URLError, OSError):
        return 1


if __name__ == "__main__":
    sys.exit(main())

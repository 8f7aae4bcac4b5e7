"""`python -m poller`: the service as it is deployed; the same as `chatlock poller`."""

from __future__ import annotations

import sys

from chatlock.cli import main

if __name__ == "__main__":
    main(["poller", *sys.argv[1:]])

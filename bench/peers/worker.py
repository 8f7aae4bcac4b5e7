"""A worker process of one peer: python -m bench.peers.worker MODULE."""

from __future__ import annotations

import importlib
import logging
import sys

from bench.peers import At

if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    importlib.import_module(f"bench.peers.{sys.argv[1]}").work(At.here())

"""`python -m chatlock`: the chatlock command."""

from __future__ import annotations

from chatlock.cli import main

if __name__ == "__main__":
    main(prog_name="chatlock")

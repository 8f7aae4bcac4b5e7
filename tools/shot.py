"""Take the pictures of the docs with a real, headless Chromium: `make ui-shot`.

A page's script serves the page and calls `capture`.  There is no picture without a browser: one that is missing is
installed where this may be done (root on Debian), else the command fails.  So does a page that its own
Content-Security-Policy breaks, or that logs an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL = (
    ("apt-get", "update", "-qq"),
    ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"),
)
CAPTURE_S = 60
PNG = b"\x89PNG\r\n\x1a\n"
CONSOLE_ERROR = re.compile(r"Content Security Policy|CONSOLE.*(?:Uncaught|Failed to load)")


def browser() -> str:
    """The path of a Chromium, installed if need be.  Ends the process with 1 where there is none."""
    found = _installed()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print("Installing Chromium", file=sys.stderr)
        for command in INSTALL:
            subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        found = _installed()
    if found is None:
        sys.exit(f"a picture needs a Chromium: install one of {', '.join(BROWSERS)}")
    return found


def _installed() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def capture(url: str, name: str, *, width: int, height: int, settle_ms: int = 0) -> Path:
    """Writes what Chromium shows of the page as docs/images/NAME.png, in CSS pixels, and returns the file's path.

    settle_ms: how much time the page's scripts are given before.  Ends the process with 1 where there is no picture.
    """
    target = IMAGES / f"{name}.png"
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder, "shot.png")
        options = [f"--screenshot={picture}", f"--window-size={width},{height}", f"--user-data-dir={folder}/profile"]
        if settle_ms:
            options.append(f"--virtual-time-budget={settle_ms}")
        options += ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-color-profile=srgb"]
        options += ["--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr", url]
        done = subprocess.run([browser(), *options], capture_output=True, text=True, timeout=CAPTURE_S, check=False)
        faults = [line for line in done.stderr.splitlines() if CONSOLE_ERROR.search(line)]
        if faults:
            sys.exit("\n".join(["the page is broken:", *faults]))
        if not picture.is_file() or not picture.read_bytes().startswith(PNG):
            sys.exit(f"{done.stderr}\nChromium wrote no picture")
        IMAGES.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, target)
    print(f"{target.relative_to(IMAGES.parents[1])}: {target.stat().st_size // 1024} KiB")
    return target

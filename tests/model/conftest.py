"""The explorer is run as a program too, so its modules name each other without a package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from __future__ import annotations

pytest_plugins = ["tests.support.fixtures"]

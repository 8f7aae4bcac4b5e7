"""Every seeded bug."""

from __future__ import annotations

from tests.mutants.adapters import ADAPTERS
from tests.mutants.channels import CHANNELS
from tests.mutants.ends import ENDS
from tests.mutants.messages import MESSAGES
from tests.mutants.runtime import RUNTIME
from tests.mutants.turns import TURNS
from tests.mutants.web import WEB

TABLE = (*MESSAGES, *TURNS, *ENDS, *RUNTIME, *ADAPTERS, *CHANNELS, *WEB)

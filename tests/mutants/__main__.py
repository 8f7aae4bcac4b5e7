"""python -m tests.mutants"""

from __future__ import annotations

import sys

from tests.mutants.judge import main

sys.exit(main())

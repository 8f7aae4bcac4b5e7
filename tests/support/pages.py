"""The documents, and the blocks of code in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = re.compile(
    r"(?:<!-- (?P<note>[\w-]+): (?P<text>[^\n]*?) -->\n)?```python\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A block of Python: on its page, with the note before it."""

    page: str
    number: int
    note: str
    code: str

    def run(self, **replaced: str) -> dict[str, Any]:
        """The names that it defines."""
        code = self.code
        for old, new in replaced.items():
            assert old in code
            code = code.replace(old, new)
        names: dict[str, Any] = {"__name__": "example"}
        where = f"{self.page}, python block {self.number}"
        exec(compile(code, where, "exec", dont_inherit=True), names)
        return names


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    name = page.relative_to(ROOT).as_posix()
    found = enumerate(BLOCK.finditer(page.read_text()), start=1)
    return [Block(name, number, m["note"] or "", m["code"]) for number, m in found]

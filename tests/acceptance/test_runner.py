"""The runner reports what went wrong, whatever it was, and never ends well on nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import Endpoint

PASSES = "def test_passes(): pass\n"
FAILURES = {
    "assertion": "def test_fails(): assert 'apples' == 'pears'\n",
    "skip": "import pytest\ndef test_skips(): pytest.skip('no server')\n",
    "module_skip": "import pytest\npytest.skip('no server', allow_module_level=True)\n",
    "xfail": "import pytest\n@pytest.mark.xfail\ndef test_expected(): assert False\n",
    "import": "import no_such_module\n",
    "fixture": "def test_unknown(no_such_fixture): pass\n",
    "exit": "import os\ndef test_exits(): os._exit(0)\n",
    "empty": "",
    "left": ("import subprocess\ndef test_leaves(): subprocess.Popen(['sleep', '60']).returncode = 0\n"),
    "warning": "import warnings\ndef test_warns(): warnings.warn('old')\n",
    "thread": (
        "import threading\n"
        "def test_raises():\n"
        "    os_thread = threading.Thread(target=lambda: 1 / 0)\n"
        "    os_thread.start()\n"
        "    os_thread.join()\n"
    ),
}


@pytest.fixture
def run(pg_server: Endpoint, child: Callable[[Child], Child], tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Run files of these sources; return the exit code and the lines printed."""

    def run(sources: dict[str, str], pg_url: str = pg_server.url) -> tuple[int, list[str]]:
        for name, source in sources.items():
            (tmp_path / f"test_{name}.py").write_text(source)
        environment = {"CHATLOCK_TEST_PG_URL": pg_url}
        process = child(Child.python("-m", "tests.run", str(tmp_path), environment=environment))
        return process.wait(60), process.text.splitlines()

    return run


def test_passing_files_end_well(run: Callable[..., tuple[int, list[str]]]) -> None:
    code, lines = run({"one": PASSES, "two": PASSES + "def test_too(): pass\n"})
    assert (code, lines[-1]) == (0, "3 passed, 0 failed"), lines


def test_each_way_to_fail_is_one_failure(run: Callable[..., tuple[int, list[str]]]) -> None:
    code, lines = run({"passes": PASSES, **FAILURES})
    # The test that leaves a process behind passes itself.
    assert (code, lines[-1]) == (1, f"2 passed, {len(FAILURES)} failed"), lines
    progress = [line for line in lines if line.startswith("[")]
    assert len(progress) == len(FAILURES) + 1
    for name in FAILURES:
        assert any(f"/test_{name}.py  1 FAILED" in line for line in progress), name
    text = "\n".join(lines)
    for told in ("pears", "no server", "no_such_module", "no_such_fixture", "sleep", "old"):
        assert told in text


def test_no_test_is_a_failure(run: Callable[..., tuple[int, list[str]]]) -> None:
    code, lines = run({})
    assert (code, lines[-1]) == (1, "0 passed, 0 failed"), lines


def test_server_that_cannot_be_reached_is_a_failure(
    run: Callable[..., tuple[int, list[str]]],
) -> None:
    code, lines = run({"one": PASSES}, "postgresql+psycopg://postgres@127.0.0.1:1/postgres")
    assert (code, lines[-1]) == (1, "0 passed, 1 failed"), lines

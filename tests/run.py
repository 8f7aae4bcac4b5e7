"""Run the suite: three workers, a forked process per test file, real servers, one closing line.

    python -m tests.run [PATH ...] [--workers N]

A worker forks from this process, which has imported what the tests need, so a file starts at once and with fresh
state. A file spends about a third of its time waiting, so three workers keep two cores busy. PostgreSQL and the
templates of the databases are made here, once.
Exit code 1: a test failed, a file held no test, a process was left behind, a server did not start.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support import ROOT, scaled, servers, shared
from tests.support.databases import Templates, connect
from tests.support.waiting import until

TIMINGS = ROOT / ".pytest_cache" / "file_seconds.json"
SECONDS_PER_FILE_MAX = scaled(600, 3600)
SECONDS_PER_TEST_MAX = scaled(240, 1800)
SECONDS_TO_VANISH = 3
PYTEST_OPTIONS = [
    *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)),
    *("-q", "--no-header", "-p", "no:cacheprovider"),
    *("-o", f"faulthandler_timeout={SECONDS_PER_TEST_MAX}"),
]
PRELOADED = "tests.support.fixtures"
TOGETHER = "with_"
"""A directory whose name begins so is run as one file: its framework takes longer to import than its tests to run."""


@dataclass
class Result:
    """What one test file came to."""

    path: Path
    passed: int
    failed: int
    seconds: float
    output: str

    @property
    def area(self) -> str:
        """The directory under tests/ that holds the file."""
        tests = ROOT / "tests"
        inside = self.path.is_relative_to(tests)
        return self.path.relative_to(tests).parts[0] if inside else self.path.parent.name


class Count:
    """A pytest plugin: how many tests passed and how many failed."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed
        self.failed += not report.passed

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed += not report.passed


class Worker:
    """One forked process that runs one test file."""

    def __init__(self, path: Path, number: int, directory: Path) -> None:
        self.path = path
        self.number = number
        self.started = time.monotonic()
        self._output = directory / f"{number}.output"
        self._count = directory / f"{number}.count"
        self._count.unlink(missing_ok=True)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._work()
        os.setpgid(self.pid, self.pid)

    def result(self) -> Result | None:
        """What the file came to, once it has ended."""
        late = time.monotonic() - self.started > SECONDS_PER_FILE_MAX
        if late:
            self.kill()
        ended, status = os.waitpid(self.pid, 0 if late else os.WNOHANG)
        if not ended:
            return None
        left = self._left_behind()
        self.kill()
        result = self._read(os.waitstatus_to_exitcode(status))
        if late:
            result.output += f"\nStopped: it took over {SECONDS_PER_FILE_MAX} s.\n"
        if left:
            result.failed += 1
            result.output += f"\nIt left processes behind: {left}\n"
        return result

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _work(self) -> None:
        code = 1
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            shared.worker = self.number
            with self._output.open("wb") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            count = Count()
            code = pytest.main([str(self.path), *PYTEST_OPTIONS], plugins=[count])
            # A file that cannot be run, or that holds no test, has failed.
            failed = count.failed or int(code != pytest.ExitCode.OK)
            self._count.write_text(json.dumps([count.passed, failed]))
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    def _read(self, code: int) -> Result:
        seconds = time.monotonic() - self.started
        output = self._output.read_text(errors="replace")
        if self._count.exists():
            passed, failed = json.loads(self._count.read_text())
        else:
            passed, failed = 0, 1
            output += f"\nThe process ended with {code} before its tests did.\n"
        return Result(self.path, passed, failed, seconds, output)

    def _left_behind(self) -> list[str]:
        deadline = time.monotonic() + SECONDS_TO_VANISH
        while (names := _group(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)  # bounded poll
        return names


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run")
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "tests"])
    parser.add_argument("--workers", type=int, default=3)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = time.monotonic()
    files = find_files(options.paths)
    with ExitStack() as stack:
        try:
            prepare(stack)
        except Exception:
            traceback.print_exc()
            results = []
            broken = 1
        else:
            results = run_files(files, options.workers)
            broken = 0
    report(results)
    print(f"total {time.monotonic() - started:.1f} s")
    passed = sum(result.passed for result in results)
    failed = sum(result.failed for result in results) + broken
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0 or passed == 0)


def find_files(paths: list[Path]) -> list[Path]:
    """The test files and the directories that are run as one, those that took longest the last time first."""
    found = {
        (file.parent if file.parent.name.startswith(TOGETHER) else file).resolve()
        for path in paths
        for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    }
    seconds = _timings()
    return sorted(found, key=lambda file: (-seconds.get(_name(file), float("inf")), file))


def prepare(stack: ExitStack) -> None:
    """Start PostgreSQL, make the templates, and import what every test file imports."""
    existing = os.environ.get(servers.PG_URL)
    if existing:
        shared.postgres = servers.Existing(existing)
    else:
        shared.postgres = stack.enter_context(servers.PostgreSQL())
    url = shared.postgres.url
    connect(url).close()
    shared.templates = Templates(lambda: url)
    stack.callback(shared.templates.dispose)
    shared.templates.prepare_sqlite()
    shared.templates.prepare_postgresql()
    shared.templates.disconnect()
    __import__(PRELOADED)
    gc.collect()
    gc.freeze()  # a forked process need not look through what this one has loaded


def run_files(files: list[Path], workers: int) -> list[Result]:
    waiting = list(reversed(files))
    running: dict[int, Worker] = {}
    results: list[Result] = []
    seconds = _timings()
    with tempfile.TemporaryDirectory(prefix="chatlock-") as directory:
        try:
            while waiting or running:
                for number in set(range(workers)) - set(running):
                    if waiting:
                        running[number] = Worker(waiting.pop(), number, Path(directory))
                for worker, result in _next_results(running):
                    del running[worker.number]
                    results.append(result)
                    seconds[_name(result.path)] = round(result.seconds, 2)
                    _show_progress(result, len(results), len(files))
        finally:
            for worker in running.values():
                worker.kill()
    TIMINGS.parent.mkdir(exist_ok=True)
    TIMINGS.write_text(json.dumps(seconds, indent=1, sort_keys=True))
    return results


def report(results: list[Result]) -> None:
    for result in results:
        if result.failed:
            print(f"\n==== {_name(result.path)}\n{result.output}")
    areas: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        areas[result.area].append(result)
    print(f"\n{'area':<14}{'passed':>8}{'failed':>8}{'seconds':>9}")
    for area, members in sorted(areas.items()):
        passed = sum(result.passed for result in members)
        failed = sum(result.failed for result in members)
        seconds = sum(result.seconds for result in members)
        print(f"{area:<14}{passed:>8}{failed:>8}{seconds:>9.1f}")


def _next_results(running: dict[int, Worker]) -> list[tuple[Worker, Result]]:
    def ended() -> list[tuple[Worker, Result]]:
        found = [(worker, worker.result()) for worker in running.values()]
        return [(worker, result) for worker, result in found if result]

    return until(ended, timeout=2 * SECONDS_PER_FILE_MAX, what="the end of a test file")


def _show_progress(result: Result, number: int, total: int) -> None:
    verdict = f"{result.failed} FAILED, " if result.failed else ""
    counts = f"{verdict}{result.passed} passed in {result.seconds:.1f} s"
    print(f"[{number}/{total}] {_name(result.path)}  {counts}", flush=True)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _timings() -> dict[str, float]:
    try:
        found: dict[str, float] = json.loads(TIMINGS.read_text())
    except (OSError, ValueError):
        found = {}
    return found


def _group(number: int) -> list[str]:
    """The processes of a group that still run."""
    names = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == number and process.status() != psutil.STATUS_ZOMBIE:
                names.append(f"{process.pid} {process.name()}")
    return names


if __name__ == "__main__":
    sys.exit(main())

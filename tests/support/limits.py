"""Limits for a run of the tests, so that it ends, and shows where it hung.

A test that takes too long is failed by pytest-timeout, but only while its Python code runs, and only once:
what tidies up behind a test that has failed may hang for as long as it likes, and so may a process on its way
out. Here every phase of a test, and the end of a process, has a limit; after it the process shows the stacks
of all its threads and dies; xdist then names the test. A whole run has one too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time

import psutil
import pytest

RUN_SECONDS = 75 * 60
# Beyond a test's own time-out, which says more.
GRACE_SECONDS = 120
# A limit that has run for less is not set again; the grace is so much shorter.
RENEW_SECONDS = 30
LEAVE_SECONDS = 180
ABORT_SECONDS = 10


class RunLimits:
    """A plugin for the process that runs tests, and for the one of xdist's that hands them out."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._stderr = os.dup(2)  # before tests are listened to
        self._running: dict[str, float] = {}
        self._limit_s: float | None = None
        self._since = 0.0

    # Where tests run.

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._limit(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._limit(item)

    def pytest_exception_interact(self) -> None:
        self._limit_s = None  # pytest drops it when a test has failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._die_in(LEAVE_SECONDS)

    def pytest_unconfigure(self) -> None:
        """A worker that has no tests left waits here for the others, and is ended by xdist."""
        if hasattr(self._config, "workerinput"):
            faulthandler.cancel_dump_traceback_later()

    def _limit(self, item: pytest.Item) -> None:
        asked = self._config.getoption("timeout")
        mark = item.get_closest_marker("timeout")
        if asked is None:
            asked = mark.args[0] if mark is not None and mark.args else self._config.getini("timeout")
        limit_s, now = float(asked), time.monotonic()
        if limit_s == self._limit_s and now - self._since < RENEW_SECONDS:
            return  # it starts a thread, which takes as long as a small test
        self._limit_s, self._since = limit_s, now
        if limit_s:
            self._die_in(limit_s + GRACE_SECONDS)
        else:
            faulthandler.cancel_dump_traceback_later()

    def _die_in(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stderr)

    # Where xdist hands them out.

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        hands_out = self._config.pluginmanager.hasplugin("dsession")
        if hands_out and self._config.getoption("timeout") != 0:
            threading.Thread(target=self._end_the_run, daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failure at once: the run may be ended from outside."""
        if report.failed and not hasattr(self._config, "workerinput"):
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash is not None and crash.message else ""
            self._say(f"{report.when} of {report.nodeid} failed: {why}")

    def _end_the_run(self) -> None:
        time.sleep(RUN_SECONDS)
        now = time.monotonic()
        running = [f"{name} for {now - since:.0f} s" for name, since in list(self._running.items())]
        self._say(
            f"the run takes more than {RUN_SECONDS // 60} minutes; running: {', '.join(running) or 'none'}"
        )
        for worker in psutil.Process().children():
            _abort(worker)
        time.sleep(LEAVE_SECONDS)
        self._say("the run does not end")
        os._exit(1)

    def _say(self, text: str) -> None:
        os.write(self._stderr, f"\n{text}\n".encode())


def _abort(process: psutil.Process) -> None:
    """It shows its stacks and dies; the next one should not talk at the same time."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGABRT)
        deadline = time.monotonic() + ABORT_SECONDS
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.05)

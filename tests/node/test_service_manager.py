"""A node as a service of systemd: what it sends to the socket that systemd gives it, and the unit file."""

from __future__ import annotations

import configparser
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.runtime.service_manager import ServiceManager

UNIT = Path(__file__).parents[2] / "packaging" / "systemd" / "ottla.service"
SECONDS = 60.0


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(SECONDS)
        yield listener


def lines(listener: socket.socket) -> list[str]:
    return listener.recv(4096).decode().split("\n")


def until(listener: socket.socket, wanted: str) -> list[str]:
    """All lines up to the message that has the wanted one."""
    seen: list[str] = []
    while wanted not in seen:
        seen += lines(listener)
    return seen


def falls_silent(listener: socket.socket) -> bool:
    """Whether no message comes for several times the interval of the watchdog."""
    listener.settimeout(0.7)
    try:
        for _ in range(20):
            lines(listener)
    except TimeoutError:
        return True
    finally:
        listener.settimeout(SECONDS)
    return False


def start(address: str, directory: Path, *options: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ottla", "start", "--data-dir", str(directory)]
    return subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--set", "http.listener=", *options],
        env={**os.environ, "NOTIFY_SOCKET": address, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_a_node_says_when_it_is_ready_alive_and_stopping(tmp_path: Path) -> None:
    # In Linux' abstract namespace, as systemd does it in containers.
    name = f"ottla-test-{os.getpid()}-{tmp_path.name}"
    with listening(f"\0{name}") as listener:
        node = start(f"@{name}", tmp_path / "data", WATCHDOG_USEC="300000")
        try:
            seen = until(listener, "READY=1")
            # While it starts it asks for the time that it needs.
            assert "EXTEND_TIMEOUT_USEC=30000000" in seen
            assert any(line.startswith("STATUS=serving at 127.0.0.1:") for line in seen)
            for _ in range(3):
                until(listener, "WATCHDOG=1")
            # A node that hangs is not alive.
            node.send_signal(signal.SIGSTOP)
            assert falls_silent(listener)
            node.send_signal(signal.SIGCONT)
            until(listener, "WATCHDOG=1")
            node.send_signal(signal.SIGTERM)
            assert "STATUS=stopping" in until(listener, "STOPPING=1")
            assert node.wait(SECONDS) == 0
        finally:
            node.kill()
            node.wait()


@pytest.mark.slow
def test_why_a_node_cannot_start_is_its_status(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with listening(address) as listener, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        node = start(address, tmp_path / "data", "--set", f"listeners=PLAINTEXT://{where}")
        try:
            seen = until(listener, "STOPPING=1")
            assert any(line.startswith("STATUS=") and f"cannot listen on {where}" in line for line in seen)
            assert node.wait(SECONDS) == 1
        finally:
            node.kill()
            node.wait()


def test_without_a_service_manager_nothing_is_sent() -> None:
    manager = ServiceManager({}, 1)
    manager.send_ready("fine")
    assert (manager.is_there, manager.watchdog_ms) == (False, 0)


def test_the_watchdog_is_for_the_process_that_it_names(tmp_path: Path) -> None:
    given = {"NOTIFY_SOCKET": str(tmp_path / "none"), "WATCHDOG_USEC": "2000000"}
    assert ServiceManager(given, 7).watchdog_ms == 2000
    assert ServiceManager({**given, "WATCHDOG_PID": "7"}, 7).watchdog_ms == 2000
    assert ServiceManager({**given, "WATCHDOG_PID": "8"}, 7).watchdog_ms == 0
    assert ServiceManager({**given, "WATCHDOG_USEC": "soon"}, 7).watchdog_ms == 0
    ServiceManager(given, 7).send_alive()  # its socket is gone: the service goes on


def test_a_status_is_one_line(tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as listener:
        ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}, 1).send_status(
            "a\nREADY=1\n" + "b" * 9_000
        )
        (line,) = lines(listener)
        assert line.startswith("STATUS=a READY=1 bbb")
        assert len(line) < 600


@pytest.mark.slow
def test_the_unit_file_is_one_that_systemd_takes() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    assert (service["Type"], service["Restart"]) == ("notify", "on-failure")
    assert service["ExecStart"].split()[1:] == ["start", "/etc/ottla/server.properties"]
    assert int(service["WatchdogSec"]) > 0
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze; apt-get install systemd")
    checked = subprocess.run(
        [analyze, "verify", "--man=no", str(UNIT)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    problems = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    # The user and the executable are made when it is installed.
    assert all("/opt/ottla/bin/ottla is not executable" in line for line in problems), checked.stderr

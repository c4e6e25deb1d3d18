"""The service manager that runs this process, if one does and wants to hear of it: systemd's notifications.

systemd names a socket in the environment of a service with `Type=notify`; what is sent there says when the
service is ready, that it still starts or stops, that it is alive (`WatchdogSec=`), and what it does. Without
such a socket nothing is sent.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Final

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG_USEC: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"
_MAX_STATUS: Final = 500


class ServiceManager:
    """A message that cannot be sent is dropped: the service goes on without its manager."""

    __slots__ = ("_address", "watchdog_ms")

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        given = environment.get(_SOCKET, "")
        # A name that begins with @ is in Linux' abstract namespace.
        self._address: Final = "\0" + given[1:] if given.startswith("@") else given
        usec = environment.get(_WATCHDOG_USEC, "")
        for_this = environment.get(_WATCHDOG_PID, str(pid)) == str(pid)
        self.watchdog_ms: Final = int(usec) // 1000 if self.is_there and for_this and usec.isdecimal() else 0
        """Within which time `send_alive` must be called again and again; 0 if it need not."""

    @property
    def is_there(self) -> bool:
        return bool(self._address)

    def send_ready(self, status: str) -> None:
        """The start is complete."""
        self._send("READY=1", _status(status))

    def send_stopping(self) -> None:
        self._send("STOPPING=1", _status("stopping"))

    def send_alive(self) -> None:
        self._send("WATCHDOG=1")

    def send_status(self, status: str) -> None:
        """What the service does, for `systemctl status`."""
        self._send(_status(status))

    def ask_for_time(self, ms: int, status: str) -> None:
        """A start or a stop goes on, and takes up to so much longer."""
        self._send(f"EXTEND_TIMEOUT_USEC={ms * 1000}", _status(status))

    def _send(self, *lines: str) -> None:
        if not self.is_there or not hasattr(socket, "AF_UNIX"):
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    """A status is one line."""
    return "STATUS=" + " ".join(text.split())[:_MAX_STATUS]

"""`ottla console` as a process of its own, beside any cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SECONDS = 120
_READY = re.compile(r"the console is at (\S+)")


@contextmanager
def console_beside(bootstrap: str, *arguments: str, listen: str = "http://127.0.0.1:0") -> Iterator[str]:
    """Run a console for a cluster; gives the address that it prints, which opens one session."""
    command = [sys.executable, "-m", "ottla", "console", "--bootstrap-server", bootstrap, "--listen", listen]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        ready = _READY.match(line)
        assert ready is not None, line + (process.stderr.read() if process.poll() is not None else "")
        yield ready[1]
    finally:
        process.terminate()
        process.communicate(timeout=STOP_SECONDS)

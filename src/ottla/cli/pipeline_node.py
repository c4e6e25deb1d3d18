"""The node that `ottla pipeline run --embedded` brings along: `ottla start` as a process beside Spark.

It listens on a free port of the loopback interface, keeps its data with the project, and stops with the
command.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ottla.cli.errors import CliError

_READY: Final = re.compile(r"is ready: (?P<address>[^,]+),")
_STOP_SECONDS: Final = 30


@contextlib.contextmanager
def embedded_node(data_dir: Path, log: Path) -> Iterator[str]:
    """A node that runs while the block does; what clients connect to is handed out."""
    data_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ottla", "start"]
    command += ["--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    with log.open("ab") as errors:
        # In a group of its own: Ctrl-C is for the pipeline, which then stops its node in good order.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, process_group=0
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode(errors="replace")
        ready = _READY.search(line)
        if ready is None:
            raise CliError(f"the embedded node did not start; {log} says why")
        yield ready["address"].split()[0]
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()

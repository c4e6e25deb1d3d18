"""`python -m ottla.testing.reaper DIR [--remove]`: end the nodes of a cluster when its starter has ended.

The reaper reads its standard input; only the process that started the cluster holds the other end of the
pipe. When that process ends, also by SIGKILL, the pipe is closed; the reaper then kills the nodes that still
run, including paused ones, and removes the directory if it is a temporary one. So a test run that is killed
leaves no processes and no files.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

_REMOVE: Final = "--remove"
_END_SECONDS: Final = 30.0


class ClusterReaper:
    """The process of the reaper, from its start until `dismiss`."""

    def __init__(self, directory: Path, *, temporary: bool) -> None:
        options = [_REMOVE] if temporary else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ottla.testing.reaper", str(directory), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End the reaper without its work: the nodes have ended already."""
        self._process.kill()
        self._process.wait(_END_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()


def main() -> None:
    directory, *options = sys.argv[1:]
    sys.stdin.buffer.read()
    # Imported late: most reapers are dismissed, and stay small.
    from ottla.testing.cluster_plan import ClusterPlan
    from ottla.testing.cluster_process import ClusterError, NodeProcess

    for node in ClusterPlan.read(directory).nodes:
        with contextlib.suppress(ClusterError):
            NodeProcess(node).signal(signal.SIGKILL)
    if _REMOVE in options:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()

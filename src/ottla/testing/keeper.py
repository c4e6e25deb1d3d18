"""`python -m ottla.testing.keeper DIR [--remove]`: the nodes of a cluster end with whoever started them.

The keeper reads its standard input, whose other end only the starter holds. When that one dies, however
suddenly, the pipe is closed, and the keeper kills the nodes that still run, paused ones too, and removes the
directory if it was a temporary one. So a test run that is killed leaves nothing behind.
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


class Keeper:
    """The process, from its start until it is not needed any more."""

    def __init__(self, directory: Path, *, temporary: bool) -> None:
        options = [_REMOVE] if temporary else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ottla.testing.keeper", str(directory), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Everything is cleared away already."""
        self._process.kill()
        self._process.wait(_END_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()


def main() -> None:
    directory, *options = sys.argv[1:]
    sys.stdin.buffer.read()
    # Not before they are needed: most keepers never get here.
    from ottla.testing.cluster_plan import ClusterPlan
    from ottla.testing.cluster_process import ClusterError, NodeProcess

    for node in ClusterPlan.read(directory).nodes:
        with contextlib.suppress(ClusterError):
            NodeProcess(node).signal(signal.SIGKILL)
    if _REMOVE in options:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()

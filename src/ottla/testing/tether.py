"""`python -m ottla.testing.tether FD start …`: the `ottla` command, which ends with whoever started it.

`FD` is the read end of a pipe whose other end only the starter holds. When that one dies, however suddenly,
the pipe is closed and this process kills itself: a test run that is killed leaves no nodes behind. That works
on every system, and whichever thread of the starter it was.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _wait(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    lifeline = int(sys.argv[1])
    threading.Thread(target=_wait, args=(lifeline,), name="tether", daemon=True).start()
    sys.argv[:2] = ["ottla"]
    runpy.run_module("ottla", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""The process that a node runs in: its signals, limits, memory and environment."""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

if sys.platform != "win32":
    import resource


# setrlimit on macOS refuses more than OPEN_MAX even where the hard limit reads as unlimited.
_MACOS_OPEN_MAX = 10_240


def pid() -> int:
    return os.getpid()


def cpu_count() -> int:
    """The number of processors that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_ns() -> int:
    """Processor time used so far, user and system together."""
    return time.process_time_ns()


def environment() -> Mapping[str, str]:
    """A copy of the environment variables."""
    return dict(os.environ)


def resident_bytes() -> int:
    """The resident memory; on macOS, which does not report it, the maximum so far."""
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def let_threads_switch_quickly() -> None:
    """Let a thread that waits for the interpreter have it after 1 ms instead of 5: the event loop waits for
    the threads of the pool that often.
    """
    sys.setswitchinterval(0.001)


def open_files() -> int:
    """The number of file descriptors in use."""
    directory = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    # Linux counts them by itself since 6.2. A listing takes milliseconds for thousands of them, and holds one
    # of its own.
    counted = os.stat(directory).st_size if sys.platform == "linux" else 0
    return counted or len(os.listdir(directory)) - 1


def open_file_limit() -> int:
    """The number of file descriptors that this process may have; `sys.maxsize` if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_open_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, and return it.

    A node holds thousands of files and connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard
    if sys.platform == "darwin" and (hard == resource.RLIM_INFINITY or hard > _MACOS_OPEN_MAX):
        wanted = _MACOS_OPEN_MAX
    if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > soft):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return open_file_limit()
    return open_file_limit()


def on_termination(callback: Callable[[str], None]) -> Callable[[], None]:
    """Call `callback("SIGTERM")`, or with SIGINT or SIGHUP, on the running loop, each time one arrives.

    A terminal that closes ends what it runs (SIGHUP), unless that was started with `nohup`. Returns a
    function that puts the system's own handling back. Only for the main thread.
    """
    loop = asyncio.get_running_loop()
    signals = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, callback, number.name)

    def undo() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    return undo


def on_status_request(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` on the running loop each time SIGUSR1 arrives. Returns a function that ends this; the
    signal is ignored afterwards, as it would end a process that is stopping. Only for the main thread.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, callback)

    def undo() -> None:
        loop.remove_signal_handler(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    return undo


def write_stacks_on_crash() -> None:
    """Have the stacks of all threads written to stderr when a crash ends the process, by SIGSEGV for example;
    without them the exit status is all that is left of it.
    """
    if sys.stderr is not None:  # otherwise a data file may have its descriptor
        faulthandler.enable()


def write_stacks_on_request() -> None:
    """Have the stacks of all threads written to stderr for each SIGQUIT, as a Java virtual machine does. The
    interpreter does it between two instructions of the main thread, also of a loop that never comes to its
    end: stacks that are read while their threads run may crash the process. Only for the main thread.
    """
    stderr = sys.stderr
    if stderr is not None:
        signal.signal(signal.SIGQUIT, lambda _signal, _frame: faulthandler.dump_traceback(stderr))


def on_exit(callback: Callable[[], None]) -> None:
    """Call when this process ends in order. A process that is forked from it does not call."""
    own = os.getpid()

    def call() -> None:
        if os.getpid() == own:
            callback()

    atexit.register(call)


def lower_priority() -> None:
    """Let other processes go first, where the machine is busy."""
    os.nice(5)


def halt(status: int) -> None:
    """End the process at once, without cleaning up, in a state in which continuing would do damage."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

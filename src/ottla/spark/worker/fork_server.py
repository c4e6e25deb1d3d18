"""A process that has imported what Spark's Python processes need, and forks one of them for each request.

A run of Spark starts a Python process for each kind of work (to find the source, to plan a read, to follow a
stream, to run tasks, to commit), and each imports PySpark and Arrow first, for most of a second of processor.
On a busy machine that takes longer than the ten seconds for which Spark waits for some of them ("Python
worker failed to connect back"). So a session starts this server while Java starts, and has Spark start its
processes by `ottla.spark.worker.launch`.

A fork is as good as a new process: only known modules are run, and only those that need nothing of their
start but what a fork can be given. What can not (a seed of hashes, a number of threads) has to be as
the server's own; otherwise the launcher starts a new process. A process with more than one thread cannot be
forked, so the server ends if an import has started one: then nothing is forked.
"""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.spark.worker.launch import FILES, SIZE, STATUS

_IMPORTED: Final = (
    "pyarrow",
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark_ottla",
    "ottla.spark.source.batch_reader",
    "ottla.spark.source.range_reader",
    "ottla.spark.source.stream_reader",
    "ottla.spark.sink.writers",
    "ottla.spark.sink.task_writer",
)
_RUN: Final = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")
# What a process reads at its start, or at the import of numpy.
_OF_THE_START: Final = (
    "PYTHONHASHSEED",
    "PYTHONHOME",
    "PYTHONDEVMODE",
    "PYTHONWARNINGS",
    "PYTHONFAULTHANDLER",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What a process is to be: the module, its arguments, its environment, directory and files."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    files: list[int]


class ForkServer:
    """Forks a process for each client, and tells it the status when the process has ended. A fork whose
    client has gone is killed; the server ends with the process that has started it.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: dict[int, socket.socket] = {}  # by the fork of each
        self._woken, self._wakes = socket.socketpair()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> ForkRequest | None:
        """Serve until the process that has started this one ends; then return None. In a fork, return what
        it is to be.
        """
        self._wakes.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno())
        for file in (sys.stdin, self._listener, self._woken):
            self._selector.register(file, selectors.EVENT_READ)
        while True:
            ready = [key for key, _ in self._selector.select()]
            files = {key.fileobj for key in ready}
            if sys.stdin in files:
                return None
            if self._woken in files:
                self._woken.recv(4096)
                self._report_ended()
            for key in ready:
                if key.data in self._clients:  # it says nothing, so it is gone
                    os.kill(key.data, signal.SIGKILL)
                    self._selector.unregister(key.fileobj)
            if self._listener in files and (request := self._accept()) is not None:
                return request

    def _accept(self) -> ForkRequest | None:
        """Take a request; the result is for the fork, and None here."""
        client, _ = self._listener.accept()
        request = None
        try:
            request = _received_request(client)
            if request is None or not can_be_forked(request.arguments, request.environment):
                client.sendall(b"\0")
                client.close()
                return None
            client.sendall(b"\1")
            pid = os.fork()
            if pid == 0:
                self._leave()
                client.close()
                taken, request = request, None
                return taken
        except (OSError, EOFError):
            client.close()
            return None
        finally:
            # Spark sees the end of a process by that of its output, which nothing else may have open.
            for file in request.files if request is not None else ():
                os.close(file)
        self._clients[pid] = client
        self._selector.register(client, selectors.EVENT_READ, pid)
        with suppress(OSError):
            client.sendall(STATUS.pack(pid))
        return None

    def _leave(self) -> None:
        """Close what a fork has of the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for each in (self._listener, self._woken, self._wakes, *self._clients.values()):
            each.close()

    def _report_ended(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                client = self._clients.pop(ended[0])
                with suppress(KeyError):  # if it was gone before
                    self._selector.unregister(client)
                with suppress(OSError):
                    client.sendall(STATUS.pack(os.waitstatus_to_exitcode(ended[1])))
                client.close()


def _received_request(client: socket.socket) -> ForkRequest | None:
    """What a client asks for, with the files that it sends."""
    header, files, _, _ = socket.recv_fds(client, SIZE.size, len(FILES))
    if len(header) < SIZE.size or len(files) < len(FILES):
        for file in files:
            os.close(file)
        return None
    left = SIZE.unpack(header)[0]
    parts = []
    while left and (part := client.recv(left)):
        parts.append(part)
        left -= len(part)
    asked = {} if left else marshal.loads(b"".join(parts))
    return ForkRequest(asked["arguments"], asked["environment"], asked["directory"], files) if asked else None


def can_be_forked(arguments: list[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork of this process is as good as a new process."""
    if arguments[0] not in _RUN or arguments[1:] not in ([], *([name] for name in _IMPORTED)):
        return False
    mine, path = _path(os.environ), _path(environment)
    # Spark adds its own archives. A directory may have other modules than those that are imported here.
    if [each for each in path if os.path.isdir(each)] != [each for each in mine if os.path.isdir(each)]:
        return False
    return all(environment.get(name, "") in ("", os.environ.get(name, "")) for name in _OF_THE_START)


def _path(environment: Mapping[str, str]) -> list[str]:
    return [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


def become(request: ForkRequest) -> None:
    """Run what was asked for, as `python -m` does."""
    for mine, given in zip(FILES, request.files, strict=True):
        os.dup2(given, mine)
        os.close(given)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    module, *arguments = request.arguments
    sys.argv = [module, *arguments]
    added = [each for each in _path(request.environment) if each not in sys.path]
    sys.path[:1] = [request.directory, *added]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _seed_again() -> None:
    """Give each fork random numbers of its own, as each new process has; `random` does so itself."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def main(listener: socket.socket) -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        return
    gc.collect()
    gc.freeze()
    os.register_at_fork(after_in_child=_seed_again)
    request = ForkServer(listener).serve()
    if request is not None:
        become(request)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))

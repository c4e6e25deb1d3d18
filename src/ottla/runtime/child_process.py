"""A child process that answers requests, one at a time, over its standard input and output.

For work that must not share the interpreter of a node: libraries that take seconds to import, hold it for
long or may crash. A message is a JSON object and bytes. The child ends when its input does, so it does not
outlive its parent, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

from ottla.runtime.pool import ThreadPool

_HEAD: Final = struct.Struct(">II")
_MAX_HEAD: Final = 16 * 1024 * 1024
_MAX_PAYLOAD: Final = 1024 * 1024 * 1024
_STOP_SECONDS: Final = 10.0
# How often a child looks whether its parent is there; mostly it is the end of the input that tells.
_PARENT_SECONDS: Final = 2.0


class ChildFailed(Exception):
    """The child has ended, or answers no more. It has to be replaced."""


class ChildTimedOut(ChildFailed):
    """The child has not answered in time, and was ended."""


class ChildProcess:
    """`python -m module` as a child. It has a thread of its own, so a slow child takes none of the pool."""

    def __init__(self, module: str, *, timeout_seconds: float) -> None:
        self._module: Final = module
        self._timeout_seconds: Final = timeout_seconds
        self._thread: Final = ThreadPool(1, backlog=0, name=f"ottla-{module.rpartition('.')[2]}")
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def request(self, head: Mapping[str, Any], payload: bytes = b"") -> dict[str, Any]:
        """Send a request and return the answer. The child starts with the first one. One that takes too long,
        or whose caller goes away, ends the child.
        """
        if self._closed:
            raise ChildFailed("the child has been closed")
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._thread.run(self._exchange, head, payload)
        except (TimeoutError, asyncio.CancelledError) as error:
            self.kill()
            if isinstance(error, TimeoutError):
                raise ChildTimedOut(f"no answer within {self._timeout_seconds:.0f} s") from None
            raise
        if isinstance(answer, ChildFailed):
            raise answer
        return answer

    def _exchange(self, head: dict[str, Any], payload: bytes) -> dict[str, Any] | ChildFailed:
        """A failure is returned: the caller may be gone, and none would take note of an error."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # an interrupt from the terminal is for the parent
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, head, payload)
            found = _read(process.stdout)
        except (OSError, ValueError) as error:
            return ChildFailed(f"the child has failed: {error}")
        if found is None:
            return ChildFailed(f"the child has ended with the status {process.wait()}")
        return found[0]

    def kill(self) -> None:
        """End the child at once. Further requests fail."""
        self._closed = True
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """Let the child end by itself, or end it; return when it has."""
        self._closed = True
        await self._thread.run(self._close)
        self._thread.close()

    def _close(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it may be gone
            process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def serve_requests(answer: Callable[[dict[str, Any], bytes], dict[str, Any]]) -> None:
    """Answer the requests of the parent until it closes the input; the child's side."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    source, target = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no answer
    while (found := _read(source)) is not None:
        _write(target, answer(*found), b"")


def _end_with_parent(parent: int) -> None:
    """End this process when its parent has ended, even while a request hangs."""
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


def _write(file: IO[bytes], head: dict[str, Any], payload: bytes) -> None:
    text = json.dumps(head).encode()
    file.write(_HEAD.pack(len(text), len(payload)) + text)
    if payload:
        file.write(payload)
    file.flush()


def _read(file: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None at the end."""
    sizes = file.read(_HEAD.size)
    if len(sizes) < _HEAD.size:
        return None
    head_size, payload_size = _HEAD.unpack(sizes)
    if head_size > _MAX_HEAD or payload_size > _MAX_PAYLOAD:
        raise ValueError(f"a message of {head_size} and {payload_size} bytes")
    head, payload = file.read(head_size), file.read(payload_size)
    if len(head) < head_size or len(payload) < payload_size:
        return None
    return json.loads(head), payload

"""A TCP proxy that misbehaves on request: cuts, holds and forgets, between a client and a broker.

The broker's settings advertise the proxy's address, so that all of its clients' traffic comes through here.
"""

from __future__ import annotations

import asyncio
from typing import Self

_STEP = 64 * 1024


class Proxy:
    """`cut_after(n)` ends a connection after n more bytes of answers, in the middle of one if it falls so."""

    def __init__(self) -> None:
        self.port = 0
        self.target = ("127.0.0.1", 0)
        self.connections = 0
        self.refuse = False
        self._counted = asyncio.Condition()
        self._allowance: int | None = None
        self._silent = asyncio.Event()
        self._silent.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def connected(self, count: int) -> None:
        """Waits until there have been this many connections."""
        async with self._counted:
            await self._counted.wait_for(lambda: self.connections >= count)

    def cut_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def cut_after(self, answer_bytes: int) -> None:
        self._allowance = answer_bytes

    def heal(self) -> None:
        """No more faults."""
        self._allowance = None
        self.refuse = False
        self._silent.set()

    def hold_answers(self) -> None:
        self._silent.clear()

    def release_answers(self) -> None:
        self._silent.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        async with self._counted:
            self._counted.notify_all()
        if self.refuse:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far_writer, answers=False))
                both.create_task(self._pump(far_reader, writer, answers=True))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._writers -= {writer, far_writer}
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        while data := await reader.read(_STEP):
            if answers:
                await self._silent.wait()
                if self._allowance is not None:
                    data, self._allowance = data[: self._allowance], max(self._allowance - len(data), 0)
                    if not self._allowance:
                        self._allowance = None
                        writer.write(data)
                        await writer.drain()
                        break
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

"""Where requests wait that come before what answers them is complete."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.node.api.services import ApiServices


class RequestGate:
    """The gate of all listeners of one kind. `services` is None until it opens, once."""

    __slots__ = ("opened", "services")

    def __init__(self) -> None:
        self.opened: Final = asyncio.Event()
        self.services: ApiServices | None = None

    def open(self, services: ApiServices) -> None:
        self.services = services
        self.opened.set()

    async def wait(self) -> ApiServices:
        await self.opened.wait()
        assert self.services is not None
        return self.services

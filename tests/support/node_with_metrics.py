"""A node in a thread, whose metrics a test reads as `/metrics` writes them."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.runtime.loop import LoopThread
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns
from ottla.testing.local_node import FOR_TESTS


class NodeWithMetrics:
    """Starts with the `with` block, and stops at its end."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self._settings = {
            **FOR_TESTS,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            **(settings or {}),
        }
        self._thread = LoopThread("node-with-metrics")
        self._runtime = Runtime.real(guest=True)
        self.node: Node
        self.bootstrap_servers = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._thread.call(self._start())
        return self

    async def _start(self) -> None:
        self.node = Node(self._runtime, NodeConfig(self._settings))
        await self.node.start()
        self.bootstrap_servers = f"127.0.0.1:{self.node.client_endpoints()[0].port}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.call(self.node.stop())
        self._thread.stop()
        self._runtime.close()

    def metrics(self) -> str:
        """The text of `/metrics` now."""
        return self._thread.call(self.node.metrics.render(Turns(self._runtime.clock))).decode()

    def sample(self, name: str, *labels: str) -> float | None:
        """The value of the one series of this name whose labels include these texts; None without one."""
        found = [
            line
            for line in self.metrics().splitlines()
            if line.startswith((f"{name}{{", f"{name} ")) and all(label in line for label in labels)
        ]
        assert len(found) <= 1, found
        return float(found[0].rsplit(" ", 1)[1]) if found else None

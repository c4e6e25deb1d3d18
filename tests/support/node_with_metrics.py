"""A node whose `/metrics` a test reads."""

from __future__ import annotations

import urllib.request
from types import TracebackType
from typing import Self

from ottla.testing.local_node import LocalNode


class NodeWithMetrics:
    """Starts with the `with` block, and stops at its end."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._node = LocalNode({"http.listener": "http://127.0.0.1:0", **(settings or {})})

    def __enter__(self) -> Self:
        self._node.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._node.stop()

    @property
    def bootstrap_servers(self) -> str:
        return self._node.bootstrap_servers

    def metrics(self) -> str:
        """The text of `/metrics` now."""
        with urllib.request.urlopen(f"{self._node.http_url}/metrics", timeout=60) as response:
            return bytes(response.read()).decode()

    def sample(self, name: str, *labels: str) -> float | None:
        """The value of the one series of this name whose labels include these texts; None without one."""
        found = [
            line
            for line in self.metrics().splitlines()
            if line.startswith((f"{name}{{", f"{name} ")) and all(label in line for label in labels)
        ]
        assert len(found) <= 1, found
        return float(found[0].rsplit(" ", 1)[1]) if found else None

"""The admin client: everything that a cluster can be asked about or told to change.

    async with Admin("localhost:9092") as admin:
        await admin.topics.create("orders", partitions=6)
        print(await admin.offsets.end("orders"))

Calls are grouped by what they are about, as the command line is. One about a single thing raises
`KafkaError`; one about many things returns what came of each, an error among the results where one failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from ottla.client.admin.caller import Caller
from ottla.client.admin.cluster import ClusterAdmin
from ottla.client.admin.configs import ConfigsAdmin
from ottla.client.admin.groups import GroupsAdmin
from ottla.client.admin.log_dirs import LogDirsAdmin
from ottla.client.admin.offsets import OffsetsAdmin
from ottla.client.admin.partitions import PartitionsAdmin
from ottla.client.admin.topics import TopicsAdmin
from ottla.client.admin.transactions import TransactionsAdmin
from ottla.client.cluster import Cluster, ConnectionConfig
from ottla.runtime.runtime import Runtime

__all__ = ["Admin"]


class Admin:
    """Connects on entering `async with` (or at the first call) and closes on leaving it."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        *,
        client_id: str = "ottla-admin",
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        runtime: Runtime | None = None,
    ) -> None:
        self._own_runtime = runtime is None
        self._runtime = runtime if runtime is not None else Runtime.real(pool_workers=1)
        config = ConnectionConfig(
            bootstrap_servers,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            allow_auto_create_topics=False,
        )
        self._cluster = Cluster(self._runtime, config)
        caller = Caller(self._cluster, default_api_timeout_ms)
        self.topics = TopicsAdmin(caller)
        self.partitions = PartitionsAdmin(caller)
        self.configs = ConfigsAdmin(caller)
        self.offsets = OffsetsAdmin(caller)
        self.log_dirs = LogDirsAdmin(caller)
        self.cluster = ClusterAdmin(caller)
        self.groups = GroupsAdmin(caller)
        self.transactions = TransactionsAdmin(caller, self.partitions)

    async def __aenter__(self) -> Self:
        try:
            await self._cluster.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._cluster.close()
        if self._own_runtime:
            self._runtime.close()

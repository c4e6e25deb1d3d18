"""`Admin`, the admin client: a connection to a cluster, and the groups of calls that use it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from ottla.client.admin.requests import AdminRequests
from ottla.client.metrics import ClientMetrics, MetricName
from ottla.client.network_client import NetworkClient
from ottla.client.settings import ClientConfig, Servers, connection_config, settings_of
from ottla.client.telemetry_reporter import ClientTelemetryReporter
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ottla.client.admin.acls import AclsAdmin
    from ottla.client.admin.cluster import ClusterAdmin
    from ottla.client.admin.configs import ConfigsAdmin
    from ottla.client.admin.groups import GroupsAdmin
    from ottla.client.admin.log_dirs import LogDirsAdmin
    from ottla.client.admin.offsets import OffsetsAdmin
    from ottla.client.admin.partitions import PartitionsAdmin
    from ottla.client.admin.quotas import QuotasAdmin
    from ottla.client.admin.tokens import DelegationTokensAdmin
    from ottla.client.admin.topics import TopicsAdmin
    from ottla.client.admin.transactions import TransactionsAdmin
    from ottla.client.admin.users import UsersAdmin


@dataclass(frozen=True, slots=True)
class AdminConfig(ClientConfig):
    """A call is retried while it fails with a retriable error, within `default_api_timeout_ms`."""

    client_id: str | None = "ottla-admin"
    default_api_timeout_ms: int = 60_000
    connections_max_idle_ms: int = 300_000


class Admin:
    """Connects on entering `async with` (or at the first call) and closes on leaving it. All settings of
    `AdminConfig` can be given as keywords, or by Kafka's names as a mapping in the first argument.
    """

    def __init__(
        self, bootstrap_servers: Servers = None, *, runtime: Runtime | None = None, **settings: Any
    ) -> None:
        self.config = settings_of(AdminConfig, bootstrap_servers, settings)
        self._own_runtime = runtime is None
        self._runtime = runtime if runtime is not None else Runtime.real(pool_workers=1)
        connections = replace(
            connection_config(self.config),
            # A connection must not take longer than a whole call may.
            socket_connection_setup_timeout_ms=min(
                self.config.default_api_timeout_ms, self.config.socket_connection_setup_timeout_ms
            ),
            allow_auto_create_topics=False,
        )
        self._cluster = NetworkClient(self._runtime, connections)
        self._metrics = ClientMetrics("admin-client", self.config.client_id, self._cluster)
        self._telemetry = ClientTelemetryReporter(self._cluster, self._metrics)
        self._requests = AdminRequests(self._cluster, self.config.default_api_timeout_ms)
        self._closed = False

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._cluster.is_connected:
            warnings.warn(f"{type(self).__name__} was not closed", ResourceWarning, source=self, stacklevel=2)

    # Each is imported on first use: a short command needs one or two of them.

    @cached_property
    def topics(self) -> TopicsAdmin:
        from ottla.client.admin.topics import TopicsAdmin

        return TopicsAdmin(self._requests)

    @cached_property
    def partitions(self) -> PartitionsAdmin:
        from ottla.client.admin.partitions import PartitionsAdmin

        return PartitionsAdmin(self._requests)

    @cached_property
    def configs(self) -> ConfigsAdmin:
        from ottla.client.admin.configs import ConfigsAdmin

        return ConfigsAdmin(self._requests)

    @cached_property
    def offsets(self) -> OffsetsAdmin:
        from ottla.client.admin.offsets import OffsetsAdmin

        return OffsetsAdmin(self._requests)

    @cached_property
    def log_dirs(self) -> LogDirsAdmin:
        from ottla.client.admin.log_dirs import LogDirsAdmin

        return LogDirsAdmin(self._requests)

    @cached_property
    def cluster(self) -> ClusterAdmin:
        from ottla.client.admin.cluster import ClusterAdmin

        return ClusterAdmin(self._requests)

    @cached_property
    def groups(self) -> GroupsAdmin:
        from ottla.client.admin.groups import GroupsAdmin

        return GroupsAdmin(self._requests)

    @cached_property
    def transactions(self) -> TransactionsAdmin:
        from ottla.client.admin.transactions import TransactionsAdmin

        return TransactionsAdmin(self._requests, self.partitions)

    @cached_property
    def tokens(self) -> DelegationTokensAdmin:
        from ottla.client.admin.tokens import DelegationTokensAdmin

        return DelegationTokensAdmin(self._requests)

    @cached_property
    def quotas(self) -> QuotasAdmin:
        from ottla.client.admin.quotas import QuotasAdmin

        return QuotasAdmin(self._requests)

    @cached_property
    def acls(self) -> AclsAdmin:
        from ottla.client.admin.acls import AclsAdmin

        return AclsAdmin(self._requests)

    @cached_property
    def users(self) -> UsersAdmin:
        from ottla.client.admin.users import UsersAdmin

        return UsersAdmin(self._requests, self._runtime.random)

    async def __aenter__(self) -> Self:
        try:
            await self._cluster.start()
        except BaseException:
            await self.close()
            raise
        self._telemetry.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def metrics(self) -> dict[MetricName, float]:
        """The client's metrics, by Kafka's names; an average without values is NaN."""
        return self._metrics.values()

    async def close(self) -> None:
        """End all connections."""
        self._closed = True
        await self._telemetry.close()
        await self._cluster.close()
        if self._own_runtime:
            self._runtime.close()

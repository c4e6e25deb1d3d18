"""The network client: a client's connections to brokers, its metadata and the coordinators.

All components of one client share one `NetworkClient`. It has at most one connection to a broker, and further
ones only for requests that a broker may hold for long (`Lane`), as a broker answers each connection in order.
At most one metadata request is in flight; components that need metadata meanwhile wait for the same one. A
broker that cannot be reached is left alone for a growing time, so that a dead address costs little. When no
known broker answers, the bootstrap servers are tried again: the cluster may have moved. So they are when
another node than the one of the metadata answers at an address, or when a broker asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from enum import IntEnum
from typing import Any, TypeVar

from ottla.client.cluster_metadata import Broker, ClusterMetadata, TopicInfo
from ottla.client.errors import AuthenticationFailed, BootstrapFailed, ConnectionFailed, WrongNode
from ottla.client.missing_acl import explain_denial, principal_of
from ottla.client.settings import ConnectionConfig, parse_addresses
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.names import TopicPartition, invalid_topic_name
from ottla.protocol.schema import Request, Response
from ottla.rpc.backoff import ExponentialBackoff
from ottla.rpc.channel import BrokerChannel, ChannelConfig, Lane
from ottla.rpc.connection import BrokerConnection, ExpectedNode
from ottla.rpc.connection_statistics import ConnectionStatistics
from ottla.runtime.address import Address
from ottla.runtime.network import SocketOptions
from ottla.runtime.runtime import Runtime
from ottla.security.clients.client_security import ClientSecurity, client_security

__all__ = ["NetworkClient", "ConnectionConfig", "CoordinatorType", "MetadataUpdater", "parse_addresses"]

R = TypeVar("R", bound=Response)
T = TypeVar("T")

log = logging.getLogger(__name__)


class CoordinatorType(IntEnum):
    """The key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


def _mark_retrieved(task: asyncio.Future[Any]) -> None:
    """The callers may all be gone, and then the failure is not worth a warning."""
    if not task.cancelled():
        task.exception()


def _covers(asked: MetadataRequest | None, wanted: set[str], *, all_topics: bool) -> bool:
    """Whether a metadata request includes the wanted topics."""
    if asked is None or asked.topics is None:
        return True
    return not all_topics and wanted <= {topic.name for topic in asked.topics}


class NetworkClient:
    """Use `async with NetworkClient(...)`, or `start` and `close`."""

    def __init__(self, runtime: Runtime, config: ConnectionConfig) -> None:
        self.runtime = runtime
        self.config = config
        self.metadata = ClusterMetadata()
        self._bootstrap = parse_addresses(config.bootstrap_servers)
        self._channels: dict[Address, BrokerChannel] = {}
        self._statistics: dict[Address, ConnectionStatistics] = {}
        security = client_security(runtime, config.security)
        self._channel_config = ChannelConfig(
            config.client_id,
            max_idle_ms=config.connections_max_idle_ms,
            options=SocketOptions(
                send_buffer_bytes=config.send_buffer_bytes,
                receive_buffer_bytes=config.receive_buffer_bytes,
            ),
            security=security,
        )
        self._security = security
        self._topics: set[str] = set()
        self._all_topics = False
        self._refresh: asyncio.Task[ClusterMetadata] | None = None
        # The request of the refresh in flight; None before it is sent, as it will then ask for all topics.
        self._asked: MetadataRequest | None = None
        self._refreshed_at: float | None = None
        self._coordinators: dict[tuple[CoordinatorType, str], Broker] = {}
        self._closed = False

    async def __aenter__(self) -> NetworkClient:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to a bootstrap server and fetch the metadata; BootstrapFailed says why no server can be
        used.
        """
        await self.refresh()

    async def close(self) -> None:
        self._closed = True
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.gather(self._refresh, return_exceptions=True)
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    @property
    def is_connected(self) -> bool:
        """Whether there is any connection to close."""
        return any(channel.is_connected for channel in self._channels.values())

    def statistics(self) -> list[tuple[int, ConnectionStatistics]]:
        """What requests cost, with the id of the broker at each address; -1 for one that is of no broker, as
        a bootstrap server may be.
        """
        ids = {Address(broker.host, broker.port): broker.node_id for broker in self.metadata.brokers.values()}
        return [(ids.get(address, -1), found) for address, found in self._statistics.items()]

    def new_backoff(self) -> ExponentialBackoff:
        return ExponentialBackoff(
            self.runtime.random, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms
        )

    # Connections.

    async def connection(self, node_id: int, lane: Lane = Lane.COMMON) -> BrokerConnection:
        """Return the connection to a broker of the current metadata; make it if there is none."""
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"broker {node_id} is not in the cluster's metadata (known: {sorted(self.metadata.brokers)})",
            )
        return await self._connect_to(broker, lane)

    def open_connection(self, node_id: int, lane: Lane = Lane.COMMON) -> BrokerConnection | None:
        """Return the connection to a broker if it is open right now."""
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            return None
        channel = self._channels.get(Address(broker.host, broker.port))
        return None if channel is None else channel.open_connection(lane)

    def _channel(self, address: Address) -> BrokerChannel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = BrokerChannel(
                self.runtime.network,
                address,
                self._channel_config,
                self._new_reconnect_backoff,
                self._statistics.setdefault(address, ConnectionStatistics()),
            )
        return channel

    async def _connect(
        self, address: Address, lane: Lane = Lane.COMMON, expected: ExpectedNode | None = None
    ) -> BrokerConnection:
        if self._closed:
            raise RuntimeError("this client is closed")
        return await self._channel(address).connection(
            lane, timeout_ms=self.config.socket_connection_setup_timeout_ms, expected=expected
        )

    async def _connect_to(self, broker: Broker, lane: Lane = Lane.COMMON) -> BrokerConnection:
        """Connect to a broker as metadata or coordinators know it; start again from the bootstrap servers if
        another node answers.
        """
        cluster_id, expected = self.metadata.cluster_id, None
        if self.config.metadata_cluster_check_enable and cluster_id is not None:
            expected = ExpectedNode(cluster_id, broker.node_id)
        try:
            return await self._connect(Address(broker.host, broker.port), lane, expected)
        except WrongNode:
            self._rebootstrap()
            raise

    def _rebootstrap(self) -> None:
        """Forget where brokers and coordinators are; what is known of topics stays until it is refreshed."""
        self.metadata = replace(self.metadata, cluster_id=None, brokers={})
        self._coordinators.clear()

    def _new_reconnect_backoff(self) -> ExponentialBackoff:
        config = self.config
        return ExponentialBackoff(
            self.runtime.random, config.reconnect_backoff_ms, config.reconnect_backoff_max_ms
        )

    # Requests.

    async def request(
        self, node_id: int, request: Request, response_type: type[R], *, timeout_ms: int | None = None
    ) -> R:
        """Send a request to a broker and return the response."""
        connection = await self.connection(node_id)
        return await connection.request(
            request,
            response_type,
            timeout_ms=self.config.request_timeout_ms if timeout_ms is None else timeout_ms,
        )

    async def any_connection(self) -> BrokerConnection:
        """Return the open connection with the fewest requests in flight, or the first that can be made."""
        if not self.metadata.brokers:
            await self.refresh()
        open_ones = [
            c for node_id in self.metadata.brokers if (c := self.open_connection(node_id)) is not None
        ]
        if open_ones:
            return min(open_ones, key=lambda connection: connection.in_flight)
        return await self._first_reachable()

    async def _first_reachable(self) -> BrokerConnection:
        failures: dict[Address, str] = {}
        known = {Address(broker.host, broker.port): broker for broker in self.metadata.brokers.values()}
        for address in dict.fromkeys([*known, *self._bootstrap]):
            broker = known.get(address)
            try:
                # A bootstrap server may be any broker, also when it is at the address of a known one.
                return await (self._connect(address) if broker is None else self._connect_to(broker))
            except AuthenticationFailed:
                raise  # every broker of the cluster knows the same users
            except KafkaError as error:
                failures[address] = error.message
        raise BootstrapFailed(f"no broker can be reached. {'; '.join(failures.values())}")

    async def request_any(self, request: Request, response_type: type[R]) -> R:
        """Send a request to any broker and return the response."""
        connection = await self.any_connection()
        return await connection.request(request, response_type, timeout_ms=self.config.request_timeout_ms)

    async def retrying(self, attempt: Callable[[], Awaitable[T]], *, timeout_ms: int, what: str) -> T:
        """Repeat `attempt` with backoff while it fails with a retriable error, until `timeout_ms` have
        passed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        backoff = self.new_backoff()
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                wait = backoff.next_ms() / 1000
                if not error.retriable or loop.time() + wait >= deadline:
                    raise
                log.debug("%s: %s; trying again in %.0f ms", what, error, wait * 1000)
                await asyncio.sleep(wait)

    # Metadata.

    async def refresh(self, *, topics: Iterable[str] = (), all_topics: bool = False) -> ClusterMetadata:
        """Fetch metadata for all topics of interest, these included. Joins a refresh in flight if it covers
        them.
        """
        wanted = set(topics)
        self._topics |= wanted
        self._all_topics |= all_topics
        if self._refresh is not None:
            covered = _covers(self._asked, wanted, all_topics=all_topics)
            view = await asyncio.shield(self._refresh)
            if covered:
                return view
        if self._refresh is None:
            self._refresh = asyncio.get_running_loop().create_task(self._fetch_metadata())
            self._refresh.add_done_callback(_mark_retrieved)
        return await asyncio.shield(self._refresh)

    async def _fetch_metadata(self) -> ClusterMetadata:
        try:
            all_topics, topics = self._all_topics, sorted(self._topics)
            self._asked = request = MetadataRequest(
                topics=None if all_topics else [MetadataRequestTopic(name=name) for name in topics],
                allow_auto_topic_creation=self.config.allow_auto_create_topics and not all_topics,
            )
            connection = await self._metadata_connection()
            response = await connection.request(
                request, MetadataResponse, timeout_ms=self.config.request_timeout_ms
            )
            if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self._rebootstrap()
                raise ConnectionFailed(
                    f"{connection.address}: the broker asks to start again from the bootstrap servers"
                )
            self.metadata = self.metadata.updated(response, all_topics=all_topics)
            self._refreshed_at = asyncio.get_running_loop().time()
            return self.metadata
        finally:
            self._refresh = self._asked = None

    async def _metadata_connection(self) -> BrokerConnection:
        open_ones = [
            c for node_id in self.metadata.brokers if (c := self.open_connection(node_id)) is not None
        ]
        return min(open_ones, key=lambda c: c.in_flight) if open_ones else await self._first_reachable()

    @property
    def metadata_age_ms(self) -> float | None:
        """The time since the last metadata response; None before the first."""
        if self._refreshed_at is None:
            return None
        return (asyncio.get_running_loop().time() - self._refreshed_at) * 1000

    def explain(self, code: ErrorCode, operation: AclOperation, name: str, message: str | None = None) -> str:
        """The text of an error, or the broker's message, and which ACL is missing if that is the error:
        `operation` on the topic, group or transactional id of this name.
        """
        if code is ErrorCode.INVALID_TOPIC_EXCEPTION:
            message = message or invalid_topic_name(name)
        subject = self._security.certificate_subject if isinstance(self._security, ClientSecurity) else None
        principal = principal_of(self.config.security, subject)
        return (message or code.text) + explain_denial(code, operation, name, principal)

    async def topic(self, name: str, *, timeout_ms: int) -> TopicInfo:
        """Return the topic's partitions; wait up to `timeout_ms` for the topic to be created."""

        async def look() -> TopicInfo:
            known = self.metadata.topics.get(name)
            age = self.metadata_age_ms
            if known is None or known.error or age is None or age > self.config.metadata_max_age_ms:
                known = (await self.refresh(topics=[name])).topics.get(name)
            if known is None or known.error:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else known.error
                raise KafkaError(code, f"topic {name!r}: {self.explain(code, AclOperation.DESCRIBE, name)}")
            return known

        return await self.retrying(look, timeout_ms=timeout_ms, what=f"metadata of topic {name!r}")

    async def leader_connection(self, partition: TopicPartition) -> BrokerConnection:
        """Return the connection to the partition's leader; LEADER_NOT_AVAILABLE (retriable) while it has
        none.
        """
        info = self.metadata.leader(partition)
        if info is None:
            info = (await self.refresh(topics=[partition.topic])).leader(partition)
        if info is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at the moment")
        return await self.connection(info.leader)

    # Coordinators.

    async def coordinator(
        self, kind: CoordinatorType, key: str, lane: Lane = Lane.COMMON
    ) -> BrokerConnection:
        """Return the connection to the coordinator of a group or a transactional id. `forget_coordinator`
        makes the next call find it again.
        """
        broker = self._coordinators.get((kind, key))
        if broker is None:
            broker = self._coordinators[kind, key] = await self._find_coordinator(kind, key)
        try:
            return await self._connect_to(broker, lane)
        except ConnectionFailed:
            self.forget_coordinator(kind, key)
            raise

    async def coordinator_address(self, kind: CoordinatorType, key: str) -> Address:
        """Ask a broker where the coordinator is now, regardless of what is known."""
        broker = await self._find_coordinator(kind, key)
        return Address(broker.host, broker.port)

    def forget_coordinator(self, kind: CoordinatorType, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def _find_coordinator(self, kind: CoordinatorType, key: str) -> Broker:
        connection = await self.any_connection()
        if connection.version_for(FindCoordinatorRequest) >= 4:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        else:
            request = FindCoordinatorRequest(key_type=kind, key=key)
        answer = await connection.request(
            request, FindCoordinatorResponse, timeout_ms=self.config.request_timeout_ms
        )
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code:
            code = ErrorCode.of(found.error_code)
            text = self.explain(code, AclOperation.DESCRIBE, key, found.error_message)
            raise KafkaError(code, f"{kind.name.lower()} {key!r} has no coordinator: {text}")
        return Broker(found.node_id, found.host, found.port)


class MetadataUpdater:
    """Keeps metadata fresh in the background: on request, when a component finds it stale, and by age.

    One refresh runs at a time, however many are requested, and the next begins no sooner than the backoff
    allows, so a topic without a leader is looked up at a moderate rate. `on_update` is called after each
    success. It works while its task `run` does.
    """

    def __init__(self, cluster: NetworkClient, on_update: Callable[[], object]) -> None:
        self._cluster = cluster
        self._on_update = on_update
        self._asked = asyncio.Event()
        self._topics: set[str] = set()
        self.last_error: KafkaError | None = None

    def request_update(self, topics: Iterable[str] = ()) -> None:
        """Refresh soon, these topics included."""
        self._topics.update(topics)
        self._asked.set()

    async def run(self) -> None:
        backoff = self._cluster.new_backoff()
        while True:
            await self._wait_until_due()
            self._asked.clear()
            topics, self._topics = self._topics, set()
            try:
                await self._cluster.refresh(topics=topics)
                self.last_error = None
            except KafkaError as error:
                log.debug("metadata: %s", error)
                self.last_error = error.again()
                self.request_update(topics)
            else:
                self._on_update()
                if not self._asked.is_set():
                    backoff.reset()
            await asyncio.sleep(backoff.next_ms() / 1000)

    async def _wait_until_due(self) -> None:
        age = self._cluster.metadata_age_ms or 0.0
        left = max(self._cluster.config.metadata_max_age_ms - age, 0.0) / 1000
        try:
            async with asyncio.timeout(left):
                await self._asked.wait()
        except TimeoutError:
            pass

"""Look at a cluster as a client meets it: its addresses, its brokers, its partitions. Any Kafka will do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ottla.cli.command_config import connect_to
from ottla.cli.diagnosis import Diagnosis, doubtful, fine, wrong
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.session import cli_error
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.cluster_metadata import Broker, ClusterMetadata
    from ottla.client.network_client import NetworkClient
    from ottla.runtime.runtime import Runtime

_EXAMPLES: Final = 3
_INTERNAL: Final = (
    ("__consumer_offsets", "offsets.topic.replication.factor", "consumer groups"),
    ("__transaction_state", "transaction.state.log.replication.factor", "transactions"),
)


async def check_cluster(bootstrap: str, timeout_s: float) -> list[Diagnosis]:
    """What is wrong with a cluster, asked at each of these addresses."""
    from ottla.runtime.runtime import Runtime

    runtime = Runtime.real(pool_workers=1)
    found: list[Diagnosis] = []
    seen: dict[str, str] = {}
    client: NetworkClient | None = None
    try:
        for server in [each.strip() for each in bootstrap.split(",") if each.strip()]:
            try:
                asked = await _connected(runtime, server, timeout_s)
            except (KafkaError, WrongUsage) as error:
                found.append(_unreachable(server, error))
                continue
            seen[server] = asked.metadata.cluster_id or ""
            if client is None:
                client = asked
            else:
                await asked.close()
        if len(set(seen.values())) > 1:
            ids = ", ".join(f"{server} is of {cluster}" for server, cluster in seen.items())
            found.append(
                wrong(
                    bootstrap,
                    f"the addresses are of different clusters: {ids}",
                    "name brokers of one cluster",
                )
            )
        if client is not None:
            found += await _check(client, timeout_s)
    finally:
        if client is not None:
            await client.close()
        runtime.close()
    return found


async def cluster_at(server: str, timeout_s: float) -> str | None:
    """The id of the cluster that answers there without TLS or a login; None if none does."""
    from ottla.runtime.runtime import Runtime

    runtime = Runtime.real(pool_workers=1)
    try:
        client = await _connected(runtime, server, timeout_s)
        await client.close()
        return client.metadata.cluster_id
    except (KafkaError, WrongUsage):
        return None
    finally:
        runtime.close()


async def _connected(runtime: Runtime, server: str, timeout_s: float) -> NetworkClient:
    from ottla.client.admin.admin import AdminConfig
    from ottla.client.network_client import NetworkClient
    from ottla.client.settings import connection_config, settings_of

    timeout_ms = max(int(timeout_s * 1000), 1)
    try:
        config = connection_config(settings_of(AdminConfig, connect_to(server), {"client_id": "ottla-cli"}))
        config = replace(
            config,
            socket_connection_setup_timeout_ms=timeout_ms,
            request_timeout_ms=timeout_ms,
            allow_auto_create_topics=False,
            # A broker that is not the expected one is a finding, and no reason to start again.
            metadata_cluster_check_enable=False,
        )
        client = NetworkClient(runtime, config)
    except ValueError as error:
        raise WrongUsage(str(error).replace("bootstrap.servers", "--bootstrap-server", 1)) from None
    try:
        await client.refresh(all_topics=True)
    except BaseException:
        await client.close()
        raise
    return client


def _unreachable(server: str, error: KafkaError | CliError) -> Diagnosis:
    explained = error if isinstance(error, CliError) else cli_error(error)
    problem, *advice = explained.lines
    return wrong(server, problem, " ".join(advice) or "`ottla start` starts a broker; is this its address?")


async def _check(client: NetworkClient, timeout_s: float) -> list[Diagnosis]:
    cluster = client.metadata
    brokers = sorted(cluster.brokers.values(), key=lambda each: each.node_id)
    found = [
        each for each in await asyncio.gather(*(_check_broker(client, each) for each in brokers)) if each
    ]
    if cluster.controller_id < 0:
        found.append(
            wrong(
                "controllers",
                "no controller is active: topics cannot change, and partitions whose leader is lost "
                "stay without",
                "start the controllers that are down: a majority of the voters is needed; `ottla "
                "quorum` shows them",
            )
        )
    found += _check_partitions(cluster)
    if not any(each.severity == "wrong" for each in found):
        found += await _check_by_admin(cluster, timeout_s)
    if not found:
        topics = len(cluster.topics)
        found.append(
            fine(f"cluster {cluster.cluster_id}", f"{len(brokers)} brokers, {topics} topics, all in sync")
        )
    return found


async def _check_broker(client: NetworkClient, broker: Broker) -> Diagnosis | None:
    """Connect to where a broker says that it is: its answer at a bootstrap address does not help clients."""
    try:
        await client.connection(broker.node_id)
    except KafkaError as error:
        return wrong(
            f"broker {broker.node_id}",
            f"it tells clients to connect to {broker.host}:{broker.port}, and that fails from here: "
            f"{error.message}",
            "set advertised.listeners of that broker to a name or address that clients reach, and "
            "restart it; if "
            "the broker is down, start it",
        )
    return None


def _check_partitions(cluster: ClusterMetadata) -> Iterator[Diagnosis]:
    partitions = [
        (f"{topic.name}-{each.partition}", each)
        for topic in cluster.topics.values()
        for each in topic.partitions
    ]
    leaderless = [(name, each) for name, each in partitions if each.leader < 0]
    if leaderless:
        missing = sorted({id for _, each in leaderless for id in each.replicas} - set(cluster.brokers))
        yield wrong(
            "partitions",
            f"{len(leaderless)} have no leader, and take and give no records: "
            f"{_some([n for n, _ in leaderless])}",
            f"start {_brokers(missing)}, which {'has' if len(missing) == 1 else 'have'} their replicas"
            if missing
            else "`ottla topics describe NAME` shows their replicas; `ottla log-dirs describe` shows "
            "failed disks",
        )
    behind = [
        (name, each) for name, each in partitions if each.leader >= 0 and len(each.isr) < len(each.replicas)
    ]
    if behind:
        missing = sorted({id for _, each in behind for id in each.replicas} - set(cluster.brokers))
        yield doubtful(
            "partitions",
            f"{len(behind)} have replicas that are not in sync: {_some([n for n, _ in behind])}",
            f"start {_brokers(missing)}"
            if missing
            else "wait: all brokers are there, and catch up; `ottla top` shows how far they are",
        )


async def _check_by_admin(cluster: ClusterMetadata, timeout_s: float) -> list[Diagnosis]:
    """What takes further requests, to brokers that can all be reached."""
    from ottla.cli.session import open_admin

    found: list[Diagnosis] = []
    servers = ",".join(f"{each.host}:{each.port}" for each in cluster.brokers.values())
    async with open_admin(servers, timeout_s) as admin:
        try:
            found += [each async for each in _directories(admin)]
            found += [each async for each in _internal_topics(admin, cluster)]
        except KafkaError as error:
            if error.code not in (
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                ErrorCode.UNSUPPORTED_VERSION,
            ):
                raise
            found.append(
                doubtful("cluster", f"not all could be looked at: {error.message}", "ask as a superuser")
            )
    return found


async def _directories(admin: Admin) -> AsyncIterator[Diagnosis]:
    for each in await admin.log_dirs.describe():
        if each.error is not ErrorCode.NONE:
            yield wrong(
                f"broker {each.broker_id}",
                f"its directory {each.path} is offline: {each.error.name}",
                "look at its disk and the log of the broker, mend it and restart the broker",
            )
        elif (
            each.usable_bytes is not None and each.total_bytes and each.usable_bytes < each.total_bytes // 20
        ):
            yield doubtful(
                f"broker {each.broker_id}",
                f"{each.usable_bytes >> 20} of {each.total_bytes >> 20} MiB are left for {each.path}",
                "make room before it is full: `ottla topics alter NAME --set retention.bytes=N`, or a "
                "larger disk",
            )


async def _internal_topics(admin: Admin, cluster: ClusterMetadata) -> AsyncIterator[Diagnosis]:
    from ottla.client.admin.configs import ResourceType

    if not cluster.brokers:
        return
    settings = await admin.configs.describe(
        ResourceType.BROKER, str(min(cluster.brokers)), keys=[name for _, name, _ in _INTERNAL]
    )
    for topic, name, what in _INTERNAL:
        text = settings[name].value if name in settings else None
        if topic not in cluster.topics and text is not None and int(text) > len(cluster.brokers):
            yield wrong(
                name,
                f"there are no {what}: {topic} needs {text} brokers, and {len(cluster.brokers)} are there",
                f"start more brokers, or set {name}=1 in server.properties and restart, if there will "
                "be no more",
            )


def _brokers(ids: Sequence[int]) -> str:
    return f"broker{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_EXAMPLES]) + (", ..." if len(names) > _EXAMPLES else "")

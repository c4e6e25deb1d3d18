"""The legacy place of a node in its cluster: metadata in ZooKeeper instead of in a quorum.

`QuorumMember` imports this only where `metadata.store=zookeeper` asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ottla.log.directory.dir_names import DirKind, parse_dir_name
from ottla.log.directory.meta_properties import note_zookeeper_mark, read_zookeeper_mark
from ottla.metadata.controller.state import ControllerSettings
from ottla.metadata.log.loader import MetadataLoader
from ottla.metadata.log.metadata_log import LoadedMetadata, MetadataLog
from ottla.metadata.records import MetadataRecord
from ottla.node.config.component_settings import metadata_log_config, quorum_config
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.schema import NodeConfigSchema
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import uuid_text
from ottla.raft.voters import ReplicaKey, Voter, VoterSet, VoterSetHistory
from ottla.rpc.channel import InterNodeClient
from ottla.rpc.connection import ConnectionSecurity
from ottla.runtime.address import Address
from ottla.runtime.disk import Disk
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.runtime.zookeeper import (
    KazooSession,
    ZooKeeperError,
    ZooKeeperErrorCode,
    ZooKeeperSession,
    ZooKeeperSettings,
)
from ottla.security.zookeeper_login import ZooKeeperSettingsError, load_login, load_tls
from ottla.zookeeper import znodes
from ottla.zookeeper.driver.broker_znode import BrokerZNode
from ottla.zookeeper.driver.cluster_znodes import create_with_parents, prepare_cluster, stored_bootstrap
from ottla.zookeeper.driver.metadata_stream import MetadataStream
from ottla.zookeeper.driver.zookeeper_controller import ControllerWatches, ZooKeeperController
from ottla.zookeeper.driver.zookeeper_log_driver import ZooKeeperLogDriver
from ottla.zookeeper.znodes import BrokerZNodeEndpoint

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.2


def zookeeper_settings(config: NodeConfig, disk: Disk) -> ZooKeeperSettings:
    """The settings whose names begin with `zookeeper`. NodeFailed if a file that they name cannot be used."""
    session_ms = config.number("zookeeper.session.timeout.ms")
    connection_ms = config["zookeeper.connection.timeout.ms"]
    settings = ZooKeeperSettings(
        config.text("zookeeper.connect"),
        session_timeout_ms=session_ms,
        connection_timeout_ms=connection_ms if isinstance(connection_ms, int) else session_ms,
    )
    try:
        settings = replace(
            settings, login=load_login(config.given, disk), tls_context=load_tls(config.given, disk)
        )
    except ZooKeeperSettingsError as error:
        raise NodeFailed(str(error)) from None
    return replace(settings, access=znodes.secured_access) if config.flag("zookeeper.set.acl") else settings


async def _open_session(runtime: Runtime, settings: ZooKeeperSettings) -> ZooKeeperSession:
    """Open a session, below the chroot, which is created. NodeFailed if no server answers."""
    if runtime.zookeeper is not None:
        return await runtime.zookeeper(settings)
    try:
        if settings.chroot:
            above = await KazooSession.connect(replace(settings, connect=settings.hosts))
            try:
                if await above.exists(settings.chroot) is None:
                    await create_with_parents(above, settings.chroot)
            finally:
                await above.close()
        return await KazooSession.connect(settings)
    except ConnectionError as error:
        raise NodeFailed(str(error)) from error
    except ZooKeeperError as error:
        raise NodeFailed(_refusal(error, settings)) from error


def _refusal(error: ZooKeeperError, settings: ZooKeeperSettings) -> str:
    """What is wrong if ZooKeeper refuses something to this node that it needs."""
    if error.code is not ZooKeeperErrorCode.NO_AUTH:
        return f"{error}; check zookeeper.connect"
    login = settings.login
    if login is not None:
        who = f"the login of {login.user}" if login.user else "its login"
    else:
        who = "a node without a login" if settings.tls_context is None else "the certificate of this node"
    return (
        f"ZooKeeper does not let {who} write {error.path}: another login has created what is there, with "
        "zookeeper.set.acl=true. Give this node the login of the other brokers (zookeeper.login.user and "
        "zookeeper.login.password, zookeeper.jaas.file, or zookeeper.ssl.keystore.location)"
    )


def _some_log(disk: Disk, dirs: Sequence[str]) -> str | None:
    """A log of a partition in the data directories, if there is any."""
    for dir in dirs:
        for name in sorted(disk.list_dir(dir)):
            path = posixpath.join(dir, name)
            with contextlib.suppress(KafkaError):
                if parse_dir_name(name)[1] is DirKind.CURRENT and disk.is_dir(path):
                    return path
    return None


class ZooKeeperMember:
    """What `QuorumMember` needs instead of a quorum. Make it by `connect`; `open` makes `metadata`."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskSupervisor,
        session: ZooKeeperSession,
        settings: ZooKeeperSettings,
    ) -> None:
        self._runtime: Final = runtime
        self._tasks: Final = tasks
        self._session: Final = session
        self._settings: Final = settings
        self._driver: ZooKeeperLogDriver
        self.metadata: MetadataLog
        self._watches: ControllerWatches | None = None

    @classmethod
    async def connect(cls, runtime: Runtime, tasks: TaskSupervisor, config: NodeConfig) -> ZooKeeperMember:
        """Open a session with ZooKeeper. NodeFailed if no server answers."""
        settings = await runtime.pool.run(zookeeper_settings, config, runtime.disk)
        return cls(runtime, tasks, await _open_session(runtime, settings), settings)

    async def close(self) -> None:
        await self._session.close()

    async def open(
        self,
        config: NodeConfig,
        cluster_id: str,
        directory_id: bytes,
        endpoints: Mapping[str, Address],
        security: ConnectionSecurity,
    ) -> MetadataLog:
        _log.warning(
            "metadata.store=zookeeper: this node keeps the metadata of the cluster in ZooKeeper at %s. This "
            "is a legacy mode, to learn from and for the way to a quorum; Apache Kafka has removed it in 4.0",
            config.text("zookeeper.connect"),
        )
        metadata_id = await self._prepare(cluster_id, config.log_dirs)
        stream = MetadataStream()
        local = Voter(ReplicaKey(config.node_id, directory_id), endpoints)
        loaded = LoadedMetadata(stream, VoterSetHistory(VoterSet.of(local)), MetadataLoader(stream, None))
        self.metadata = metadata = MetadataLog(self._runtime, loaded, metadata_log_config(config))
        metadata.client = self._driver = ZooKeeperLogDriver(
            self._runtime,
            self._tasks,
            self._session,
            stream,
            local,
            metadata,
            cluster_id=cluster_id,
            config=quorum_config(config),
            listener_name=config.controller_listener_names[0],
            session_timeout_ms=config.number("zookeeper.session.timeout.ms"),
            channel=InterNodeClient(self._runtime.network, security=security),
            can_lead=config.is_controller,
            metadata_id=metadata_id,
        )
        metadata.watch_leader(self._on_leader_change)
        return metadata

    async def _prepare(self, cluster_id: str, dirs: Sequence[str]) -> str:
        """Make the cluster known in ZooKeeper, however often the connection is lost meanwhile, and return the
        id of its metadata, which is noted beside the logs.
        """
        disk, pool = self._runtime.disk, self._runtime.pool
        log = await pool.run(_some_log, disk, dirs)
        noted = await pool.run(read_zookeeper_mark, disk, dirs[0])
        new_id = uuid_text(self._runtime.random.uuid())
        while True:
            try:
                found = await prepare_cluster(
                    self._session, cluster_id, log=log, metadata_id=noted, new_id=new_id
                )
                await pool.run(note_zookeeper_mark, disk, dirs[0], found)
                return found
            except ZooKeeperError as error:
                if error.code not in (
                    ZooKeeperErrorCode.CONNECTION_LOSS,
                    ZooKeeperErrorCode.SESSION_EXPIRED,
                ):
                    raise NodeFailed(_refusal(error, self._settings)) from error
                _log.info("%s; it is tried again", error)
            await asyncio.sleep(_RETRY_SECONDS)

    def activate(
        self, settings: ControllerSettings, schema: NodeConfigSchema, bootstrap: Sequence[MetadataRecord]
    ) -> ZooKeeperController:
        """Make the active controller, and watch what it has to know of."""
        led = self._driver.led
        assert led is not None, "an active controller leads an epoch"
        controller = ZooKeeperController.activate(
            self._runtime, self.metadata, settings, schema, stored_bootstrap(list(bootstrap))
        )
        assert isinstance(controller, ZooKeeperController)
        self._watches = ControllerWatches(self._runtime.clock, self._session, controller, led)
        self._tasks.start(f"znodes that controller epoch {led.epoch} watches", self._watches.run)
        return controller

    def _on_leader_change(self) -> None:
        if self._watches is not None:
            self._watches.on_leader_change()

    def announcer(
        self, id: int, incarnation_id: bytes, endpoints: Sequence[Endpoint], rack: str | None
    ) -> Callable[[], None]:
        """What makes the znode of this broker, when it is called."""
        znode = BrokerZNode(
            self._session,
            self._runtime.clock,
            id,
            incarnation_id,
            [BrokerZNodeEndpoint(each.name, each.host, each.port, each.protocol.name) for each in endpoints],
            rack,
        )
        self._tasks.start("znode of this broker", znode.run)
        return znode.announce

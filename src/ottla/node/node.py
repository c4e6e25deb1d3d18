"""A node: broker, controller or both, from its data directories to its listeners.

It starts from the bottom up: directories, the controller's listener, the metadata log; then, if it is a
broker, it registers, still fenced, reads the metadata up to there, loads its logs, takes up its replicas,
opens its listeners and asks to serve. It stops in the opposite order. Requests that arrive before it is ready
wait, except those of the quorum, without which nobody gets ready. Handlers reach everything through this
object; what changes with the metadata they read from `image` and `config`, which are replaced and never
changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.directory.meta_properties import StorageError, is_reserved_directory
from ottla.log.log_manager import LogManager
from ottla.log.segment import handles
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.controller.quorum_controller import ActiveController
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import (
    CLUSTER_DEFAULT,
    ConfigResource,
    ConfigResourceType,
)
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.api.dispatch import Dispatcher, decide_locally
from ottla.node.api.services import ApiServices
from ottla.node.cluster.alter_replica_log_dirs import AlterReplicaLogDirsManager
from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager
from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.cluster.replication import BrokerReplication
from ottla.node.config.component_settings import producer_config
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.schema import log_config
from ottla.node.coordinators.coordinators import Coordinators
from ottla.node.coordinators.producer_ids import ProducerIdManager
from ottla.node.fetch.session import FetchSessionCache
from ottla.node.network.endpoints import NodeEndpoints
from ottla.node.network.server import SocketServer
from ottla.node.storage import NodeStorage, clean_shutdown_epoch, open_storage
from ottla.node.upkeep import Upkeep
from ottla.protocol.api import ListenerType
from ottla.protocol.errors import KafkaError
from ottla.protocol.schema import Request, Response
from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.replication.replica_manager import ReplicaManager, registration_of
from ottla.runtime import process
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ottla.coordinator.group.service import GroupCoordinatorService
    from ottla.node.api.services import Authorizer
    from ottla.node.coordinators.transactions import NodeTransactions

log = logging.getLogger(__name__)

# How long a broker that stops waits until others have taken over its partitions.
_LEAVE_SECONDS: Final = 10.0
_LEAVE_ALONE_SECONDS: Final = 1.0


class Node:
    """Make one, `start` it, `stop` it. It is used once."""

    def __init__(self, runtime: Runtime, config: NodeConfig) -> None:
        self.runtime: Final = runtime
        self.config = config
        self.cluster_id = ""
        self.authorizer: Authorizer | None = None
        # Set once clients are served.
        self.ready: Final = asyncio.Event()
        self.quorum: Final = QuorumMember(self, self._dispatcher, self._decide_locally)
        # Made as the node starts, each on top of those before it. A controller alone has none of these.
        self.logs: LogManager
        self.log_flushes: LogFlushScheduler
        self.replicas: ReplicaManager
        self.lifecycle: BrokerLifecycleManager
        self.coordinators: Final = Coordinators(self)
        self.fetch_sessions: Final = FetchSessionCache(
            config.number("max.incremental.fetch.session.cache.slots"), runtime.random, runtime.clock
        )
        self.producer_ids: Final = ProducerIdManager(self)
        self.alter_log_dirs: Final = AlterReplicaLogDirsManager(self)
        self.replication: Final = BrokerReplication(self)
        self.server: Final = SocketServer(runtime.network, config, self._dispatcher)
        self.endpoints: Final = NodeEndpoints(self)
        self._services: Final = ApiServices(node=self, broker=self, controller=self.quorum)
        self._following = False  # whether the replicas follow the image
        self._incarnation_id: Final = runtime.random.uuid()
        self._upkeep: Final = Upkeep(self)
        self._plain_topic = (config, log_config(config, {}))
        self._loop: asyncio.AbstractEventLoop
        self._failure: asyncio.Future[str]
        # What to undo, in the order in which it was done.
        self._started: list[Callable[[], Awaitable[None]]] = []

    # What handlers ask

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata that this node has followed."""
        return self.metadata.image

    @property
    def metadata(self) -> MetadataLog:
        return self.quorum.metadata

    @property
    def active_controller(self) -> ActiveController:
        """Where the active controller is, if it is on this node."""
        return self.quorum.active_controller

    @property
    def controllers(self) -> ControllerChannel:
        """The way to the active controller, wherever it is."""
        return self.quorum.controllers

    @property
    def groups(self) -> GroupCoordinatorService:
        return self.coordinators.groups

    @property
    def transactions(self) -> NodeTransactions:
        return self.coordinators.transactions

    @property
    def broker_epoch(self) -> int:
        return self.lifecycle.epoch

    def now_ms(self) -> int:
        return self.runtime.clock.wall_ms()

    def client_endpoints(self) -> list[Endpoint]:
        """Where clients connect, with the ports that are really open."""
        return self.endpoints.for_clients()

    def data_directories(self) -> list[str]:
        """Where its data lies: the directories of logs without those that failed; of a controller alone, the
        one of its metadata.
        """
        if not self.config.is_broker:
            return [self.config.metadata_log_dir]
        return [directory.path for directory in self.logs.live_directories]

    def topic_config(self, topic: str, image: MetadataImage | None = None) -> LogConfig:
        """The settings of a topic's logs, as the newest image or another one has them."""
        image = self.image if image is None else image
        overrides = image.config(ConfigResource(ConfigResourceType.TOPIC, topic))
        if overrides:
            return log_config(self.config, overrides)
        # Most topics have no settings of their own, and share one object.
        if self._plain_topic[0] is not self.config:
            self._plain_topic = (self.config, log_config(self.config, {}))
        return self._plain_topic[1]

    # Starting

    async def start(self) -> None:
        """Open everything and serve. NodeFailed says in one line why that cannot be."""
        self._loop = asyncio.get_running_loop()
        self._failure = self._loop.create_future()
        starting = self._loop.create_task(self._start(), name="start of the node")
        either: list[asyncio.Future[Any]] = [starting, self._failure]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancelled(starting)
            raise
        if not starting.done():
            # It would wait for a controller that it has no way to any more.
            await _cancelled(starting)
            raise NodeFailed(self._failure.result())
        try:
            starting.result()
        except (StorageError, KafkaError) as error:
            raise NodeFailed(str(error)) from error
        except OSError as error:
            raise NodeFailed(f"{error.filename or 'the disk'}: {error.strerror or error}") from error

    async def _start(self) -> None:
        await self.endpoints.check()
        storage = await self._open_storage()
        await self._start_quorum(storage)
        if self.config.is_broker:
            await self._join(storage)
            await self._start_logs(storage)
            await self._serve()
        await self.quorum.registered()
        self.ready.set()

    async def _open_storage(self) -> NodeStorage:
        storage = await self.runtime.pool.run(open_storage, self.runtime, self.config)

        async def release() -> None:
            storage.release()

        self._undo(release)
        self.cluster_id = storage.cluster_id
        if storage.node_id != self.config.node_id:
            self.config = NodeConfig({**self.config.given, "node.id": str(storage.node_id)})
        return storage

    async def _start_quorum(self, storage: NodeStorage) -> None:
        """Take part in the quorum, and wait until there is one."""
        config, quorum = self.config, self.quorum
        endpoints: list[Endpoint] = []
        if config.is_controller:
            await self.endpoints.open(quorum.server, config.listeners_of_controller)
            self._undo(quorum.server.stop)
            endpoints = self.endpoints.reachable(config.advertised_of_controller)
        await quorum.open(storage, endpoints, self._follow)
        self._undo(quorum.close)
        self._upkeep.start_quorum()
        self._undo(self._upkeep.stop_quorum)
        await quorum.until_there_is_one()
        self._configure(self.image)
        if endpoints:
            quorum.register(self._incarnation_id, endpoints)

    async def _join(self, storage: NodeStorage) -> None:
        """Register this broker, fenced, and read the metadata log as far as that."""
        config = self.config
        # Addresses must be known before they are registered.
        await self.endpoints.open_unknown(self.server)
        self._undo(self.server.stop)
        usable = [path for path in config.log_dirs if path not in storage.failed]
        self.lifecycle = BrokerLifecycleManager(
            self,
            incarnation_id=self._incarnation_id,
            directories={path: storage.directories[path] for path in usable},
            endpoints=self.endpoints.reachable(config.advertised_listeners),
            previous_epoch=await self.runtime.pool.run(clean_shutdown_epoch, self.runtime.disk, usable),
        )
        self._undo(self.lifecycle.close)
        await self.lifecycle.register()
        await self.lifecycle.caught_up()

    async def _start_logs(self, storage: NodeStorage) -> None:
        config = self.config
        open_files, unsynced_files = handles.shares(process.open_file_limit())
        logs = LogManager(
            config.log_dirs,
            disk=self.runtime.disk,
            clock=self.runtime.clock,
            random=self.runtime.random,
            pool=self.runtime.pool,
            producer_config=producer_config(config),
            open_files=open_files,
            unsynced_files=unsynced_files,
            on_directory_failure=self._directory_failed_anywhere,
            lock=False,
            failed=storage.failed,
        )
        await logs.start(self.topic_config, self._means)
        self.logs = logs
        self.log_flushes = LogFlushScheduler(logs, self.runtime.clock)
        self._undo(self._close_logs)
        self.replicas = ReplicaManager(
            config.node_id,
            logs,
            self.topic_config,
            replica_lag_max_ms=config.number("replica.lag.time.max.ms"),
            submit_change=self.replication.propose,
        )
        changes = self.replicas.start(self.image, self.now_ms())
        self.replicas.refresh_configs()
        self._following = True
        self.metadata.prepare_with(self._prepare)
        self._undo(self.replication.close)
        self.replication.follow(changes)
        self.coordinators.follow(self.image, changes)
        self._undo(self.coordinators.close)
        self.alter_log_dirs.resume()
        self._undo(self.alter_log_dirs.stop)
        self._undo(self._stop_following)

    def _means(self, found: UnifiedLog) -> bool:
        """Whether the metadata mean this log, of two of the same partition."""
        registration = registration_of(found, self.image, self.config.node_id)
        if registration is None:
            return False
        directory = registration.directory(self.config.node_id)
        return is_reserved_directory(directory) or directory == found.directory.directory_id

    async def _serve(self) -> None:
        await self.endpoints.open_known(self.server)
        self._undo(self._leave)
        self.endpoints.warn_of_open_ones()
        await self.lifecycle.serve()
        self._upkeep.start()
        self._undo(self._upkeep.stop)

    def _dispatcher(self, endpoint: Endpoint) -> Dispatcher:
        """The service behind a listener. A controller's works on requests while the broker of the node is not
        ready yet, as nothing gets ready without them.
        """
        if endpoint.name in self.config.controller_listener_names:
            return Dispatcher(self._services, endpoint.name, ListenerType.CONTROLLER, self.quorum.opened)
        return Dispatcher(self._services, endpoint.name, ListenerType.BROKER, self.ready)

    def _decide_locally(self, request: Request, version: int) -> Awaitable[Response | None]:
        return decide_locally(self._services, request, version)

    # Following the metadata

    def _prepare(self, delta: MetadataDelta, image: MetadataImage) -> Coroutine[Any, Any, None] | None:
        if not self._following or _configures_brokers(delta):
            return None
        return self.replicas.prepare(delta, lambda topic: self.topic_config(topic, image))

    def _follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if _configures_brokers(delta):
            self._configure(image)
        if not self._following:
            return
        if any(_is_leaving(image, id) for id in delta.changed_brokers):
            # It may go once everybody has read so far: say so.
            self.lifecycle.hurry()
        changes = self.replicas.apply(delta, image, self.now_ms())
        self.alter_log_dirs.call_off(changes.deleted)
        self.logs.complete_log_creations()
        self.replication.follow(changes)
        self.coordinators.follow(image, changes, delta)

    def _configure(self, image: MetadataImage) -> None:
        """Put the cluster's settings for brokers in force."""
        own = ConfigResource(ConfigResourceType.BROKER, str(self.config.node_id))
        self.config, problems = self.config.with_dynamic(
            default=image.config(CLUSTER_DEFAULT), broker=image.config(own)
        )
        for problem in problems:
            log.warning("%s", problem)
        self.server.configure(self.config)
        self.quorum.server.configure(self.config)
        self._upkeep.configure()
        self.replication.configure()
        self.coordinators.configure()

    # Failing

    def _directory_failed_anywhere(self, directory: LogDirectory) -> None:
        """Told in any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._directory_failed, directory)

    def _directory_failed(self, directory: LogDirectory) -> None:
        self.lifecycle.directory_failed(directory.path)
        if not self._following:
            return
        gone = self.replicas.directory_failed(directory)
        self.replication.resigned(gone)
        self.coordinators.resigned(gone)
        if not self.logs.live_directories:
            self.fail(f"no log directory is left: {directory.path}: {directory.failure}")

    def fail(self, reason: str) -> None:
        """Give up: whoever waits in `failed` is told."""
        if not self._failure.done():
            self._failure.set_result(reason)

    async def failed(self) -> str:
        """Return why the node has to give up, if that ever happens."""
        return await asyncio.shield(self._failure)

    # Stopping

    def _undo(self, action: Callable[[], Awaitable[None]]) -> None:
        self._started.append(action)

    async def stop(self) -> None:
        """Hand over, close everything and leave the marks of a clean shutdown. Stopping twice is harmless."""
        while self._started:
            action = self._started.pop()
            try:
                await action()
            except Exception:
                log.exception("a part of the node did not stop cleanly")

    async def _leave(self) -> None:
        """Hand over what this broker leads, then turn clients away."""
        alone = self.metadata.voters.ids == (self.config.node_id,)
        if alone and not self._has_peers():
            # Nobody can take over. Clients would only hear that no broker is left, and some give up on that.
            await self.server.stop()
        hand_over = self.config.flag("controlled.shutdown.enable")
        seconds = _LEAVE_ALONE_SECONDS if alone else _LEAVE_SECONDS
        if not (hand_over and await self.lifecycle.leave(seconds)):
            log.info("leaving without having handed over all leaderships")
        await self.server.stop()

    def _has_peers(self) -> bool:
        brokers = self.image.cluster.brokers.values()
        return any(broker.is_active for broker in brokers if broker.id != self.config.node_id)

    async def _stop_following(self) -> None:
        """From here on the replicas stay as they are, whatever becomes of the metadata."""
        self._following = False
        self.metadata.publish_now()

    async def _close_logs(self) -> None:
        await self.log_flushes.close()
        await self.logs.shutdown(self.broker_epoch)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _configures_brokers(delta: MetadataDelta) -> bool:
    return any(resource.type == ConfigResourceType.BROKER for resource in delta.changed_configs)


def _is_leaving(image: MetadataImage, broker: int) -> bool:
    registration = image.cluster.brokers.get(broker)
    return registration is not None and registration.in_controlled_shutdown

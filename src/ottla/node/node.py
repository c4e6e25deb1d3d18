"""A node: broker, controller or both, from its data directories to its listeners.

`Node` is Kafka's `KafkaRaftServer`: a `ControllerServer`, a `BrokerServer` or both over one `SharedServer`.
It starts from the bottom up: directories, the listener of the controller, the metadata log, then the broker.
Requests that arrive before a server is ready wait, those of the quorum least, without which no node gets
ready. A controller alone does not import the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.log.directory.directory import GOES_ON_WITH_ROOM
from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.image.image import MetadataImage
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.node.http.mounts import MountAccess
from ottla.node.server.controller_server import ControllerServer
from ottla.node.server.process_status import ProcessWatch, StorageStatus
from ottla.node.server.shared_server import WAITING_FOR_LEADER, SharedServer
from ottla.node.server.socket_servers import SocketServers
from ottla.protocol.errors import KafkaError
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ottla.node.api.broker_extension import BrokerExtension
    from ottla.node.server.broker_server import BrokerServer
    from ottla.node.server.health import NodeHealth
    from ottla.node.server.storage import NodeStorage
    from ottla.runtime.http_server import HttpMount

log = logging.getLogger(__name__)

# How long a start takes before the node logs what it waits for, and how long until it does so again.
_SLOW_START_SECONDS: Final = 20.0
_SLOW_START_AGAIN_SECONDS: Final = 60.0


MakeExtension: TypeAlias = "Callable[[BrokerServer], BrokerExtension]"
MakeBroker: TypeAlias = "Callable[[SharedServer, SocketServers, QuorumMember, NodeStorage], BrokerServer]"


class Node:
    """Make one, `start` it, `stop` it. It is used once."""

    def __init__(
        self,
        runtime: Runtime,
        config: NodeConfig,
        *,
        default_http: str = "",
        watch: ProcessWatch | None = None,
        extensions: Sequence[MakeExtension] = (),
        has_standard_extensions: bool = True,
    ) -> None:
        """`default_http` is where HTTP is answered if no setting says so and the address is free; `watch` is
        that of a node with a process of its own. `extensions` make those that the broker has beside
        `STANDARD_EXTENSIONS`.
        """
        self.shared: Final = SharedServer(runtime, config, default_http=default_http, watch=watch)
        self._make_broker: Final = (
            _import_broker(extensions, has_standard_extensions) if config.is_broker else None
        )
        # What the start makes, each as a whole.
        self.quorum: QuorumMember | None = None
        self.broker: BrokerServer | None = None
        self.shared.http.mount("/health", self._load_health, MountAccess.SUMMARY)

    @property
    def config(self) -> NodeConfig:
        """The settings in force. They are replaced by a change, never modified."""
        return self.shared.config

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata that this node has applied."""
        return self.shared.image()

    def client_endpoints(self) -> list[Endpoint]:
        """Where clients connect, with the ports that are really open."""
        return self.shared.endpoints.for_clients()

    def data_directories(self) -> list[str]:
        """The directories of its data: those of logs that have not failed; of a controller alone, the one of
        its metadata.
        """
        if self.broker is None:
            return [self.config.metadata_log_dir]
        return [directory.path for directory in self.broker.logs.live_directories]

    def storage_status(self) -> StorageStatus:
        """What of its storage does not serve; of a controller alone, nothing."""
        return StorageStatus() if self.broker is None else self.broker.storage_status()

    def health(self) -> NodeHealth:
        from ottla.node.server.health import NodeHealth

        return NodeHealth(self.shared, lambda: self.quorum, lambda: self.broker)

    async def _load_health(self) -> HttpMount:
        await self.shared.runtime.pool.run(import_module, "ottla.node.server.health")
        return await self.health().routes()

    # Starting

    async def start(self) -> None:
        """Open everything and serve. NodeFailed says in one line why that cannot be."""
        state, loop = self.shared.state, asyncio.get_running_loop()
        starting = loop.create_task(self._start(), name="start of the node")
        failed = loop.create_task(state.wait_until_failed(), name="failure of the node")
        warning = loop.create_task(self._warn_of_slow_start(), name="warnings of a slow start")
        either: list[asyncio.Future[Any]] = [starting, failed]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel_and_wait(starting)
            raise
        finally:
            await _cancel_and_wait(warning)
            await _cancel_and_wait(failed)
        if not starting.done():
            # It would wait for a controller that it can not reach any more.
            await _cancel_and_wait(starting)
            raise NodeFailed(state.failure)
        try:
            starting.result()
        except (StorageError, KafkaError) as error:
            # A node that has not started does not go on by itself.
            why = str(error).replace(GOES_ON_WITH_ROOM, "free some, and start the node again")
            raise NodeFailed(why) from error
        except OSError as error:
            raise NodeFailed(f"{error.filename or 'the disk'}: {error.strerror or error}") from error

    async def _start(self) -> None:
        shared = self.shared
        await shared.open_http()
        sockets = SocketServers(shared)
        await shared.endpoints.check()
        storage = await shared.open_storage()
        controller: ControllerServer | None = None
        endpoints: Sequence[Endpoint] = ()
        if self.config.is_controller:
            controller = ControllerServer(shared, sockets, storage.cluster_id)
            endpoints = await controller.listen()
        self.quorum = quorum = await shared.join_quorum(storage, endpoints)
        await shared.wait_for_leader(quorum)
        registration = None
        if controller is not None and endpoints:  # a node that is alone has none
            registration = controller.register(quorum, endpoints)
        if self._make_broker is not None:
            self.broker = self._make_broker(shared, sockets, quorum, storage)
            await self.broker.start()
        if registration is not None:
            shared.state.enter("registering with the controller", registration.waits_for)
            await registration.wait_until_registered()
        if self.broker is not None:
            self.broker.answer_clients()
        shared.state.ready.set()

    async def _warn_of_slow_start(self) -> None:
        """Log now and then what the start waits for: what never comes would leave nothing in the log."""
        state, loop = self.shared.state, asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(_SLOW_START_SECONDS)
        while True:
            if state.phase != WAITING_FOR_LEADER:  # that logs by itself
                reason = state.waits_for()
                log.warning(
                    "the node is not ready after %.0f s: it is still %s%s",
                    loop.time() - began,
                    state.phase,
                    f" ({reason})" if reason else "",
                )
            await asyncio.sleep(_SLOW_START_AGAIN_SECONDS)

    async def wait_until_failed(self) -> str:
        """Return why the node has to give up, if that ever happens."""
        return await self.shared.state.wait_until_failed()

    async def stop(self) -> None:
        """Hand over, close everything and leave the marks of a clean shutdown. Stopping twice is harmless."""
        await self.shared.stop()


def _import_broker(extensions: Sequence[MakeExtension], has_standard_extensions: bool) -> MakeBroker:
    from ottla.node.server.broker_server import BrokerServer

    if has_standard_extensions:
        from ottla.node.standard_extensions import STANDARD_EXTENSIONS

        extensions = (*STANDARD_EXTENSIONS, *extensions)
    return partial(BrokerServer, extensions=extensions)


async def _cancel_and_wait(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

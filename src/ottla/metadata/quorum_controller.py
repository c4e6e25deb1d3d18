"""The active controller at work: decide, append, wait for the commit, answer.

Decisions are made one after the other on the image of everything appended; their records are appended in
the same order and at once, so the log is what the decisions were. An answer waits for its records, and a
decision without records for those before it, as it may rest on them. Committed images are handed to
subscribers in order, before the answer goes out. Invariant: what an answer says is in the published image,
and on disk.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from ottla.metadata.activation import activation_records, bootstrap_metadata_version
from ottla.metadata.control import ConfigSchema, ControllerSettings, Result
from ottla.metadata.control_brokers import HeartbeatReply
from ottla.metadata.controller import Controller
from ottla.metadata.delta import MetadataDelta
from ottla.metadata.features import MetadataVersion
from ottla.metadata.image import MetadataImage
from ottla.metadata.metadata_log import MetadataLog
from ottla.metadata.records import MetadataRecord
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

T = TypeVar("T")
Subscriber = Callable[[MetadataDelta, MetadataImage], None]

_MAX_FENCINGS_PER_TICK: Final = 1_000


class QuorumController:
    """Use :meth:`activate`. ``controller`` decides; :meth:`commit` makes the decision real::

    response = await qc.commit(qc.controller.create_topics(request, context))
    """

    def __init__(self, runtime: Runtime, log: MetadataLog, controller: Controller) -> None:
        self._runtime: Final = runtime
        self.log: Final = log
        self.controller: Final = controller
        self._image = controller.image
        self._subscribers: list[Subscriber] = []
        # Appended and not yet committed: (end offset, delta, image).
        self._pending: deque[tuple[int, MetadataDelta, MetadataImage]] = deque()
        self._snapshot_running = False
        log.on_commit = self._publish

    @classmethod
    async def activate(
        cls,
        runtime: Runtime,
        log: MetadataLog,
        settings: ControllerSettings,
        schema: ConfigSchema,
        bootstrap: Sequence[MetadataRecord],
    ) -> QuorumController:
        """Take over a log that was opened; on an empty one the bootstrap records are written first."""
        controller = Controller(
            log.take_replayer(),
            settings,
            schema,
            runtime.random,
            runtime.random.uuid,
            now_ns=runtime.clock.monotonic_ns(),
            voters=log.voters.ids,
            kraft_version=log.kraft_version,
        )
        self = cls(runtime, log, controller)
        records = activation_records(
            controller.image,
            bootstrap,
            transaction_open=controller.transaction_open,
            min_insync_replicas=settings.min_insync_replicas,
        )
        if controller.image.is_empty:
            version = bootstrap_metadata_version(bootstrap)
            _log.info("the metadata log is empty; starting it at metadata.version %s", version)
        else:
            version = controller.image.metadata_version
        if records:
            self._append(records, version)
            await log.committed_end(log.next_offset)
        return self

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._image

    def subscribe(self, subscriber: Subscriber) -> MetadataImage:
        """Call ``subscriber`` with every delta and image from here on; gives the image to start from."""
        self._subscribers.append(subscriber)
        return self._image

    def commit(self, result: Result[T]) -> Awaitable[T]:
        """Append the records of a decision now; the awaitable gives the response once they are committed."""
        if result.records:
            self._append(result.records, self.controller.image.metadata_version)
        return self._answer(result.response, self.log.next_offset)

    async def _answer(self, response: T, end_offset: int) -> T:
        await self.log.committed_end(end_offset)
        return response

    def _append(self, records: Sequence[MetadataRecord], version: MetadataVersion) -> None:
        provenance = self.log.append(records, version)
        delta, image = self.controller.replay(records, provenance)
        self._pending.append((self.log.next_offset, delta, image))

    def _publish(self, high_watermark: int) -> None:
        while self._pending and self._pending[0][0] <= high_watermark:
            _, delta, image = self._pending.popleft()
            self._image = image
            for subscriber in self._subscribers:
                subscriber(delta, image)

    # Brokers

    def register_broker(
        self, request: BrokerRegistrationRequest, *, supersede: bool = False, version: int = 4
    ) -> Awaitable[int]:
        """Register a broker; gives its epoch.

        A node registers its own broker with ``supersede``: it holds the lock of the directory, so its former
        incarnation is gone, and there is no session to wait for.
        """
        return self.commit(
            self.controller.register_broker(
                request,
                next_offset=self.log.next_offset,
                now_ns=self._runtime.clock.monotonic_ns(),
                supersede=supersede,
                version=version,
            )
        )

    def process_heartbeat(self, request: BrokerHeartbeatRequest) -> Awaitable[HeartbeatReply]:
        result = self.controller.process_heartbeat(request, now_ns=self._runtime.clock.monotonic_ns())
        answer = self.commit(result)
        if result.response.in_controlled_shutdown:
            self.controller.begin_controlled_shutdown(request.broker_id, self.log.next_offset - 1)
        return answer

    # Periodic work

    async def tick(self) -> None:
        """Fence brokers that fell silent and snapshot when it is due. To be called about once a second."""
        for _ in range(_MAX_FENCINGS_PER_TICK):
            result = self.controller.fence_expired_broker(self._runtime.clock.monotonic_ns())
            if not result.response:
                break
            await self.commit(result)
        await self.maybe_snapshot()

    async def balance_leaders(self) -> None:
        """Give leadership back to preferred replicas; for every
        ``leader.imbalance.check.interval.seconds``.
        """
        while await self.commit(self.controller.balance_leaders()):
            _log.debug("more leaders to balance")

    async def elect_unclean_leaders(self) -> None:
        """For every ``unclean.leader.election.interval.ms``."""
        while await self.commit(self.controller.elect_unclean_leaders()):
            _log.debug("more leaders to elect")

    async def maybe_snapshot(self) -> None:
        if self._snapshot_running or not self.log.snapshot_due(self._image):
            return
        self._snapshot_running = True
        try:
            id = await self.log.write_snapshot(self._image)
            _log.info("wrote the metadata snapshot %s", id.file_name)
        finally:
            self._snapshot_running = False

    async def close(self) -> None:
        await self.log.close()

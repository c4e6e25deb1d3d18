"""`QuorumController`, the active controller: decide, append, wait for the commit, answer.

Decisions are made one after the other on the image of everything appended; their records are appended in the
same order, so the log shows the decisions. A decision about many partitions is made, encoded and replayed in
turns; the next one waits until it is complete, except for heartbeats that change nothing: who is alive must
not depend on how much there is to do. A response waits for the commit of its records, and a decision without
records for those before it, as it may rest on them. What a client asked for is published on this node before
the client gets its response, unless that takes long; brokers do not wait for it, since a publication may
create thousands of logs. Invariant: what a response says is on the disks of a majority; a caller for which
that is not certain gets NOT_CONTROLLER.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ottla.metadata.controller.brokers import HeartbeatReply
from ottla.metadata.controller.configs import MIN_INSYNC_REPLICAS
from ottla.metadata.controller.controller import Controller
from ottla.metadata.controller.state import ConfigSchema, ControllerSettings, Decision, Result
from ottla.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION, MetadataVersion
from ottla.metadata.image.entities import CLUSTER_DEFAULT, config_record
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.bootstrap_metadata import bootstrap_level, bootstrap_metadata_version
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest
from ottla.protocol.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
)
from ottla.runtime.runtime import Runtime
from ottla.runtime.work_queue import WorkQueue, in_turns

_log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_FENCINGS_PER_TICK: Final = 1_000
# The most records of one batch where a decision may be split, which keeps each append short.
_RECORDS_PER_BATCH: Final = 2_000
# How long a client waits for the publication of what is committed.
_PUBLICATION_SECONDS: Final = 5.0
# After a pause that is longer than this the event loop was blocked, and heartbeats were not read either.
_LATE_TICK_NS: Final = 3_000_000_000
# How long the response to a heartbeat waits for the other voters, and how often it looks for them.
_CONFIRMATION_NS: Final = 2_000_000_000
_LOOK_AGAIN_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Decided(Generic[T]):
    """A response, and what it waits for. Made when the records have been appended: later, offsets may belong
    to the records of another leader.
    """

    response: T
    committed: Awaitable[None]
    published: Awaitable[None] | None


async def _respond(decided: Awaitable[_Decided[T] | KafkaError]) -> T:
    made = await decided
    if isinstance(made, KafkaError):
        raise made.again()
    await made.committed
    if made.published is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PUBLICATION_SECONDS):
                await made.published
    return made.response


class QuorumController:
    """Create it by `activate` once this node leads. `controller` decides, `decide` drives it:

    response = await qc.decide(lambda controller: controller.create_topics(request, context))
    """

    def __init__(self, runtime: Runtime, log: MetadataLog, controller: Controller) -> None:
        self._runtime: Final = runtime
        self.log: Final = log
        self._controller: Final = controller
        self._decisions: Final = WorkQueue(runtime.clock, "decisions of the controller")
        self.epoch: Final = log.epoch
        self._quorum: tuple[Sequence[int], int] | None = None
        self._began_ns: Final = runtime.clock.monotonic_ns()
        self._last_tick_ns = self._began_ns
        self._seen_end = -1  # the end of the log when it was last seen whether it moves

    @classmethod
    def activate(
        cls,
        runtime: Runtime,
        log: MetadataLog,
        settings: ControllerSettings,
        schema: ConfigSchema,
        bootstrap: Sequence[MetadataRecord],
    ) -> QuorumController:
        """Start acting on the log; on an empty one the bootstrap records are appended first."""
        controller = Controller(
            log.fork(),
            settings,
            schema,
            runtime.random,
            runtime.random.uuid,
            now_ns=runtime.clock.monotonic_ns(),
            voters=log.voters.ids,
            kraft_version=log.kraft_version,
            upgrade_quorum=log.upgrade_kraft_version,
        )
        self = cls(runtime, log, controller)
        self._decisions.submit(lambda: self._begin(settings, bootstrap)).add_done_callback(log.fail_if_failed)
        return self

    async def _begin(self, settings: ControllerSettings, bootstrap: Sequence[MetadataRecord]) -> None:
        controller = self._controller
        await in_turns(controller.load(), self._decisions.turns)
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
            await self._append(records, version, atomic=True)

    @property
    def controller(self) -> Controller:
        """The `Controller`, with the voters as they are now."""
        quorum = (self.log.voters.ids, self.log.kraft_version)
        if quorum != self._quorum:
            self._quorum = quorum
            self._controller.update_quorum(*quorum)
        return self._controller

    @property
    def decided_image(self) -> MetadataImage:
        """The image of everything that this controller has decided, committed or not."""
        return self._controller.image

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self.log.image

    def decide(
        self,
        choose: Callable[[Controller], Result[T] | Decision[T]],
        *,
        for_client: bool = True,
        on_appended: Callable[[T, int], None] | None = None,
    ) -> Awaitable[T]:
        """Make a decision once those before it are made, and append its records; await the result for the
        response, which comes once they are committed and, for a client, published. `on_appended` is called
        with the response and the offset after the records, before the next decision.
        """
        return _respond(self._decisions.submit(lambda: self._decide(choose, for_client, on_appended)))

    async def _decide(
        self,
        choose: Callable[[Controller], Result[T] | Decision[T]],
        for_client: bool,
        on_appended: Callable[[T, int], None] | None,
    ) -> _Decided[T] | KafkaError:
        """Decide, or return why not: an error that went through a future would keep all its frames."""
        try:
            return await self._decide_and_append(choose, for_client, on_appended)
        except KafkaError as error:
            return error.again()

    async def _decide_and_append(
        self,
        choose: Callable[[Controller], Result[T] | Decision[T]],
        for_client: bool,
        on_appended: Callable[[T, int], None] | None,
    ) -> _Decided[T]:
        self._check_active()
        decision = choose(self.controller)
        if isinstance(decision, Result):
            result = decision
        else:
            result = await in_turns(decision, self._decisions.turns)
        if result.records:
            version = self._controller.image.metadata_version
            await self._append(result.records, version, atomic=result.atomic)
        self._check_active()
        end = self.log.next_offset
        if on_appended is not None:
            on_appended(result.response, end)
        published = self.log.wait_for_publication(end) if for_client else None
        return _Decided(result.response, self.log.wait_for_commit(end), published)

    def _check_active(self) -> None:
        if self.log.led_epoch != self.epoch:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, f"the controller of epoch {self.epoch} is not active any more"
            )

    async def _append(
        self, records: Sequence[MetadataRecord], version: MetadataVersion, *, atomic: bool
    ) -> None:
        """Append records, and replay them: the next decision is made on an image that has them."""
        turns = self._decisions.turns
        size = len(records) if atomic else _RECORDS_PER_BATCH
        for start in range(0, len(records), size):
            part = records[start : start + size]
            encoded = []
            for record in part:
                encoded.append(encode_record(record, version))
                if turns.is_due():
                    await turns.pause()
            self._check_active()
            provenance = self.log.append(encoded)
            await in_turns(self._controller.replay(part, provenance), turns)

    # Brokers

    def register_broker(
        self, request: BrokerRegistrationRequest, *, supersede: bool = False, version: int = 4
    ) -> Awaitable[int]:
        """Register a broker; its epoch.

        A node registers its own broker with `supersede`: it holds the lock of the directory, so its previous
        incarnation has ended, and there is no session to wait for.
        """
        return self.decide(
            lambda controller: controller.register_broker(
                request,
                next_offset=self.log.next_offset,
                now_ns=self._runtime.clock.monotonic_ns(),
                supersede=supersede,
                version=version,
            ),
            for_client=False,
        )

    async def process_broker_heartbeat(self, request: BrokerHeartbeatRequest) -> HeartbeatReply:
        """Answer a heartbeat: if it changes nothing, once the registration of its broker is committed, and
        no other controller can have been elected; without waiting for anything else.
        """
        reply = await self._process_broker_heartbeat(request)
        await self._wait_for_confirmation()
        return reply

    async def _process_broker_heartbeat(self, request: BrokerHeartbeatRequest) -> HeartbeatReply:
        self._check_active()
        now_ns = self._runtime.clock.monotonic_ns()
        acknowledged = self.controller.acknowledge_heartbeat(request, now_ns=now_ns)
        if acknowledged is not None:
            reply, offset = acknowledged
            await self.log.wait_for_commit(offset + 1)
            return reply
        return await self.decide(
            lambda controller: controller.process_broker_heartbeat(
                request, now_ns=self._runtime.clock.monotonic_ns()
            ),
            for_client=False,
            on_appended=lambda reply, end: self._on_heartbeat(request.broker_id, reply, end),
        )

    async def _wait_for_confirmation(self) -> None:
        """Wait until this controller is confirmed. NOT_CONTROLLER if it is not within some time: one that is
        cut off may not tell brokers that are cut off with it, as that of its own node, that they are counted
        on. Another controller has given their leaderships away by then, or is about to.
        """
        if self.log.is_confirmed:
            return
        deadline_ns = self._runtime.clock.monotonic_ns() + _CONFIRMATION_NS
        while not self.log.is_confirmed:
            self._check_active()
            if self._runtime.clock.monotonic_ns() >= deadline_ns:
                raise KafkaError(
                    ErrorCode.NOT_CONTROLLER, "the controller may be cut off: another one may be elected"
                )
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _on_heartbeat(self, broker: int, reply: HeartbeatReply, end: int) -> None:
        if reply.in_controlled_shutdown:
            self._controller.begin_controlled_shutdown(broker, end - 1)

    async def fence_gone_broker(self, broker: int, epoch: int) -> bool:
        """Fence a broker whose process has ended; whether it was unfenced before."""
        return await self.decide(
            lambda controller: controller.fence_gone_broker(broker, epoch), for_client=False
        )

    def is_followed_since(self, since_ns: int) -> bool:
        """Whether a majority of the quorum has fetched from this controller since this time of the monotonic
        clock. A controller that cannot say so may be the one that is cut off.
        """
        return self.log.is_followed_since(since_ns)

    def silent_brokers(self, for_ms: int) -> list[tuple[int, int]]:
        """The (broker, epoch) of the unfenced brokers that have not sent a heartbeat for `for_ms`."""
        return self.controller.silent_brokers(self._runtime.clock.monotonic_ns(), for_ms * 1_000_000)

    def brokers_not_heard_since(self, since_ns: int) -> list[tuple[int, int]]:
        """The (broker, epoch) of the unfenced brokers of which no heartbeat has come since this time of the
        monotonic clock.
        """
        return self.controller.brokers_not_heard_since(since_ns)

    def brokers_without_heartbeat(self, for_ms: int) -> list[tuple[int, int]]:
        """The (broker, epoch) of the unfenced brokers that have not sent a heartbeat to this controller in
        the `for_ms` and more that it is active.
        """
        age_ns = self._runtime.clock.monotonic_ns() - self._began_ns
        return self.controller.brokers_without_heartbeat() if age_ns >= for_ms * 1_000_000 else []

    # Periodic work

    async def maybe_fence_stale_brokers(self) -> None:
        """Fence the brokers whose sessions have expired; call it about once a second."""
        now_ns = self._runtime.clock.monotonic_ns()
        gap_ns, self._last_tick_ns = now_ns - self._last_tick_ns, now_ns
        if gap_ns > _LATE_TICK_NS:
            self.controller.extend_sessions(gap_ns)
        for _ in range(_MAX_FENCINGS_PER_TICK):
            if not await self.decide(self._fence_stale_broker, for_client=False):
                break

    def _fence_stale_broker(self, controller: Controller) -> Decision[bool]:
        return controller.maybe_fence_stale_broker(self._runtime.clock.monotonic_ns())

    async def maybe_write_no_op_record(self) -> None:
        """Append a record without effect if nothing was appended since the last call: offsets that stand
        still are a sign of trouble. Call it every `metadata.max.idle.interval.ms`.
        """
        if self._seen_end == self.log.next_offset:
            await self.decide(lambda _: Result([NoOpRecord()], None), for_client=False)
        self._seen_end = self.log.next_offset

    async def maybe_balance_partition_leaders(self) -> None:
        """Elect preferred leaders; call it every `leader.imbalance.check.interval.seconds`."""
        while await self.decide(Controller.maybe_balance_partition_leaders, for_client=False):
            _log.debug("more leaders to balance")

    async def sweep_expired_delegation_tokens(self) -> None:
        """Remove delegation tokens that have ended; call it every
        `delegation.token.expiry.check.interval.ms`.
        """
        while await self.decide(
            lambda controller: controller.sweep_expired_delegation_tokens(self._runtime.clock.wall_ms()),
            for_client=False,
        ):
            _log.debug("more delegation tokens to remove")

    async def elect_unclean_leaders(self) -> None:
        """Elect unclean leaders where allowed; call it every `unclean.leader.election.interval.ms`."""
        while await self.decide(Controller.elect_unclean_leaders, for_client=False):
            _log.debug("more leaders to elect")


def activation_records(
    image: MetadataImage,
    bootstrap: Sequence[MetadataRecord],
    *,
    transaction_open: bool,
    min_insync_replicas: int,
) -> list[MetadataRecord]:
    """The records that a controller writes when it becomes active: on an empty log the bootstrap records, on
    any other log the abort of a metadata transaction that its predecessor left open.
    """
    records: list[MetadataRecord] = []
    if transaction_open:
        records.append(AbortTransactionRecord(reason="Controller failover"))
    if not image.is_empty:
        return records
    transactional = bootstrap_metadata_version(bootstrap).transactions
    if transactional:
        records.append(BeginTransactionRecord(name="Bootstrap records"))
    records += bootstrap
    if (bootstrap_level(bootstrap, ELIGIBLE_LEADER_REPLICAS_VERSION) or 0) > 0:
        # Eligible leader replicas need one min.insync.replicas that all nodes agree on.
        records.append(config_record(CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS, str(min_insync_replicas)))
    if transactional:
        records.append(EndTransactionRecord())
    return records


class ActiveController:
    """Hold the active `QuorumController` while this node leads the quorum.

    The controller is created when the node becomes leader and dropped when it resigns or loses the epoch. A
    node that is not a voter never has one.
    """

    def __init__(self, log: MetadataLog, activate: Callable[[], QuorumController]) -> None:
        self._activate: Final = activate
        self._current: QuorumController | None = None
        self._log: Final = log
        log.follow_leadership(self._on_lead, self._on_leave)

    @property
    def current(self) -> QuorumController | None:
        """The active controller; None if this node is not it."""
        current = self._current
        return current if current is not None and current.epoch == self._log.led_epoch else None

    def require(self) -> QuorumController:
        """The active controller; KafkaError NOT_CONTROLLER if this node is not it."""
        current = self.current
        if current is None:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                f"The active controller appears to be node {self._log.leader_id}; this node is not it.",
            )
        return current

    def _on_lead(self, epoch: int) -> None:
        self._current = self._activate()
        _log.info("this node is the active controller of epoch %d", epoch)

    def _on_leave(self) -> None:
        if self._current is not None:
            _log.info("the controller of epoch %d is not active any more", self._current.epoch)
        self._current = None

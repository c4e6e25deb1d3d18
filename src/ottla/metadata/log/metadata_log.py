"""The metadata log: what the quorum agrees on, as records of metadata.

Opening it loads the newest snapshot; starting it makes this node take its part in the quorum, and a voter
alone leads at once. As the high watermark moves, what is committed is replayed and published, on every node.
Where this node leads, records are appended in batches of its epoch; a batch is committed once a majority has
it on disk, and syncs are shared by all that was appended meanwhile. Who has much to do for a step may prepare
for it before it is published. Invariant: nobody is told that a record is committed before it would survive a
power cut and has been published here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.features import MetadataVersion
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.metadata.log.commit_waits import CommitWaits
from ottla.metadata.log.loader import Subscriber
from ottla.metadata.log.opening import DEFAULT_CONFIG, Loaded, MetadataLogConfig, load
from ottla.metadata.log.snapshot_generator import SnapshotGenerator
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import CLUSTER_METADATA_PARTITION
from ottla.raft.config import QuorumConfig
from ottla.raft.driver.disk_log import MAX_BATCH_BYTES, LoadedSnapshot
from ottla.raft.driver.kafka_raft_client import KafkaRaftClient
from ottla.raft.driver.snapshots import Snapshots
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import LeaderState
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.records.builder import build_batch
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

__all__ = ["DEFAULT_CONFIG", "CLUSTER_METADATA_PARTITION", "MetadataLog", "MetadataLogConfig"]

_logger = logging.getLogger(__name__)

# How much of the log is replayed at once before the loop runs again.
_REPLAY_BYTES: Final = 4 * 1024 * 1024

Prepare: TypeAlias = Callable[[MetadataDelta, MetadataImage], Coroutine[Any, Any, None] | None]
"""Gives the work to do before a step is published; None if it can be published at once."""


class MetadataLog:
    """Use :meth:`open`."""

    def __init__(self, runtime: Runtime, loaded: Loaded, config: MetadataLogConfig) -> None:
        self._runtime: Final = runtime
        self._log: Final = loaded.log
        self._membership: Final = loaded.membership
        self._loader: Final = loaded.loader
        self.config: Final = config
        self.client: KafkaRaftClient
        self._waits: Final = CommitWaits()
        self._news: asyncio.Future[None] | None = None  # done when anything below has changed
        self._leader_id: int | None = None
        self._told_epoch = -1  # the last one of which it was told that it leads
        self._led_epoch = -1  # the last one that was begun here: all before it is replayed
        self._leader_watchers: list[Callable[[], None]] = []
        self._on_lead: Callable[[int], None] | None = None
        self._on_leave: Callable[[], None] | None = None
        self._going_on = False  # whether what is committed is being taken up already
        self._prepare: Prepare | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._snapshotting: Final = SnapshotGenerator(
            runtime,
            loaded.log,
            loaded.membership,
            loaded.loader,
            max_record_bytes=config.max_record_bytes_between_snapshots,
            max_interval_ms=config.max_snapshot_interval_ms,
        )

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        dir: str,
        *,
        node_id: int,
        directory_id: bytes,
        cluster_id: str = "",
        static_voters: VoterSet | None = None,
        endpoints: Mapping[str, Address] | None = None,
        bootstrap: Sequence[Address] = (),
        listener: str = "CONTROLLER",
        config: MetadataLogConfig = DEFAULT_CONFIG,
        quorum: QuorumConfig | None = None,
    ) -> MetadataLog:
        """Load the metadata log of a formatted log directory; :meth:`start` it then.

        ``static_voters`` is what ``controller.quorum.voters`` says, if anything, ``bootstrap`` where the
        quorum is found if its voters are in the log, and ``endpoints`` are this node's controller listeners.
        With neither voters nor bootstrap servers, the node is a quorum by itself.
        """
        local = Voter(ReplicaKey(node_id, directory_id), endpoints or {})
        alone = static_voters is None and not bootstrap
        if alone:
            static_voters = VoterSet.of(Voter(ReplicaKey(node_id), local.endpoints))
        loaded = await runtime.pool.run(load, runtime, dir, config, static_voters)
        self = cls(runtime, loaded, config)
        try:
            if alone:
                self._check_alone(local.key)
            self.client = KafkaRaftClient(
                runtime,
                self._log,
                self._membership,
                local,
                self,
                cluster_id=cluster_id,
                election=loaded.election,
                config=quorum,
                listener_name=listener,
                bootstrap=bootstrap,
            )
        except BaseException:
            self._log.release()
            raise
        return self

    def _check_alone(self, local: ReplicaKey) -> None:
        voters = self._membership.voters
        assert voters is not None
        if not voters.is_voter(local) or len(voters.voters) > 1:
            raise StorageError(
                f"{self._log.dir}: node {local.id} is not the only voter of its quorum; the voters are "
                f"{voters.ids}: set controller.quorum.bootstrap.servers, or check node.id"
            )

    def follow_leadership(self, lead: Callable[[int], None], leave: Callable[[], None]) -> None:
        """Have ``lead`` called with each epoch that this node leads, once everything before it is committed
        and replayed, and ``leave`` when that is over.
        """
        self._on_lead, self._on_leave = lead, leave

    def watch_leader(self, changed: Callable[[], None]) -> None:
        """Have ``changed`` called whenever there is another leader or epoch."""
        self._leader_watchers.append(changed)

    def start(self) -> None:
        """Take part in the quorum."""
        self.client.start()

    # What the quorum tells

    def committed(self, high_watermark: int) -> None:
        if not self._going_on:
            self._catch_up()

    def _catch_up(self) -> None:
        """Replay what is committed. A long log is taken in pieces, and the loop runs in between."""
        self._going_on = False
        self._snapshotting.replayed(self._loader.replay(self._log.high_watermark, _REPLAY_BYTES))
        step = self._loader.next_step
        work = None if step is None or self._prepare is None else self._prepare(*step)
        if work is None:
            self._publish()
        else:
            self._going_on = True
            self._preparing = asyncio.get_running_loop().create_task(work)
            self._preparing.add_done_callback(self._prepared)

    def _prepared(self, task: asyncio.Task[None]) -> None:
        if self._preparing is not task or task.cancelled():
            return
        self._preparing = None
        try:
            task.result()
            self._publish()
        except Exception as error:
            self.client.fail(error)

    def _publish(self) -> None:
        self._going_on = False
        self._loader.publish()
        if self._loader.next_offset < self._log.high_watermark:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._go_on)
        self._waits.reached(self._loader.next_offset)
        self._maybe_lead()
        self._tell()

    def publish_now(self) -> None:
        """Publish what is being prepared for, ready or not."""
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None
            self._publish()

    def _go_on(self) -> None:
        if self.client.is_closed or self.client.failure is not None:
            return
        try:
            self._catch_up()
        except Exception as error:
            self.client.fail(error)

    def _maybe_lead(self) -> None:
        core = self.client.raft.core
        epoch = self._told_epoch
        if not core.is_leader or epoch != core.epoch or self._led_epoch == epoch:
            return
        state = core.state
        assert isinstance(state, LeaderState)
        if self._loader.next_offset > state.epoch_start:
            self._led_epoch = epoch
            if self._on_lead is not None:
                self._on_lead(epoch)

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        self._leader_id = leader_id
        if leader_id == self.client.raft.core.local.key.id:
            self._told_epoch = epoch
            self._maybe_lead()
        else:
            # Before it is told that it leads an epoch it is told that nobody does yet; who waits stays.
            lost = epoch if self._told_epoch == epoch else epoch - 1
            self._told_epoch = -1
            news = f"the leader of epoch {epoch} is {leader_id}"
            self._waits.give_up(KafkaError(ErrorCode.NOT_CONTROLLER, news), lost)
            if self._on_leave is not None:
                self._on_leave()
        for changed in self._leader_watchers:
            changed()
        self._tell()

    def snapshot_loaded(self, id: SnapshotId) -> None:
        self.publish_now()
        self._loader.begin_anew(LoadedSnapshot(id, self.snapshots.read(id)))
        self._snapshotting.began_anew()
        self._tell()

    def failed(self, error: BaseException) -> None:
        self._prepare_no_more()
        self._waits.give_up(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log failed: {error}"))
        if self._on_leave is not None:
            self._on_leave()
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is looked at whenever the image or the leader has changed.
        StorageError if the log fails before.
        """
        while not condition():
            failure = self.client.failure
            if failure is not None:
                raise (
                    failure
                    if isinstance(failure, StorageError)
                    else StorageError(f"the metadata log failed: {failure}")
                )
            if self._news is None:
                self._news = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._news)

    # What is known

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._loader.image

    def subscribe(self, subscriber: Subscriber) -> MetadataImage:
        """Call ``subscriber`` with every delta and image from here on; gives the image to start from."""
        return self._loader.subscribe(subscriber)

    def prepare_with(self, prepare: Prepare) -> None:
        """Have ``prepare`` called before a step is published, which then waits for the work that it gives."""
        self._prepare = prepare

    def _prepare_no_more(self) -> None:
        self._prepare = None
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None

    def fork(self) -> MetadataBatchLoader:
        """What was replayed, for the controller to go on from."""
        return self._loader.fork()

    @property
    def is_caught_up(self) -> bool:
        """Whether all that is known to be committed, by what the leader says, has been replayed."""
        high_watermark = self.client.raft.core.high_watermark
        return high_watermark is not None and self._loader.next_offset >= high_watermark

    @property
    def leader_id(self) -> int | None:
        """Who leads the quorum, as far as is known."""
        return self._leader_id

    @property
    def leader_address(self) -> Address | None:
        """Where the leader's controller is reached; None if it is not known, or this node."""
        return None if self.client.raft.core.is_leader else self.client.raft.core.leader_endpoint()

    @property
    def led_epoch(self) -> int:
        """The epoch that this node leads, with all before it replayed; -1 if it does not."""
        core = self.client.raft.core
        return core.epoch if core.is_leader and core.epoch == self._led_epoch else -1

    @property
    def voters(self) -> VoterSet:
        voters = self._membership.voters
        assert voters is not None, "a voter knows the voters"
        return voters

    @property
    def known_voters(self) -> str:
        """The voters in words, for those who wait for them."""
        voters = self._membership.voters
        return "not known yet" if voters is None else ", ".join(map(str, voters.ids))

    @property
    def kraft_version(self) -> int:
        return self._membership.kraft_version

    @property
    def snapshots(self) -> Snapshots:
        return self._log.snapshots

    @property
    def epoch(self) -> int:
        return self.client.raft.core.epoch

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log.end.offset

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def failure(self) -> BaseException | None:
        """Why the log cannot be written any more; the node has to stop then."""
        return self.client.failure

    # Appending

    def append(self, records: Sequence[MetadataRecord], version: MetadataVersion) -> Provenance:
        """Append records as one batch, all or nothing; they are committed once :meth:`committed_end` returns
        for :attr:`next_offset` as it is after this call."""
        now_ms = self._runtime.clock.wall_ms()
        batch = build_batch(
            [(now_ms, None, encode_record(record, version)) for record in records],
            base_offset=self.next_offset,
            leader_epoch=self.epoch,
        )
        if len(batch) > MAX_BATCH_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The change takes {len(batch)} bytes of metadata records, more than the {MAX_BATCH_BYTES} "
                "that fit in one batch. Split it into smaller requests.",
            )
        self.client.append(batch)
        return Provenance(self.next_offset - 1, self.epoch, now_ms)

    def upgrade(self, kraft_version: int, validate_only: bool) -> None:
        """Raise the version of the quorum; KafkaError INVALID_UPDATE_VERSION says why that cannot be."""
        self.client.upgrade(kraft_version, validate_only=validate_only)

    def committed_end(self, end_offset: int) -> asyncio.Future[None]:
        """Done once everything below ``end_offset`` is committed and published. KafkaError NOT_CONTROLLER if
        this node stops leading before: then it may be committed or not.
        """
        self.client.check_usable()
        future = self._waits.add(end_offset, self.epoch)
        self._waits.reached(self._loader.next_offset)
        return future

    # Snapshots

    async def maybe_snapshot(self) -> None:
        """Write a snapshot if it is due; for about once a second."""
        if not self._snapshotting.is_due():
            return
        self.client.check_usable()
        id = await self._snapshotting.write_if_due()
        if id is not None:
            _logger.info("wrote the metadata snapshot %s", id.file_name)

    async def write_snapshot(self, image: MetadataImage) -> SnapshotId:
        """Write a committed image as a snapshot."""
        self.client.check_usable()
        return await self._snapshotting.write(image)

    def trim(self) -> None:
        """Drop the oldest snapshots and the records before the next ones, while they are too many or too
        old.
        """
        self._log.trim()

    async def resign(self, timeout_ms: int) -> None:
        """Hand leadership over, if this node has it and somebody else could."""
        if self.client.failure is None and not self._membership.is_only_voter(
            self.client.raft.core.local.key
        ):
            await self.client.resign(timeout_ms)

    async def close(self) -> None:
        """Sync what was appended and close the files."""
        self._prepare_no_more()
        await self.client.close()

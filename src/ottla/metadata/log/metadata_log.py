"""`MetadataLog`: the metadata records on which the quorum agrees.

Opening it loads the newest snapshot; starting it makes this node take part in the quorum, and a voter alone
leads at once. As the high watermark moves, committed records are replayed and published, on every node. Where
this node leads, records are appended in batches of its epoch; a batch is committed once a majority has it on
disk, and one sync covers everything that was appended meanwhile. A subscriber with much work for a delta may
prepare for it before it is published. Invariant: a caller learns that a record is committed only once the
record would survive a power cut and has been published here.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.features import MetadataVersion
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.metadata.log.loader import MetadataLoader, Subscriber
from ottla.metadata.log.snapshot_generator import SnapshotGenerator
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.config import QuorumConfig
from ottla.raft.driver.kafka_raft_client import KafkaRaftClient
from ottla.raft.driver.kafka_raft_log import (
    MAX_BATCH_BYTES,
    KafkaRaftLog,
    KafkaRaftLogConfig,
    LoadedSnapshot,
    LogGap,
)
from ottla.raft.driver.quorum_state_store import BadQuorumState, read_election_state
from ottla.raft.driver.snapshots import SnapshotStore
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import ElectionState
from ottla.raft.voters import ReplicaKey, Voter, VoterSet, VoterSetHistory
from ottla.records.builder import build_batch
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

_logger = logging.getLogger(__name__)

_DAY_MS: Final = 24 * 60 * 60 * 1000
# How much of the log is replayed at once before the loop runs again.
_REPLAY_BYTES: Final = 4 * 1024 * 1024

Prepare: TypeAlias = Callable[[MetadataDelta, MetadataImage], Coroutine[Any, Any, None] | None]
"""Returns the work to do before a delta is published; None if it can be published at once."""


@dataclass(frozen=True, slots=True)
class MetadataLogConfig:
    """The settings whose names begin with `metadata.log` and `metadata.max`."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    max_retention_bytes: int = 100 * 1024 * 1024
    max_retention_ms: int = 7 * _DAY_MS
    max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    max_snapshot_interval_ms: int = 60 * 60 * 1000

    def raft_log_config(self) -> KafkaRaftLogConfig:
        return KafkaRaftLogConfig(
            self.segment_bytes, self.segment_ms, self.max_retention_bytes, self.max_retention_ms
        )


DEFAULT_CONFIG: Final = MetadataLogConfig()


@dataclass(slots=True)
class _LoadedFiles:
    """The content of the log's files that is certain: the newest snapshot, the voters and the vote given. The
    quorum decides what is committed beyond the snapshot.
    """

    log: KafkaRaftLog
    voter_history: VoterSetHistory
    loader: MetadataLoader
    election: ElectionState | None


def _load_files(
    runtime: Runtime, dir: str, config: MetadataLogConfig, static_voters: VoterSet | None
) -> _LoadedFiles:
    """Open and read the files. Blocks: for the pool."""
    log = KafkaRaftLog.open(runtime.disk, runtime.clock, runtime.random, dir, config.raft_log_config())
    try:
        voter_history, snapshot = log.load(static_voters)
        loader = MetadataLoader(log, snapshot)
        election = read_election_state(runtime.disk, log.dir)
    except LogGap as error:
        log.release()
        raise StorageError(str(error)) from error
    except BadQuorumState as error:
        log.release()
        raise StorageError(f"{log.dir}/quorum-state: {error}") from error
    except BaseException:
        log.release()
        raise
    return _LoadedFiles(log, voter_history, loader, election)


class _DelayedCommits:
    """The callers that wait until their records are committed, in the order of the log.

    Each is answered once: when everything below its offset is committed and published, or with an error when
    its epoch is over and the next leader may have the records or not.
    """

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        # (end offset, number, epoch, future); the number keeps the order of equal offsets
        self._heap: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._count = 0

    def add(self, end_offset: int, epoch: int) -> asyncio.Future[None]:
        """Wait for everything below `end_offset`, which was appended in `epoch`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._heap, (end_offset, self._count, epoch, future))
        return future

    def complete_until(self, offset: int) -> None:
        """Answer those that wait for `offset` or less."""
        while self._heap and self._heap[0][0] <= offset:
            future = heapq.heappop(self._heap)[3]
            if not future.done():
                future.set_result(None)

    def fail_all(self, error: KafkaError, epoch: int | None = None) -> None:
        """Fail those whose records were appended in `epoch` or before; all of them if it is None."""
        waiting = self._heap
        self._heap = [each for each in waiting if epoch is not None and each[2] > epoch]
        heapq.heapify(self._heap)
        for _, _, appended_in, future in waiting:
            if (epoch is None or appended_in <= epoch) and not future.done():
                future.set_exception(error)
                future.exception()  # retrieved, also where no caller awaits it any more


class MetadataLog:
    """Create it by `open`."""

    def __init__(self, runtime: Runtime, files: _LoadedFiles, config: MetadataLogConfig) -> None:
        self._runtime: Final = runtime
        self._log: Final = files.log
        self._voter_history: Final = files.voter_history
        self._loader: Final = files.loader
        self.image = files.loader.subscribe(self._on_image)  # the newest committed image
        self.config: Final = config
        self.client: KafkaRaftClient
        self._delayed_commits: Final = _DelayedCommits()
        self._changed: asyncio.Future[None] | None = None  # done when the image or the leader changes
        self._leader_id: int | None = None
        self._elected_epoch = -1  # the epoch that this node leads by the last leader change; -1 if none
        self._led_epoch = -1  # the last epoch in which this node began to act: all before it is replayed
        self._leader_watchers: list[Callable[[], None]] = []
        self._on_lead: Callable[[int], None] | None = None
        self._on_leave: Callable[[], None] | None = None
        self._replaying = False  # whether committed records are being replayed or published
        self._prepare: Prepare | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._snapshot_generator: Final = SnapshotGenerator(
            runtime,
            files.log,
            files.voter_history,
            files.loader,
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
        """Load the metadata log of a formatted log directory; call `start` next.

        `static_voters` is the value of `controller.quorum.voters`, if it is set; `bootstrap` are the
        addresses at which the quorum is found if its voters are in the log; `endpoints` are this node's
        controller listeners. With neither voters nor bootstrap servers, the node is a quorum by itself.
        """
        local = Voter(ReplicaKey(node_id, directory_id), endpoints or {})
        alone = static_voters is None and not bootstrap
        if alone:
            static_voters = VoterSet.of(Voter(ReplicaKey(node_id), local.endpoints))
        files = await runtime.pool.run(_load_files, runtime, dir, config, static_voters)
        self = cls(runtime, files, config)
        try:
            if alone:
                self._check_alone(local.key)
            self.client = KafkaRaftClient(
                runtime,
                self._log,
                self._voter_history,
                local,
                self,
                cluster_id=cluster_id,
                election=files.election,
                config=quorum,
                listener_name=listener,
                bootstrap=bootstrap,
            )
        except BaseException:
            self._log.release()
            raise
        return self

    def _check_alone(self, local: ReplicaKey) -> None:
        voters = self._voter_history.voters
        assert voters is not None
        if not voters.is_voter(local) or len(voters.voters) > 1:
            raise StorageError(
                f"{self._log.dir}: node {local.id} is not the only voter of its quorum; the voters are "
                f"{voters.ids}: set controller.quorum.bootstrap.servers, or check node.id"
            )

    def follow_leadership(self, lead: Callable[[int], None], leave: Callable[[], None]) -> None:
        """Call `lead` with each epoch that this node leads, once everything before it is committed and
        replayed, and `leave` when it leads no longer.
        """
        self._on_lead, self._on_leave = lead, leave

    def watch_leader(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever there is another leader or epoch."""
        self._leader_watchers.append(changed)

    def start(self) -> None:
        """Take part in the quorum."""
        self.client.start()

    # Events of the quorum (RaftListener)

    def on_commit(self, high_watermark: int) -> None:
        if not self._replaying:
            self._catch_up()

    def _catch_up(self) -> None:
        """Replay the committed records. A long log is replayed in pieces, and the loop runs in between."""
        self._replaying = False
        self._snapshot_generator.on_replayed(self._loader.replay(self._log.high_watermark, _REPLAY_BYTES))
        step = self._loader.next_step
        work = None if step is None or self._prepare is None else self._prepare(*step)
        if work is None:
            self._publish()
        else:
            self._replaying = True
            self._preparing = asyncio.get_running_loop().create_task(work)
            self._preparing.add_done_callback(self._on_prepared)

    def _on_prepared(self, task: asyncio.Task[None]) -> None:
        if self._preparing is not task:
            return
        self._preparing = None
        if task.cancelled():
            _logger.error("the delta is published without what prepares for it: that was cancelled")
        elif (error := task.exception()) is not None:
            _logger.error("the delta is published without what prepares for it", exc_info=error)
        try:
            self._publish()
        except Exception as failure:
            self.client.fail(failure)

    def _publish(self) -> None:
        self._replaying = False
        self._loader.publish()
        assert self._loader.next_offset <= self._log.high_watermark, (
            f"offset {self._loader.next_offset} is published, but committed is {self._log.high_watermark}"
        )
        if self._loader.next_offset < self._log.high_watermark:
            self._replaying = True
            asyncio.get_running_loop().call_soon(self._continue_replay)
        self._delayed_commits.complete_until(self._loader.next_offset)
        self._maybe_lead()
        self._notify()

    def publish_now(self) -> None:
        """Publish the delta that is being prepared for, ready or not."""
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None
            self._publish()

    def _on_image(self, _: MetadataDelta, image: MetadataImage) -> None:
        self.image = image

    def _continue_replay(self) -> None:
        if self.client.is_closed or self.client.failure is not None:
            return
        try:
            self._catch_up()
        except Exception as error:
            self.client.fail(error)

    def _maybe_lead(self) -> None:
        epoch = self._elected_epoch
        if not self.client.is_leader or epoch != self.client.epoch or self._led_epoch == epoch:
            return
        start = self.client.status.epoch_start_offset
        assert start is not None, f"the leader of epoch {epoch} knows no start of it"
        if self._loader.next_offset > start:
            self._led_epoch = epoch
            if self._on_lead is not None:
                self._on_lead(epoch)

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        self._leader_id = leader_id
        if leader_id == self.client.local.key.id:
            self._elected_epoch = epoch
            self._maybe_lead()
        else:
            # Before this node is announced as leader of an epoch, the epoch is announced without a leader;
            # callers that wait for records of that epoch keep waiting.
            lost = epoch if self._elected_epoch == epoch else epoch - 1
            self._elected_epoch = -1
            message = f"the leader of epoch {epoch} is {leader_id}"
            self._delayed_commits.fail_all(KafkaError(ErrorCode.NOT_CONTROLLER, message), lost)
            if self._on_leave is not None:
                self._on_leave()
        for changed in self._leader_watchers:
            changed()
        self._notify()

    def on_load_snapshot(self, id: SnapshotId) -> None:
        self.publish_now()
        self._loader.load_snapshot(LoadedSnapshot(id, self.snapshots.read(id)))
        self._snapshot_generator.on_load_snapshot()
        self._notify()

    def on_failure(self, error: BaseException) -> None:
        self._stop_preparing()
        self._delayed_commits.fail_all(
            KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log failed: {error}")
        )
        if self._on_leave is not None:
            self._on_leave()
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is evaluated whenever the image or the leader has changed.
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
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._changed)

    # Subscriptions and state

    def subscribe(self, subscriber: Subscriber) -> MetadataImage:
        """Call `subscriber` with every delta and image from here on; returns the image to start from."""
        return self._loader.subscribe(subscriber)

    def prepare_with(self, prepare: Prepare) -> None:
        """Call `prepare` before a delta is published; the publication waits for the work that it returns."""
        self._prepare = prepare

    def _stop_preparing(self) -> None:
        self._prepare = None
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None

    def fork(self) -> MetadataBatchLoader:
        """A copy of the batch loader, with which the controller replays what it appends."""
        return self._loader.fork()

    @property
    def is_caught_up(self) -> bool:
        """Whether everything below the high watermark that the leader sent has been replayed."""
        high_watermark = self.client.status.high_watermark
        return high_watermark is not None and self._loader.next_offset >= high_watermark

    @property
    def leader_id(self) -> int | None:
        """The leader of the quorum; None if it is not known."""
        return self._leader_id

    @property
    def leader_address(self) -> Address | None:
        """Where the leader's controller is reached; None if it is not known, or if this node leads."""
        return None if self.client.is_leader else self.client.leader_address

    @property
    def led_epoch(self) -> int:
        """The epoch that this node leads and before which everything is replayed; -1 if there is none."""
        client = self.client
        return client.epoch if client.is_leader and client.epoch == self._led_epoch else -1

    def is_followed_since(self, since_ns: int) -> bool:
        """Whether this node leads and a majority of the voters has fetched since then."""
        return self.client.is_followed_since(since_ns)

    @property
    def voters(self) -> VoterSet:
        voters = self._voter_history.voters
        assert voters is not None, "a voter knows the voters"
        return voters

    @property
    def known_voters(self) -> str:
        """The ids of the voters as text, for messages."""
        voters = self._voter_history.voters
        return "not known yet" if voters is None else ", ".join(map(str, voters.ids))

    @property
    def kraft_version(self) -> int:
        return self._voter_history.kraft_version

    @property
    def snapshots(self) -> SnapshotStore:
        return self._log.snapshots

    @property
    def epoch(self) -> int:
        return self.client.epoch

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
        """Why the log cannot be written any more; the node has to stop then. None while it can."""
        return self.client.failure

    # Appending

    def append(self, records: Sequence[MetadataRecord], version: MetadataVersion) -> Provenance:
        """Append records as one batch, all or nothing. To wait for the commit, await `wait_for_commit` with
        `next_offset` as it is after this call.
        """
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

    def upgrade_kraft_version(self, kraft_version: int, validate_only: bool) -> None:
        """Raise the `kraft.version` of the quorum; KafkaError INVALID_UPDATE_VERSION says why not."""
        self.client.upgrade_kraft_version(kraft_version, validate_only=validate_only)

    def wait_for_commit(self, end_offset: int) -> asyncio.Future[None]:
        """A future that is done once everything below `end_offset` is committed and published. KafkaError
        NOT_CONTROLLER if this node stops leading before: the records may be committed or not then.
        """
        self.client.check_usable()
        future = self._delayed_commits.add(end_offset, self.epoch)
        self._delayed_commits.complete_until(self._loader.next_offset)
        return future

    # Snapshots

    async def maybe_snapshot(self) -> None:
        """Write a snapshot if one is due; call it about once a second."""
        if not self._snapshot_generator.is_due():
            return
        self.client.check_usable()
        id = await self._snapshot_generator.write_if_due()
        if id is not None:
            _logger.info("wrote the metadata snapshot %s", id.file_name)

    async def write_snapshot(self, image: MetadataImage) -> SnapshotId:
        """Write a committed image as a snapshot."""
        self.client.check_usable()
        return await self._snapshot_generator.write(image)

    def trim(self) -> None:
        """Delete the oldest snapshots and the records before the next ones, while they are too large or too
        old.
        """
        self._log.trim()

    async def resign(self, timeout_ms: int) -> None:
        """Hand leadership over, if this node has it and there is another voter."""
        if self.client.failure is None and not self._voter_history.is_only_voter(self.client.local.key):
            await self.client.resign(timeout_ms)

    async def close(self) -> None:
        """Sync what was appended and close the files."""
        self._stop_preparing()
        await self.client.close()

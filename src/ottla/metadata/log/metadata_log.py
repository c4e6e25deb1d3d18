"""`MetadataLog`: the metadata records on which the quorum agrees.

Opening it loads the newest snapshot; starting it makes this node take part in the quorum, and a voter alone
leads at once. Where this node leads, records are appended in batches of its epoch (Kafka's
`BatchAccumulator`); a batch is committed once a majority has it on disk, and one sync covers everything that
was appended meanwhile.

As the high watermark moves, on every node, committed records take two steps, each in order and in turns:

* they are loaded: replayed into the next image, which `image` shows from then on;
* they are published: the broker's publisher applies the delta to its replicas (`published_offset`).

The image may be ahead of what is published, by a delta that creates ten thousand logs for example, as in
Kafka, where the metadata cache is ahead of the replica manager. Nothing that decides who is alive waits for
the second step: neither heartbeats nor votes nor a new controller. Invariant: a caller learns that a record
is committed only once the record would survive a power cut.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.metadata.log.loader import MetadataLoader, Subscriber
from ottla.metadata.log.log_driver import MetadataLogDriver, MetadataRecordStore, MetadataSnapshots
from ottla.metadata.log.snapshot_generator import SnapshotGenerator
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
from ottla.raft.snapshot import SnapshotContent, SnapshotId
from ottla.raft.states import ElectionState
from ottla.raft.voters import ReplicaKey, Voter, VoterSet, VoterSetHistory
from ottla.records.builder import build_batch
from ottla.rpc.channel import InterNodeClient
from ottla.rpc.connection import PLAINTEXT, ConnectionSecurity
from ottla.runtime import invariants
from ottla.runtime.address import Address
from ottla.runtime.metrics import Histogram
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import WorkQueue, in_turns

_logger = logging.getLogger(__name__)

_DAY_MS: Final = 24 * 60 * 60 * 1000
# How much of the log goes into one image.
_REPLAY_BYTES: Final = 4 * 1024 * 1024

_COMMIT_BOUNDS_NS: Final = tuple(ms * 1_000_000 for ms in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000))

Publisher: TypeAlias = Callable[[MetadataDelta, MetadataImage, Turns], Coroutine[Any, Any, None]]
"""Applies a delta to the parts of a node, in turns."""


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
class LoadedMetadata:
    """What is certain before the driver starts: the newest snapshot and the voters. The driver decides what
    is committed beyond the snapshot.
    """

    log: MetadataRecordStore
    voter_history: VoterSetHistory
    loader: MetadataLoader


@dataclass(slots=True)
class _LoadedFiles:
    """The content of the files of a quorum's log."""

    log: KafkaRaftLog
    voter_history: VoterSetHistory
    loader: MetadataLoader
    election: ElectionState | None

    def metadata(self) -> LoadedMetadata:
        return LoadedMetadata(self.log, self.voter_history, self.loader)


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


def _is_broken_invariant(error: Exception) -> bool:
    """In tests and in the simulator a broken invariant ends the log; on a running node it is logged."""
    return invariants.thorough and isinstance(error, AssertionError)


class _DelayedCommits:
    """The callers that wait until their records are committed, or published, in the order of the log.

    Each is answered once: when that is so of everything below its offset, or with an error when its epoch is
    over and the next leader may have the records or not.
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

    def complete_between(self, after: int, offset: int) -> None:
        """Answer those that wait for `offset` or less, but not those that wait for `after` or less."""
        earlier = []
        while self._heap and self._heap[0][0] <= after:
            earlier.append(heapq.heappop(self._heap))
        self.complete_until(offset)
        for each in earlier:
            heapq.heappush(self._heap, each)

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
    """Create it by `open`. Otherwise `client` has to be set before `start`."""

    def __init__(self, runtime: Runtime, loaded: LoadedMetadata, config: MetadataLogConfig) -> None:
        self._runtime: Final = runtime
        self._log: Final = loaded.log
        self._voter_history: Final = loaded.voter_history
        self._loader: Final = loaded.loader
        self.image = loaded.loader.image  # the newest committed image
        loaded.loader.on_image = self._on_image
        self._subscribers: list[Subscriber] = []
        self.config: Final = config
        self.client: MetadataLogDriver
        self._delayed_commits: Final = _DelayedCommits()
        # How long decisions of this node's active controller waited for their commit, in nanoseconds.
        self.commit_times: Final = Histogram(_COMMIT_BOUNDS_NS, scale=1e-9)
        self._delayed_publications: Final = _DelayedCommits()
        self._changed: asyncio.Future[None] | None = None  # done when the image or the leader changes
        self._leader_id: int | None = None
        self._elected_epoch = -1  # the epoch that this node leads by the last leader change; -1 if none
        self._led_epoch = -1  # the last epoch in which this node began to act: all before it is replayed
        self._leader_watchers: list[Callable[[], None]] = []
        self._on_lead: Callable[[int], None] | None = None
        self._on_leave: Callable[[], None] | None = None
        self._loading: Final = WorkQueue(runtime.clock, "loading of metadata")
        self._is_loading = False  # whether the work to load what is committed is queued or runs
        self._snapshot_to_load: SnapshotId | None = None  # the log has started over after it
        self._publishing: Final = WorkQueue(runtime.clock, "publication of metadata")
        self._publisher: Publisher | None = None
        self._image_end = loaded.loader.next_offset  # the offset after the last one that the image has
        # The last offset of the metadata that this node has applied; -1 before the first.
        self.published_offset = self.image.provenance.last_contained_offset
        self._snapshot_generator: Final = SnapshotGenerator(
            runtime,
            loaded.log,
            loaded.voter_history,
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
        security: ConnectionSecurity = PLAINTEXT,
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
        self = cls(runtime, files.metadata(), config)
        try:
            if alone:
                self._check_alone(local.key)
            self.client = KafkaRaftClient(
                runtime,
                files.log,
                self._voter_history,
                local,
                self,
                cluster_id=cluster_id,
                election=files.election,
                config=quorum,
                listener_name=listener,
                bootstrap=bootstrap,
                channel=InterNodeClient(runtime.network, security=security),
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
        self._delayed_commits.complete_until(high_watermark)
        self._load()

    def on_load_snapshot(self, id: SnapshotId) -> None:
        self._snapshot_to_load = id
        self._load()

    # Loading and publishing

    def _load(self) -> None:
        """Load what is committed, in turns; what becomes so meanwhile too."""
        if not self._is_loading:
            self._is_loading = True
            self._loading.submit(self._load_committed)

    async def _load_committed(self) -> None:
        loader, log, turns = self._loader, self._log, self._loading.turns
        try:
            while True:
                id = self._snapshot_to_load
                if id is not None:
                    content = await self._read_snapshot(id)
                    turns.begin()
                    if content is None:
                        continue
                    self._snapshot_to_load = None
                    self._snapshot_generator.on_load_snapshot()
                    await in_turns(loader.load_snapshot(LoadedSnapshot(id, content)), turns)
                elif loader.next_offset < log.high_watermark:
                    replay = loader.replay(log.high_watermark, _REPLAY_BYTES, self._has_started_over)
                    self._snapshot_generator.on_replayed(await in_turns(replay, turns))
                else:
                    break
        except Exception as error:
            self.client.fail(error)
        finally:
            self._is_loading = False

    async def _read_snapshot(self, id: SnapshotId) -> SnapshotContent | None:
        """Read a snapshot in the pool; None if the log has started over after another one meanwhile."""
        try:
            content = await self._runtime.pool.run(self.snapshots.read, id)
        except (OSError, KafkaError):
            if self._snapshot_to_load == id:
                raise
            return None
        return content if self._snapshot_to_load == id else None

    def _has_started_over(self) -> bool:
        return self._snapshot_to_load is not None

    def _on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Show the next image, and have it published."""
        self.image = image
        before, end = self._image_end, self._loader.next_offset
        self._image_end = end
        assert end <= self._log.high_watermark, (
            f"offset {end} is loaded, but committed is {self._log.high_watermark}"
        )
        for subscriber in self._subscribers:
            try:
                subscriber(delta, image)
            except Exception as error:
                if _is_broken_invariant(error):
                    raise
                _logger.exception("a part of the node did not follow the metadata up to offset %d", end - 1)
        publisher = self._publisher
        if delta.is_empty and self._publishing.is_idle:
            publisher = None
        if publisher is None:
            self.published_offset = image.provenance.last_contained_offset
        if publisher is None or not self._publishing.is_idle:
            # An earlier delta is still being applied: callers need not wait for all of that.
            self._delayed_publications.complete_between(before, end)
        if publisher is not None:
            self._publishing.submit(lambda: self._publish(publisher, delta, image, end))
        self._maybe_lead()
        self._notify()

    async def _publish(
        self, publisher: Publisher, delta: MetadataDelta, image: MetadataImage, end: int
    ) -> None:
        try:
            await publisher(delta, image, self._publishing.turns)
        except Exception as error:
            if _is_broken_invariant(error):
                self.client.fail(error)
            _logger.exception("the metadata up to offset %d were not applied as a whole", end - 1)
        self.published_offset = image.provenance.last_contained_offset
        self._delayed_publications.complete_until(end)
        self._notify()

    def publish_to(
        self, start: Callable[[MetadataImage, Turns], Coroutine[Any, Any, None]], publisher: Publisher
    ) -> asyncio.Future[None]:
        """Have the newest image applied by `start`, and each delta after it by `publisher`; returns when
        `start` has ended.
        """
        self._publisher = publisher
        image = self.image
        return self._publishing.submit(lambda: start(image, self._publishing.turns))

    def between_publications(
        self, work: Callable[[Turns], Coroutine[Any, Any, None]]
    ) -> asyncio.Future[None]:
        """Do some work that must not meet a delta which is half applied."""
        return self._publishing.submit(lambda: work(self._publishing.turns))

    async def stop_publishing(self) -> None:
        """Apply no more deltas, not even the rest of the one that is being applied."""
        self._publisher = None
        await self._publishing.close()
        self._delayed_publications.complete_until(self._loader.next_offset)
        self._notify()

    def _maybe_lead(self) -> None:
        epoch = self._elected_epoch
        if not self.client.is_leader or epoch != self.client.epoch or self._led_epoch == epoch:
            return
        if self._loader.is_replaying:
            return  # the end of it comes here again
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
            self._fail_delayed(KafkaError(ErrorCode.NOT_CONTROLLER, message), lost)
            if self._on_leave is not None:
                self._on_leave()
        for changed in self._leader_watchers:
            changed()
        self._notify()

    def on_failure(self, error: BaseException) -> None:
        self._fail_delayed(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log failed: {error}"))
        if self._on_leave is not None:
            self._on_leave()
        self._notify()

    def _fail_delayed(self, error: KafkaError, epoch: int | None = None) -> None:
        self._delayed_commits.fail_all(error, epoch)
        self._delayed_publications.fail_all(error, epoch)

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
                if isinstance(failure, StorageError):
                    raise failure
                raise StorageError(f"the metadata log failed: {failure}") from failure
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._changed)

    # Subscriptions and state

    def subscribe(self, subscriber: Subscriber) -> MetadataImage:
        """Call `subscriber` with every delta and image from here on, before it is published; returns the
        image to start from. An error of a subscriber is logged: what is committed stays so.
        """
        self._subscribers.append(subscriber)
        return self.image

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
        """The epoch in which this node leads and has replayed all earlier records; -1 if there is none."""
        client = self.client
        return client.epoch if client.is_leader and client.epoch == self._led_epoch else -1

    def is_followed_since(self, since_ns: int) -> bool:
        """Whether this node leads and a majority of the voters has fetched since then."""
        return self.client.is_followed_since(since_ns)

    @property
    def is_confirmed(self) -> bool:
        """Whether this node leads, and no other one may have been elected."""
        return self.client.is_confirmed

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
    def missing_leader_text(self) -> str:
        """Why there may be no leader, for an operator."""
        return self.client.describe_missing_leader(self.known_voters)

    @property
    def kraft_version(self) -> int:
        return self._voter_history.kraft_version

    @property
    def snapshots(self) -> MetadataSnapshots:
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

    def append(self, records: Sequence[bytes]) -> Provenance:
        """Append encoded records as one batch, all or nothing. To wait for the commit, await
        `wait_for_commit` with `next_offset` as it is after this call.
        """
        now_ms = self._runtime.clock.wall_ms()
        batch = build_batch(
            [(now_ms, None, record) for record in records],
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

    def fail_if_failed(self, work: asyncio.Future[None]) -> None:
        """Give up if some work without which this node cannot lead has failed."""
        if not work.cancelled() and (error := work.exception()) is not None:
            self.client.fail(error)

    def upgrade_kraft_version(self, kraft_version: int, validate_only: bool) -> None:
        """Raise the `kraft.version` of the quorum; KafkaError INVALID_UPDATE_VERSION says why not."""
        self.client.upgrade_kraft_version(kraft_version, validate_only=validate_only)

    def wait_for_commit(self, end_offset: int) -> asyncio.Future[None]:
        """A future that is done once everything below `end_offset` is committed. KafkaError NOT_CONTROLLER if
        this node stops leading before: the records may be committed or not then.
        """
        self.client.check_usable()
        future = self._delayed_commits.add(end_offset, self.epoch)
        self._delayed_commits.complete_until(self._log.high_watermark)
        if not future.done():
            began_ns = self._runtime.clock.monotonic_ns()
            future.add_done_callback(
                lambda _: self.commit_times.observe(self._runtime.clock.monotonic_ns() - began_ns)
            )
        return future

    def wait_for_publication(self, end_offset: int) -> asyncio.Future[None]:
        """The same, once the image shows everything below `end_offset` and the node has applied it; for
        callers that should find what they have changed. If an earlier delta keeps the node busy, the future
        is done with the image.
        """
        self.client.check_usable()
        if end_offset > self._loader.next_offset:
            return self._delayed_publications.add(end_offset, self.epoch)
        shown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        shown.set_result(None)
        return shown

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
        await self._loading.close()
        await self._publishing.close()
        await self.client.close()

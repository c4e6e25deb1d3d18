"""Keeps the tables of topics: sends what this broker leads to a worker process, which commits it.

Each broker commits the partitions that it leads, all of one topic in one commit. So records are read from the
log of this broker and cross no network, the work moves with the leaders, and no election is needed: the table
itself decides who is right, as `ottla.tables.topic_table` explains. Only committed records below the last
stable offset are sent.

The keeper waits for the disk in the pool and for a worker in a thread of the worker's own. It holds one
piece of a log at a time. What fails (a store, a catalog, a worker that was killed) is tried again with a
back-off, per topic; the lag grows meanwhile, and nothing else of the node notices.

There are two lanes, each with a worker: one for tables whose requests are answered soon, and one for those
that had to be given up, and for merging files, which takes long. So a table that hangs holds up the others
once, for as long as the first lane waits for an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from ottla.metadata.image.entities import ConfigResource, ConfigResourceType, TopicImage
from ottla.metadata.image.image import MetadataImage
from ottla.node.cluster.replication import BrokerReplication
from ottla.node.config.definitions.topic import TOPIC
from ottla.node.config.node_config import NodeConfig
from ottla.node.fetch.partition_reader import PartitionReader, complete
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition, uuid_text
from ottla.replication.partition import FetchIsolation, LogReadInfo, Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime.child_process import ChildFailed, ChildProcess, ChildTimedOut
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns
from ottla.tables.settings import MAX_PART_BYTES, CatalogSettings, MaintenanceSettings, TableSettings
from ottla.tables.worker_messages import (
    Append,
    AppendAnswer,
    Commit,
    CommitAnswer,
    Configure,
    Maintain,
    Offsets,
    Open,
    WorkerRequest,
)

_log = logging.getLogger(__name__)

_WORKER: Final = "ottla.tables.worker"
# One request to the worker of the first lane. A table that needs longer goes to the second.
_FAST_SECONDS: Final = 60.0
# One to that of the second; merging files takes longest.
_SLOW_SECONDS: Final = 600.0
# A round in the second lane that took less brings its table back to the first.
_BACK_MS: Final = 20_000
_READ_BYTES: Final = 1024 * 1024
# A read from remote storage goes on in the background if it takes longer, and the next attempt finds it.
_REMOTE_WAIT_MS: Final = 1_000
_REMOTE_ATTEMPTS: Final = 20
_FIRST_BACKOFF_MS: Final = 500
_MAX_BACKOFF_MS: Final = 60_000
# Rounds in a row that others were faster than, before that is a failure. Each begins again after a pause.
_MAX_REPEATS: Final = 5
_REPEAT_MS: Final = 100
# Offsets without rows (of aborted transactions, for example) that are committed nevertheless.
_MANY_OFFSETS: Final = 100_000
# A worker without a table ends after so long.
_IDLE_WORKER_MS: Final = 60_000


def topics_with_tables(image: MetadataImage, resources: Iterable[ConfigResource]) -> set[str]:
    """Those of the resources that are topics with a table."""
    return {
        resource.name
        for resource in resources
        if resource.type == ConfigResourceType.TOPIC
        and image.config(resource).get("table.format", "none") != "none"
    }


class TableBroker(Protocol):
    """The parts of a broker that the keeper uses."""

    @property
    def cluster_id(self) -> str: ...
    @property
    def config(self) -> NodeConfig: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def replication(self) -> BrokerReplication: ...
    @property
    def runtime(self) -> Runtime: ...


class Worker(Protocol):
    async def request(self, head: Mapping[str, Any], payload: bytes = b"") -> dict[str, Any]: ...
    async def close(self) -> None: ...


class UpkeepFailed(Exception):
    """The round of a table has failed; the text says why."""


class TableChanged(UpkeepFailed):
    """Another broker, or a merge of files, was faster: the round begins again on the table as it is now."""


@dataclass(slots=True)
class TableState:
    """The upkeep of one topic's table by this broker. Times are monotonic milliseconds."""

    topic: str
    topic_id: bytes
    due_ms: int
    complete_ms: int
    """Everything that was committed before that moment is in the table."""
    maintenance_ms: int
    is_slow: bool = False
    """Whether it is in the second lane."""
    # The offset that follows what has been sent, by partition that this broker leads.
    positions: dict[int, int] = field(default_factory=dict)
    # Partitions that may have something new, by their progress: partitions at rest are not looked at.
    changed: dict[int, None] = field(default_factory=dict)
    looks_at_all: bool = True
    """Whether the next round looks at all partitions: at first, and when it is not known what was sent."""
    next_partition: int = 0
    """Where the next round begins, if the last one was full: low partitions may always have something new."""
    backoff_ms: int = 0
    repeats: int = 0
    error: str | None = None
    rows: int = 0
    bytes: int = 0
    commits: int = 0
    failures: int = 0
    skipped: int = 0
    """Offsets that the log had deleted before they were in the table."""

    def forget_positions(self) -> None:
        """Have the next round ask the table what it has."""
        self.positions.clear()
        self.looks_at_all = True


class WorkerLane:
    """A worker, and the tables that wait for it. It starts with the first request."""

    def __init__(self, timeout_seconds: float, make_worker: Callable[[float], Worker]) -> None:
        self._timeout_seconds: Final = timeout_seconds
        self._make_worker: Final = make_worker
        self._worker: Worker | None = None
        # Set when what a table of the lane waits for has changed.
        self.woken: Final = asyncio.Event()

    async def worker(self, catalog: Callable[[], CatalogSettings]) -> Worker:
        if self._worker is None:
            settings = catalog()
            worker = self._worker = self._make_worker(self._timeout_seconds)
            configure: Configure = {"op": "configure", "catalog": settings.to_json()}
            await worker.request(configure)
        return self._worker

    async def replace_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    async def wait(self, pause_ms: int) -> None:
        try:
            async with asyncio.timeout(max(pause_ms, 0) / 1000):
                await self.woken.wait()
        except TimeoutError:
            pass


class TableKeeper:
    """One for a broker, made when the first topic asks for a table. `run` and `run_slow` are its tasks."""

    def __init__(self, broker: TableBroker, make_worker: Callable[[float], Worker] | None = None) -> None:
        self._broker: Final = broker
        self._clock: Final = broker.runtime.clock
        if make_worker is None:

            def make_worker(timeout_seconds: float) -> Worker:
                return ChildProcess(_WORKER, timeout_seconds=timeout_seconds)

        self._fast: Final = WorkerLane(_FAST_SECONDS, make_worker)
        self._slow: Final = WorkerLane(_SLOW_SECONDS, make_worker)
        self._tables: Final[dict[str, TableState]] = {}
        self._topics: set[str] = set()

    def __iter__(self) -> Iterator[TableState]:
        return iter(list(self._tables.values()))

    def lag_ms(self, state: TableState) -> int:
        """How old the newest moment is up to which the table is complete."""
        return max(self._now_ms() - state.complete_ms, 0)

    async def lag_records(self, state: TableState, turns: Turns) -> int:
        """Offsets of led partitions that have not been sent yet."""
        lag = 0
        for index in self._to_look_at(state):
            partition = self._led(state, index)
            if partition is not None:
                lag += max(partition.log.last_stable_offset - state.positions.get(index, 0), 0)
            await turns.pause_if_due()
        return lag

    def status(self, topic: str) -> str | None:
        """Say why the table does not have all records, as far as this broker keeps it; None if it does not
        keep one.
        """
        if topic not in self._topics:
            return None
        state = self._tables.get(topic)
        if state is None:
            return "the broker has not begun with it yet"
        pause_ms = state.due_ms - self._now_ms()
        when = "under way" if pause_ms <= 0 else f"due in {-(-pause_ms // 1000)} s"
        if state.error is not None:
            return f"{state.error}; the next attempt is {when}"
        return f"its next commit is {when}"

    def on_partition_progress(self, partition: Partition) -> None:
        """Called after every progress of any partition, also when it gets a leader, or has lost it."""
        state = self._tables.get(partition.topic_partition.topic)
        if state is not None:
            state.changed[partition.topic_partition.partition] = None

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def update(self, changed: Iterable[str], image: MetadataImage) -> None:
        """Take note of topics whose settings have changed."""
        for topic in changed:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            if topics_with_tables(image, (resource,)):
                self._topics.add(topic)
                if (state := self._tables.get(topic)) is not None:
                    state.due_ms, state.backoff_ms = self._now_ms(), 0
            else:
                self._topics.discard(topic)
        self._fast.woken.set()
        self._slow.woken.set()

    # The tasks

    async def run(self) -> None:
        """Keep the tables of the first lane."""
        lane = self._fast
        while True:
            lane.woken.clear()
            await self._take_up()
            await self._keep_due(lane)
            if not self._tables:
                await lane.replace_worker()
            dues = [state.due_ms for state in self._tables.values() if not state.is_slow]
            await lane.wait(min(dues) - self._now_ms() if dues else _IDLE_WORKER_MS)

    async def run_slow(self) -> None:
        """Keep the tables of the second lane, and all in order."""
        lane = self._slow
        idle_ms = self._now_ms()
        while True:
            lane.woken.clear()
            kept = await self._keep_due(lane)
            for state in list(self._tables.values()):
                if state.maintenance_ms <= self._now_ms() and state.topic in self._topics:
                    kept |= await self._maintain(state)
            now_ms = self._now_ms()
            idle_ms = now_ms if kept else idle_ms
            if now_ms - idle_ms >= _IDLE_WORKER_MS or not self._tables:
                await lane.replace_worker()
            dues = [state.due_ms for state in self._tables.values() if state.is_slow]
            dues += [state.maintenance_ms for state in self._tables.values()]
            await lane.wait(min([*dues, now_ms + _IDLE_WORKER_MS]) - now_ms)

    async def close(self) -> None:
        await self._fast.replace_worker()
        await self._slow.replace_worker()

    async def _keep_due(self, lane: WorkerLane) -> bool:
        """Do a round of each table of a lane that is due. Return whether there was one."""
        is_slow, now_ms = lane is self._slow, self._now_ms()
        due = [each for each in self._tables.values() if each.is_slow == is_slow and each.due_ms <= now_ms]
        for state in sorted(due, key=lambda each: each.due_ms):
            if state.topic in self._topics:
                await self._keep(state)
        return bool(due)

    def _lane(self, state: TableState) -> WorkerLane:
        return self._slow if state.is_slow else self._fast

    async def _take_up(self) -> None:
        """Begin with new topics, and forget those that have no table any more, or another id."""
        image, now_ms = self._broker.image, self._now_ms()
        for topic in [each for each in self._tables if each not in self._topics]:
            del self._tables[topic]
        for topic in sorted(self._topics):
            found = image.topics.by_name.get(topic)
            state = self._tables.get(topic)
            if state is not None and (found is None or found.id != state.topic_id):
                del self._tables[topic]
                state = None
            if found is not None and state is None:
                interval_ms = self._broker.config.number("table.maintenance.interval.ms")
                self._tables[topic] = TableState(topic, found.id, now_ms, now_ms, now_ms + interval_ms)
                self._slow.woken.set()

    async def _keep(self, state: TableState) -> None:
        """Do one round of a table, and decide when the next one is due."""
        started_ms = self._now_ms()
        try:
            is_complete = await self._round(state)
            state.error, state.backoff_ms, state.repeats = None, 0, 0
            if state.is_slow and self._now_ms() - started_ms < _BACK_MS:
                state.is_slow = False
                self._fast.woken.set()
            if is_complete:
                state.complete_ms = started_ms
                state.due_ms = started_ms + self._setting(state.topic, "table.freshness.ms")
            else:
                state.due_ms = started_ms
        except TableChanged as error:
            state.forget_positions()
            state.repeats += 1
            if state.repeats <= _MAX_REPEATS:
                state.due_ms = self._now_ms() + _REPEAT_MS * 2**state.repeats
            else:
                self._on_failure(state, str(error))
        except Exception as error:
            # Any: a topic that always comes first, and always fails, would keep all others waiting.
            text = str(error) or type(error).__name__
            if not isinstance(error, UpkeepFailed | KafkaError):
                # The worker may have ended, or not even know its catalog.
                await self._lane(state).replace_worker()
                if not isinstance(error, ChildFailed | OSError) and text != state.error:
                    _log.error("the upkeep of the table of %s failed", state.topic, exc_info=error)
            self._on_failure(state, text)
            if isinstance(error, ChildTimedOut) and not state.is_slow:
                state.is_slow = True
                self._slow.woken.set()

    def _on_failure(self, state: TableState, text: str) -> None:
        state.forget_positions()
        state.failures += 1
        state.backoff_ms = min(max(2 * state.backoff_ms, _FIRST_BACKOFF_MS), _MAX_BACKOFF_MS)
        state.due_ms = self._now_ms() + state.backoff_ms
        if text != state.error:
            _log.warning("the table of %s is not kept, and will be tried again: %s", state.topic, text)
        state.error = text

    # A round

    async def _round(self, state: TableState) -> bool:
        """Send what is new to the table. Return whether nothing was left over."""
        turns = Turns(self._clock)
        now_ms = self._clock.wall_ms()
        led: dict[int, Partition] = {}
        ends: dict[int, int] = {}
        to_look_at, state.looks_at_all = self._to_look_at(state), False
        # Until they have been sent, they count as behind.
        state.changed.update(dict.fromkeys(to_look_at))
        for index in to_look_at:
            partition = self._led(state, index)
            if partition is None:
                state.positions.pop(index, None)
            elif state.positions.get(index) != partition.log.last_stable_offset:
                led[index], ends[index] = partition, partition.log.last_stable_offset
            if index not in ends:
                state.changed.pop(index, None)
            await turns.pause_if_due()
        if not ends:
            return True
        request: Open = {"op": "open", "topic": state.topic, "table": self._table(state), "now_ms": now_ms}
        answer: Offsets = await self._ask(self._lane(state), request)
        offsets = {int(partition): offset for partition, offset in answer.items()}
        is_complete = await self._send(state, led, ends, offsets)
        for index, partition in led.items():
            if state.positions.get(index) == partition.log.last_stable_offset:
                state.changed.pop(index, None)
            else:
                state.changed[index] = None
            await turns.pause_if_due()
        return is_complete

    async def _send(
        self, state: TableState, led: dict[int, Partition], ends: dict[int, int], offsets: dict[int, int]
    ) -> bool:
        left = self._broker.config.number("table.commit.max.bytes")
        positions: dict[int, int] = {}
        is_complete, is_full = True, False
        order = sorted(ends, key=lambda index: (index < state.next_partition, index))
        state.next_partition = 0
        for index in order:
            end = ends[index]
            partition = led[index]
            position = offsets.get(index, 0)
            start = partition.log.log_start_offset
            is_rebuilt = False
            if position < start:
                if index in offsets and self._mode(state.topic) == "latest":
                    is_rebuilt = True
                elif index in offsets:
                    state.skipped += start - position
                    _log.error(
                        "%s: the log begins at %d and its table ends at %d: these records are in neither",
                        partition.topic_partition,
                        start,
                        position,
                    )
                position = start
            if position > partition.log.log_end_offset:
                raise UpkeepFailed(
                    f"partition {index} ends at {partition.log.log_end_offset} and its table at {position}: "
                    "the log has lost records (an unclean election?); see docs/tables.md"
                )
            while position < end:
                if left <= 0 or is_full:
                    if is_complete:
                        state.next_partition = index
                    is_complete = False
                    break
                read = await self._read(partition, position)
                if not read.records:
                    break
                left -= len(read.records)
                append: Append = {
                    "op": "append",
                    "topic": state.topic,
                    "partition": index,
                    "offset": position,
                    "aborted": [(each.producer_id, each.first_offset) for each in read.aborted or ()],
                    "rebuild": is_rebuilt,
                    "now_ms": self._clock.wall_ms(),
                }
                answer: AppendAnswer = await self._ask(self._lane(state), append, read.records)
                if "rebuild" in answer and not is_rebuilt:
                    is_rebuilt, position = True, partition.log.log_start_offset
                    continue
                if answer["next"] <= position:
                    break
                position, is_full = answer["next"], answer["full"]
            positions[index] = position
        moved = sum(position - offsets.get(index, 0) for index, position in positions.items())
        always = moved >= _MANY_OFFSETS
        complete = [index for index, position in positions.items() if position >= ends[index]]
        commit: Commit = {"op": "commit", "topic": state.topic, "always": always, "complete": complete}
        result: CommitAnswer = await self._ask(self._lane(state), commit)
        state.positions |= positions
        if result["rows"] or always:
            state.commits += 1
            state.rows += result["rows"]
            state.bytes += result["bytes"]
        return is_complete

    async def _read(self, partition: Partition, offset: int) -> LogReadInfo:
        """Read records, wherever they are."""
        for _ in range(_REMOTE_ATTEMPTS):
            reader = PartitionReader(self._broker, FetchIsolation.TXN_COMMITTED, max_wait_ms=_REMOTE_WAIT_MS)
            read = partial(reader.read, partition, offset, _READ_BYTES)
            found: LogReadInfo | KafkaError = await complete(self._broker.runtime.pool, read)
            if isinstance(found, KafkaError):
                raise found
            if found.records or not found.is_remote:
                return found
        raise UpkeepFailed(
            f"{partition.topic_partition}: offset {offset} is in remote storage, and was not read in time"
        )

    async def _maintain(self, state: TableState) -> bool:
        """Let the leader of the first partition keep the table in order. Return whether that is this one."""
        started_ms = self._now_ms()
        interval_ms = self._broker.config.number("table.maintenance.interval.ms")
        state.maintenance_ms = started_ms + interval_ms
        if self._led(state, 0) is None or not state.commits + len(state.positions):
            return False
        try:
            await self._merge_and_expire(state)
        except Exception as error:
            if not isinstance(error, UpkeepFailed):
                await self._slow.replace_worker()
            state.failures += 1
            # One that hangs leaves most of the time to the others.
            pause_ms = max(interval_ms, 10 * (self._now_ms() - started_ms))
            state.maintenance_ms = self._now_ms() + pause_ms
            _log.warning(
                "the files of the table of %s were not put in order, which will be tried again in %d s: %s",
                state.topic,
                pause_ms // 1000,
                str(error) or type(error).__name__,
            )
        return True

    async def _merge_and_expire(self, state: TableState) -> None:
        config = self._broker.config
        request: Open = {"op": "open", "topic": state.topic, "table": self._table(state)}
        offsets: Offsets = await self._ask(self._slow, request)
        if any(offsets.get(str(index), 0) < position for index, position in state.positions.items()):
            # The table was dropped, or rolled back: a round has to look at it again.
            state.forget_positions()
            state.due_ms = self._now_ms()
            self._lane(state).woken.set()
        settings = MaintenanceSettings(
            target_bytes=config.number("table.file.target.bytes"),
            min_files=config.number("table.compaction.min.files"),
            snapshot_retention_ms=config.number("table.snapshot.retention.ms"),
            snapshot_max_count=config.number("table.snapshot.max.count"),
            orphan_min_age_ms=config.number("table.orphan.min.age.ms"),
        )
        maintain: Maintain = {"op": "maintain", "topic": state.topic, "settings": settings.to_json()}
        await self._ask(self._slow, maintain)

    async def _ask(self, lane: WorkerLane, request: WorkerRequest, records: bytes = b"") -> Any:
        """Send a request to the worker of a lane. UpkeepFailed if the answer is an error."""
        worker = await lane.worker(self._catalog)
        answer = await worker.request(request, records)
        if "moved" in answer:
            raise TableChanged(answer["moved"])
        if "ok" not in answer:
            raise UpkeepFailed(answer.get("error") or "the worker does not say why")
        return answer["ok"]

    def _catalog(self) -> CatalogSettings:
        """The catalog. UpkeepFailed if each broker would have one of its own."""
        config = self._broker.config
        if config["table.catalog.uri"] is None and config["table.catalog.warehouse"] is None:
            brokers = len(self._broker.image.cluster.brokers)
            if brokers > 1:
                raise UpkeepFailed(
                    f"the {brokers} brokers would have {brokers} catalogs: set table.catalog.warehouse to a "
                    "directory that all of them share, or table.catalog.uri"
                )
        return CatalogSettings.from_settings(config.given, config.log_dirs[0])

    def _table(self, state: TableState) -> dict[str, Any]:
        config, image = self._broker.config, self._broker.image
        overrides = image.config(ConfigResource(ConfigResourceType.TOPIC, state.topic))
        registry = config["table.schema.registry.url"]
        return TableSettings(
            topic=state.topic,
            topic_id=uuid_text(state.topic_id),
            cluster_id=self._broker.cluster_id,
            metadata_offset=image.provenance.last_contained_offset,
            mode=self._mode(state.topic),
            delete_retention_ms=self._setting(state.topic, "delete.retention.ms"),
            max_part_bytes=max(
                MAX_PART_BYTES, int(overrides.get("max.message.bytes", config.number("message.max.bytes")))
            ),
            partition_by=overrides.get("table.partition.by", "none"),
            schema_type=overrides.get("table.schema.type", "none"),
            schema=overrides.get("table.schema", ""),
            registry_url=None if registry is None else str(registry),
        ).to_json()

    def _mode(self, topic: str) -> str:
        overrides = self._broker.image.config(ConfigResource(ConfigResourceType.TOPIC, topic))
        return overrides.get("table.mode", "append")

    def _setting(self, topic: str, name: str) -> int:
        overrides = self._broker.image.config(ConfigResource(ConfigResourceType.TOPIC, topic))
        value = TOPIC[name].parse(overrides[name]) if name in overrides else TOPIC[name].default
        assert isinstance(value, int)
        return value

    def _to_look_at(self, state: TableState) -> list[int]:
        """The partitions of the topic that may have something which was not sent."""
        if not state.looks_at_all:
            return list(state.changed)
        topic: TopicImage | None = self._broker.image.topics.by_id.get(state.topic_id)
        return [] if topic is None else list(topic.partitions)

    def _led(self, state: TableState, index: int) -> Partition | None:
        """A partition of the topic, if this broker leads it."""
        partition = self._broker.replicas.find(TopicPartition(state.topic, index))
        if partition is None or not partition.is_leader or partition.topic_id != state.topic_id:
            return None
        return partition

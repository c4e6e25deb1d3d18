"""A fetcher against a leader that answers, fails, refuses and waits."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import Request, Response
from ottla.replication.partition import FetchIsolation, FollowerFetch, Partition
from ottla.replication.partition_fetch_state import PartitionFetchState
from ottla.replication.replica_fetcher import (
    ReplicaFetcher,
    ReplicaFetcherConfig,
    ReplicaFetcherContext,
    ReplicaTruncations,
    TierLookups,
)
from ottla.replication.replica_fetcher_manager import RemoteLeaderEndPoint, ReplicaFetcherManager
from ottla.replication.replica_manager import ReplicaChanges
from ottla.replication.replication_quota_manager import UNLIMITED, ReplicationQuotaManager
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.clock import SystemClock
from ottla.runtime.pool import InlinePool
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import Op
from tests.replication.partition_harness import TOPIC_ID, TP, PartitionHarness, batch, registration

FOLLOWER = 1
OTHER, OTHER_ID = TopicPartition("others", 0), b"others-topic-id!"
CONFIG = ReplicaFetcherConfig(wait_max_ms=5_000, backoff_ms=40)


class Lab:
    """Broker 0 leads, broker 1 follows through a fetcher; the lab is the wire in between."""

    def __init__(self, *, config: ReplicaFetcherConfig = CONFIG, log_config: LogConfig | None = None) -> None:
        self.leader = PartitionHarness(lead=False)
        told = registration(replicas=(0, FOLLOWER))
        self.leader.partition.make_leader(told, self.leader.now_ms)
        self.follower = PartitionHarness(lead=False, config=log_config)
        self.partition = Partition(TP, TOPIC_ID, self.follower.log, FOLLOWER, self.follower)
        self.partition.make_follower(told)
        self.troubles: list[OSError | ErrorCode] = []
        self.asked: list[FetchRequest] = []
        self.hung_up = 0
        self.failed: list[tuple[TopicPartition, Exception]] = []
        self.session_id = 0
        self.said: list[PartitionData] = []  # to be answered instead of what the leader has
        self.news = asyncio.Event()
        self.waiting: asyncio.Future[None] | None = None
        self.quota = ReplicationQuotaManager(SystemClock(), UNLIMITED)
        self.follows = ReplicaFetcherContext(
            FOLLOWER,
            lambda: 7,
            SystemClock(),
            config,
            self.quota,
            ReplicaTruncations(InlinePool()),
            self.follower.manager.commit,
            self.follower.manager.complete_creation,
            lambda tp, error: self.failed.append((tp, error)),
        )
        self.fetcher = ReplicaFetcher(0, self, self.follows)

    # The wire

    async def send_request(self, request: Request, newest_version: int, timeout_ms: int) -> Response:
        await asyncio.sleep(0)
        if isinstance(request, ListOffsetsRequest):
            return self._bounds(request)
        assert isinstance(request, FetchRequest)
        self.asked.append(request)
        if self.troubles:
            trouble = self.troubles.pop(0)
            if isinstance(trouble, OSError):
                raise trouble
            if trouble in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.UNKNOWN_SERVER_ERROR):
                return FetchResponse(error_code=trouble)
            return self._response([PartitionData(error_code=trouble)])
        if self.said:
            return self._response([self.said.pop()])
        found = [
            self._read(asked)
            for topic in request.topics
            if topic.topic_id == TOPIC_ID
            for asked in topic.partitions
        ]
        if not any(data.records or data.error_code for data in found):
            await self._wait(request.max_wait_ms)
        return self._response(found)

    async def _wait(self, max_wait_ms: int) -> None:
        self.news.clear()
        self.waiting = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(max_wait_ms / 1000):
                await self.waiting
        except TimeoutError:
            pass
        finally:
            self.waiting = None

    def disconnect(self) -> None:
        self.hung_up += 1
        if self.waiting is not None:
            self.waiting.set_exception(ConnectionResetError("hung up"))

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    def _read(self, asked: Any) -> PartitionData:
        leader = self.leader.partition
        try:
            fetched = leader.fetch_records(
                asked.fetch_offset,
                asked.partition_max_bytes,
                isolation=FetchIsolation.LOG_END,
                now_ms=self.leader.now_ms,
                current_leader_epoch=asked.current_leader_epoch,
                last_fetched_epoch=asked.last_fetched_epoch,
                follower=FollowerFetch(FOLLOWER, asked.log_start_offset, 7),
            )
        except KafkaError as error:
            return PartitionData(error_code=error.code)
        return PartitionData(
            high_watermark=fetched.high_watermark,
            log_start_offset=fetched.log_start_offset,
            records=fetched.records,
        )

    def _bounds(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        log = self.leader.log
        (asked,) = request.topics[0].partitions
        offset = log.log_end_offset if asked.timestamp == -1 else log.log_start_offset
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(partitions=[ListOffsetsPartitionResponse(offset=offset)])]
        )

    def _response(self, found: list[PartitionData]) -> FetchResponse:
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=found)]
        return FetchResponse(session_id=self.session_id, responses=topics)

    # The test's part

    def follow(self) -> None:
        self.fetcher.add(PartitionFetchState(self.partition))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110  of two replicas, neither of which tells
                await asyncio.sleep(0.001)

    def live(self, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def both() -> None:
            task = asyncio.get_running_loop().create_task(self.fetcher.run())
            await part()
            assert not task.done(), "a fetcher goes on whatever happens"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(both())

    @property
    def end(self) -> int:
        return self.partition.log.log_end_offset


def test_what_the_leader_has_is_fetched_and_its_high_watermark_followed() -> None:
    lab = Lab()

    async def part() -> None:
        lab.leader.produce(3, acks=1)
        lab.follow()
        await lab.until(lambda: lab.end == 3 and lab.waiting is not None)
        assert lab.leader.high_watermark == 3, "the next fetch said that the follower has them"

        def is_followed() -> bool:
            lab.wake()  # the response in progress has the high watermark of when the fetch came
            return lab.partition.log.high_watermark == 3

        await lab.until(is_followed)

    lab.live(part)
    assert lab.asked[0].replica_state.replica_id == FOLLOWER
    assert lab.asked[0].replica_state.replica_epoch == 7


def test_what_an_answer_said_beside_a_cut_is_asked_for_again() -> None:
    # A leader sends its high watermark once in a session; sent with a diverging epoch, it is not processed.
    lab = Lab()
    lab.session_id = 5

    async def part() -> None:
        lab.leader.produce(3, acks=1)
        lab.follow()
        await lab.until(lambda: lab.end == 3 and lab.waiting is not None)
        lab.said.append(
            PartitionData(high_watermark=3, diverging_epoch=EpochEndOffset(epoch=0, end_offset=1))
        )
        before = len(lab.asked)
        lab.wake()
        await lab.until(lambda: not lab.said and lab.end == 3 and lab.waiting is not None)
        # A full fetch ends the former session at the leader.
        first, second = lab.asked[before : before + 2]
        assert first.session_id == second.session_id == 5
        assert first.session_epoch > second.session_epoch == 0
        assert lab.asked[before + 1].topics

    lab.live(part)


@pytest.mark.parametrize(
    "trouble",
    [
        ConnectionRefusedError("connection refused"),
        TimeoutError("no answer"),
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
    ids=str,
)
def test_what_passes_is_tried_again(trouble: OSError | ErrorCode) -> None:
    lab = Lab()
    lab.troubles = [trouble] * 4

    async def part() -> None:
        lab.leader.produce(2, acks=1)
        lab.follow()
        await lab.until(lambda: lab.end == 2)

    lab.live(part)
    assert not lab.failed


def test_a_follower_of_small_segments_takes_them_in_turn_and_a_batch_that_is_larger() -> None:
    lab = Lab(log_config=replace(LogConfig(), segment_bytes=2_000))

    async def part() -> None:
        now_ms = lab.leader.now_ms
        for size in (900, 900, 900, 5_000, 900):
            lab.leader.partition.append_records_to_leader(
                batch(1, now_ms, bytes(size)), now_ms=now_ms, acks=1
            )
        lab.follow()
        await lab.until(lambda: lab.end == 5)

    lab.live(part)
    assert [segment.base_offset for segment in lab.partition.log.segments] == [0, 2, 3, 4]
    assert not lab.failed


def test_a_follower_without_room_goes_on_when_there_is_some_again() -> None:
    lab = Lab()
    disk = lab.follower.log.directory.disk
    assert isinstance(disk, SimDisk)

    async def part() -> None:
        full = disk.fail(errno.ENOSPC, ops=[Op.WRITE], times=None)
        lab.leader.produce(2, acks=1)
        lab.follow()
        await lab.until(lambda: len(lab.asked) >= 3)
        assert lab.end == 0
        disk.heal(full)
        await lab.until(lambda: lab.end == 2)

    lab.live(part)
    assert not lab.failed


def test_a_follower_without_room_that_is_not_in_sync_waits_for_some() -> None:
    lab = Lab()
    disk = lab.follower.log.directory.disk
    assert isinstance(disk, SimDisk)
    out_of_sync = registration(replicas=(0, FOLLOWER), isr=(0,), partition_epoch=1)
    lab.partition.make_follower(out_of_sync)

    async def part() -> None:
        disk.fail(errno.ENOSPC, ops=[Op.WRITE])
        lab.leader.produce(2, acks=1)
        state = PartitionFetchState(lab.partition)
        lab.fetcher.add(state)
        await lab.until(lambda: lab.follower.log.directory.lacks_room)
        # A pause that is longer than one after a failure.
        await lab.until(
            lambda: state.paused_until_ms > SystemClock().monotonic_ns() // 1_000_000 + CONFIG.backoff_ms
        )
        assert len(lab.asked) == 1
        lab.follower.clock.advance_ms(11_000)
        await lab.until(lambda: lab.end == 2)

    lab.live(part)


def test_a_follower_whose_directory_fails_is_given_up() -> None:
    lab = Lab()
    disk = lab.follower.log.directory.disk
    assert isinstance(disk, SimDisk)

    async def part() -> None:
        disk.fail(errno.EIO, ops=[Op.WRITE], times=None)
        lab.leader.produce(2, acks=1)
        lab.follow()
        await lab.until(lambda: not len(lab.fetcher))

    lab.live(part)
    assert [tp for tp, _ in lab.failed] == [TP]


def test_a_leader_of_the_past_is_left_alone_until_the_metadata_tells_more() -> None:
    lab = Lab()
    lab.troubles = [ErrorCode.FENCED_LEADER_EPOCH]

    async def part() -> None:
        lab.follow()
        await lab.until(lambda: not len(lab.fetcher) and len(lab.asked) == 1)

    lab.live(part)


def test_an_offset_that_the_leader_no_longer_has_begins_the_log_anew() -> None:
    lab = Lab()

    async def part() -> None:
        lab.leader.partition.make_leader(
            registration(replicas=(0, FOLLOWER), isr=(0,), partition_epoch=1), lab.leader.now_ms
        )
        lab.leader.produce(5, acks=1)
        lab.leader.log.truncate_fully_and_start_at(5)
        lab.leader.produce(2, acks=1)
        lab.follow()
        await lab.until(lambda: lab.end == 7)

    lab.live(part)
    assert lab.partition.log.log_start_offset == 5


def test_a_partition_that_comes_does_not_wait_for_a_fetch_that_waits() -> None:
    lab = Lab()
    other = PartitionHarness(lead=False)
    newcomer = Partition(OTHER, OTHER_ID, other.log, FOLLOWER, other)
    newcomer.make_follower(registration(replicas=(0, FOLLOWER)))

    async def part() -> None:
        lab.follow()
        await lab.until(lambda: lab.waiting is not None)
        asked = len(lab.asked)
        lab.fetcher.add(PartitionFetchState(newcomer))
        await lab.until(lambda: len(lab.asked) > asked and lab.waiting is not None)
        assert {topic.topic_id for topic in lab.asked[-1].topics} == {TOPIC_ID, OTHER_ID}

    lab.live(part)
    assert lab.hung_up == 1


def test_a_partition_that_was_given_up_is_not_written_to() -> None:
    lab = Lab()

    async def part() -> None:
        lab.follow()
        await lab.until(lambda: lab.waiting is not None)
        lab.leader.produce(1, acks=1)
        lab.partition.resign()
        lab.wake()
        await lab.until(lambda: not len(lab.fetcher))

    lab.live(part)
    assert lab.end == 0


@pytest.mark.slow
def test_a_throttled_follower_rests_while_it_is_behind_and_above_its_rate() -> None:
    throttled = replace(LogConfig(), follower_replication_throttled_replicas=("*",))
    lab = Lab(config=replace(CONFIG, max_bytes=1_000), log_config=throttled)
    lab.quota.limit = 20_000

    async def part() -> None:
        out_of_sync = registration(replicas=(0, FOLLOWER), isr=(0,), partition_epoch=1)
        lab.leader.partition.make_leader(out_of_sync, lab.leader.now_ms)
        lab.leader.ineligible = {FOLLOWER}
        for _ in range(100):
            lab.leader.partition.append_records_to_leader(
                batch(1, lab.leader.now_ms, bytes(900)), now_ms=lab.leader.now_ms, acks=1
            )
        lab.follow()
        await lab.until(lambda: lab.quota.is_exceeded)
        fetched = lab.end
        assert 20 <= fetched < 40
        asked = len(lab.asked)
        await lab.until(lambda: not lab.quota.is_exceeded)
        assert len(lab.asked) <= asked + 1
        lab.quota.limit = UNLIMITED
        await lab.until(lambda: lab.end == 100)

    lab.live(part)


class Bystander(PartitionHarness):
    """Another partition of the same leader, with a log of its own that has yet to read its leader epochs."""

    def __init__(self) -> None:
        super().__init__(lead=False)
        self.partition = Partition(OTHER, OTHER_ID, self.log, FOLLOWER, self)
        self.partition.make_follower(registration(replicas=(0, FOLLOWER)))
        self.log._leader_epochs = None

    def fail_to_read_epochs(self, number: int, times: int | None) -> None:
        disk = self.log.directory.disk
        assert isinstance(disk, SimDisk)
        disk.fail(number, prefix=f"{self.log.dir}/leader-epoch-checkpoint", ops=[Op.OPEN], times=times)


@pytest.mark.parametrize("first", [True, False])
def test_a_partition_whose_disk_fails_does_not_end_the_fetcher_of_others(first: bool) -> None:
    lab, bad = Lab(), Bystander()
    bad.fail_to_read_epochs(errno.EIO, None)

    async def part() -> None:
        lab.leader.produce(2, acks=1)
        if not first:
            lab.follow()
        lab.fetcher.add(PartitionFetchState(bad.partition))
        if first:
            lab.follow()
        await lab.until(lambda: lab.end == 2 and lab.waiting is not None)
        lab.leader.produce(1, acks=1)
        lab.wake()
        await lab.until(lambda: lab.end == 3)

    lab.live(part)
    assert [tp for tp, _ in lab.failed] == [OTHER]
    assert not bad.log.directory.is_online
    assert lab.follower.log.directory.is_online


def test_a_partition_without_a_file_handle_pauses_alone_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab, bad = Lab(), Bystander()
    bad.fail_to_read_epochs(errno.EMFILE, 4)

    async def part() -> None:
        lab.fetcher.add(PartitionFetchState(bad.partition))
        lab.follow()
        lab.leader.produce(2, acks=1)
        await lab.until(lambda: lab.end == 2 and any(_names(request, OTHER_ID) for request in lab.asked))

    lab.live(part)
    assert not lab.failed
    assert bad.log.directory.is_online
    logged = [record for record in caplog.records if "fetch state of others-0" in record.getMessage()]
    assert len(logged) == 1


def test_an_error_of_a_partition_that_is_none_of_its_log_pauses_it_alone() -> None:
    lab, bad = Lab(), Bystander()
    config = bad.log.config
    unreadable = replace(config, follower_replication_throttled_replicas=(f"none:{FOLLOWER}",))

    async def part() -> None:
        bad.log.update_config(unreadable)
        lab.fetcher.add(PartitionFetchState(bad.partition))
        lab.follow()
        lab.leader.produce(2, acks=1)
        await lab.until(lambda: lab.end == 2)
        assert not any(_names(request, OTHER_ID) for request in lab.asked)
        # It is fetched once that is mended.
        bad.log.update_config(config)
        await lab.until(lambda: any(_names(request, OTHER_ID) for request in lab.asked))

    lab.live(part)
    assert not lab.failed


def test_a_response_that_cannot_be_processed_does_not_end_the_fetcher() -> None:
    lab = Lab()
    config = lab.partition.log.config
    unreadable = replace(config, follower_replication_throttled_replicas=(f"none:{FOLLOWER}",))

    async def part() -> None:
        lab.leader.produce(2, acks=1)
        lab.follow()
        await lab.until(lambda: lab.end == 2 and lab.waiting is not None)
        lab.partition.log.update_config(unreadable)
        lab.leader.produce(1, acks=1)
        asked = len(lab.asked)
        lab.wake()
        await lab.until(lambda: lab.waiting is None or len(lab.asked) > asked)
        lab.partition.log.update_config(config)
        await lab.until(lambda: lab.end == 3)

    lab.live(part)


def _names(request: FetchRequest, topic_id: bytes) -> bool:
    return any(topic.topic_id == topic_id for topic in request.topics)


def test_a_fetcher_that_an_error_ends_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    fetch, failures = ReplicaFetcher.run, [RuntimeError("a defect"), RuntimeError("another one")]

    async def run(fetcher: ReplicaFetcher) -> None:
        if failures:
            raise failures.pop(0)
        await fetch(fetcher)

    monkeypatch.setattr(ReplicaFetcher, "run", run)

    async def part() -> None:
        runtime = Runtime.real()
        tasks = TaskSupervisor(runtime.clock, pytest.fail)
        fetchers = ReplicaFetcherManager(
            tasks, lab.follows, lambda: InterNodeClient(runtime.network), lambda _: None
        )
        monkeypatch.setattr(RemoteLeaderEndPoint, "send_request", lambda _, *asked: lab.send_request(*asked))
        lab.leader.produce(2, acks=1)
        fetchers.on_replica_changes(ReplicaChanges(followers=[lab.partition]))
        await lab.until(lambda: lab.end == 2)
        (status,) = tasks.statuses()
        assert status.restarts == 2
        assert status.last_error == "RuntimeError: another one"
        await fetchers.close()
        runtime.close()

    asyncio.run(part())


def test_partitions_of_a_request_that_was_never_sent_are_named_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = Lab()

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    async def part() -> None:
        lab.leader.produce(2, acks=1)
        lab.follow()
        with monkeypatch.context() as defect:
            defect.setattr(ReplicaFetcher, "_wait_ms", fail)
            with pytest.raises(RuntimeError, match="a defect"):
                await lab.fetcher.run()
        running = asyncio.create_task(lab.fetcher.run())
        await lab.until(lambda: lab.end == 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(part())


def test_what_was_followed_may_be_given_up_after_the_end() -> None:
    # A directory fails while the node stops.
    lab = Lab()

    async def part() -> None:
        runtime = Runtime.real()
        tasks = TaskSupervisor(runtime.clock, pytest.fail)
        fetchers = ReplicaFetcherManager(
            tasks, lab.follows, lambda: InterNodeClient(runtime.network), lambda _: None
        )
        fetchers.on_replica_changes(ReplicaChanges(followers=[lab.partition]))
        assert len(fetchers) == 1
        await fetchers.close()
        fetchers.remove_fetcher_for_partitions([TP])
        assert len(fetchers) == 0
        runtime.close()

    asyncio.run(part())


def test_a_look_up_in_a_store_that_does_not_answer_ends_when_its_broker_stops() -> None:
    async def test() -> None:
        lookups = TierLookups()
        begun = 0

        async def look_up() -> None:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()

        for _ in range(10):
            lookups.start(look_up)
        await asyncio.sleep(0)
        assert 0 < begun < 10, "a few at a time"
        await lookups.close()
        assert begun < 10, "the others never begin"

    asyncio.run(test())

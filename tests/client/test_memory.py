"""However much lies in a topic, a consumer holds what its prefetch allows and no more."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import struct
import sys
from collections.abc import AsyncIterator

import pytest

from ottla.client.consumer import Consumer, fetch_collector
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from tests.support.fake_brokers import TOPIC, FakeCluster, FakePartition, batch, fetched

MIB = 1024 * 1024
PREFETCH = 8 * MIB
PARTITIONS = 4
RECORDS_IN_A_BATCH = 256
BATCH = batch(0, RECORDS_IN_A_BATCH, epoch=0, size=1000)


@pytest.fixture
async def endless() -> AsyncIterator[FakeCluster]:
    """Partitions with more batches than a test reads."""
    async with FakeCluster(1, [FakePartition(replicas=(1,)) for _ in range(PARTITIONS)]) as cluster:

        def answer(node_id: int, request: FetchRequest) -> FetchResponse:
            left = request.max_bytes

            def of(asked: FetchPartition) -> PartitionData:
                nonlocal left
                end = asked.fetch_offset + 10**6
                count = max(min(left, asked.partition_max_bytes) // len(BATCH), 0)
                left -= count * len(BATCH)
                records = bytearray(BATCH * count)
                for n in range(count):
                    offset = asked.fetch_offset + n * RECORDS_IN_A_BATCH
                    struct.pack_into(">q", records, n * len(BATCH), offset)
                return PartitionData(
                    partition_index=asked.partition,
                    high_watermark=end,
                    last_stable_offset=end,
                    records=records,
                )

            return fetched(request, of)

        cluster.on(FetchRequest, answer)
        yield cluster


def open_consumer(cluster: FakeCluster) -> Consumer[bytes, bytes]:
    return Consumer(cluster.servers, auto_offset_reset="earliest", prefetch_max_bytes=PREFETCH)


async def test_who_reads_slowly_finds_no_more_than_the_prefetch_waiting(endless: FakeCluster) -> None:
    async with open_consumer(endless) as consumer:
        consumer.assign([(TOPIC, p) for p in range(PARTITIONS)])
        most = 0
        for _ in range(400):
            assert await consumer.poll(100, timeout_ms=60_000)
            most = max(most, consumer._fetcher.buffered_bytes)
        assert PREFETCH // 4 < most <= PREFETCH


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["records", "arrow", "arrow in a thread"])
async def test_a_poll_that_is_cancelled_anywhere_loses_and_doubles_nothing(
    endless: FakeCluster, way: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "arrow in a thread":
        monkeypatch.setattr(fetch_collector, "DECODED_ASIDE_BYTES", 0)
    dice = random.Random(seed)
    seen: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
    cancelled = 0

    async def poll(consumer: Consumer[bytes, bytes]) -> list[tuple[int, int]]:
        if way == "records":
            return [(r.partition, r.offset) for r in await consumer.poll(700, timeout_ms=60_000)]
        table = await consumer.poll_arrow(max_bytes=MIB, timeout_ms=60_000, columns=["partition", "offset"])
        return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))

    async with open_consumer(endless) as consumer, asyncio.timeout(60):
        consumer.assign([(TOPIC, p) for p in range(PARTITIONS)])
        while cancelled < 30 or sum(map(len, seen.values())) < 10_000:
            task = asyncio.create_task(poll(consumer))
            for _ in range(dice.randrange(8)):
                await asyncio.sleep(0)
            if cancelled < 30:
                task.cancel()
            (found,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(found, asyncio.CancelledError):
                cancelled += 1
                continue
            assert not isinstance(found, BaseException), found
            for partition, offset in found:
                seen[partition].append(offset)
    for offsets in seen.values():
        assert offsets == list(range(len(offsets)))


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", ["records", pytest.param("arrow", marks=pytest.mark.exhaustive)])
async def test_two_gigabytes_pass_through_a_bounded_memory(endless: FakeCluster, way: str) -> None:
    async with open_consumer(endless) as consumer:
        consumer.assign([(TOPIC, p) for p in range(PARTITIONS)])
        read = start = most = 0
        while read < 2 * 1024 * MIB:
            if way == "records":
                read += 1010 * len(await consumer.poll(2_000, timeout_ms=60_000))
            else:
                read += (await consumer.poll_arrow(timeout_ms=60_000)).nbytes
            assert consumer._fetcher.buffered_bytes <= PREFETCH
            if read > 64 * MIB:
                # From here on all code is loaded and every buffer has been made once.
                if not start:
                    gc.collect()
                    start = resident_bytes()
                most = max(most, resident_bytes())
    assert most - start < 8 * PREFETCH, f"grew by {(most - start) / MIB:.0f} MiB"

"""The log of a partition compared with the bare system calls that it needs.

Appending checks the CRC, walks every record, assigns offsets, keeps index and producer state; the peer
only writes the same bytes. Reading finds its position by the index; the peer reads at a known position.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator

from bench.harness import Row, compare, markdown
from ottla.log.config.log_config import LogConfig
from ottla.log.log_manager import LogManager
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.runtime import Runtime

RECORDS = 8_800
APPENDS = 64
READ_BYTES = 1 << 20
PARTITIONS = 10_000


def one_megabyte() -> bytes:
    """A batch of 100-byte records with keys, about 1 MB of it."""
    value = bytes(100)
    return build_batch([(1_700_000_000_000, str(n).encode(), value) for n in range(RECORDS)])


class Directory:
    """A log manager over a temporary directory."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="ottla-bench-")
        self.runtime = Runtime.real()

    def manager(self) -> LogManager:
        runtime = self.runtime
        return LogManager(
            [self.path], disk=runtime.disk, clock=runtime.clock, random=runtime.random, pool=runtime.pool
        )

    async def log(self, name: str) -> UnifiedLog:
        manager = self.manager()
        await manager.start(lambda _: LogConfig())
        return manager.get_or_create_log(TopicPartition(name, 0), LogConfig())

    def close(self) -> None:
        self.runtime.close()
        shutil.rmtree(self.path)


def appending_and_reading() -> Iterator[Row]:
    directory = Directory()
    log = asyncio.run(directory.log("bench"))
    batch = one_megabyte()
    bare = os.open(os.path.join(directory.path, "bare"), os.O_CREAT | os.O_RDWR)
    megabytes = APPENDS * len(batch) / 1e6

    def append() -> None:
        log.truncate_fully_and_start_at(0)
        for _ in range(APPENDS):
            log.append_as_leader(bytearray(batch), 0, now_ms=1_700_000_000_000)

    def write() -> None:
        os.ftruncate(bare, 0)
        os.lseek(bare, 0, os.SEEK_SET)
        for _ in range(APPENDS):
            os.write(bare, bytearray(batch))

    yield compare(
        "append 1 MB of 100-byte records",
        megabytes,
        "MB/s",
        append,
        write,
        peer_name="os.write",
        target="≥ 0.5",
    )
    end = log.update_high_watermark(log.log_end_offset)
    size = log.size
    starts = list(range(0, end, RECORDS))

    def read() -> None:
        for offset in starts:
            assert log.read(offset, READ_BYTES, upper_offset=end).records

    def pread() -> None:
        for position in range(0, size, len(batch)):
            assert os.pread(bare, READ_BYTES, position)

    yield compare(
        "read 1 MB at an offset", megabytes, "MB/s", read, pread, peer_name="os.pread", target="≥ 0.8"
    )
    os.close(bare)
    directory.close()


def opening() -> Row:
    """Ten thousand partitions of one small batch each, opened after a clean stop."""
    directory = Directory()
    batch = build_batch([(1_700_000_000_000, b"key", b"value")])

    async def fill() -> None:
        manager = directory.manager()
        await manager.start(lambda _: LogConfig())
        for number in range(PARTITIONS):
            log = manager.get_or_create_log(TopicPartition("small", number), LogConfig())
            log.append_as_leader(bytearray(batch), 0, now_ms=1_700_000_000_000)
        await manager.shutdown()

    async def open_and_close() -> float:
        manager = directory.manager()
        begin = asyncio.get_running_loop().time()
        await manager.start(lambda _: LogConfig())
        took = asyncio.get_running_loop().time() - begin
        assert len(manager.logs()) == PARTITIONS
        await manager.shutdown()
        return took

    async def times() -> list[float]:
        await fill()
        return sorted([await open_and_close() for _ in range(3)])

    seconds = asyncio.run(times())[1]
    directory.close()
    name = f"open {PARTITIONS:,} partitions after a clean stop"
    return Row(name, "s", seconds, None, "–", None, None, None, "< 3 s")


def rows() -> Iterator[Row]:
    yield from appending_and_reading()
    yield opening()


if __name__ == "__main__":
    print(markdown(list(rows())))

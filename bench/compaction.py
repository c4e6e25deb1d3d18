"""Compaction beside a plain copy of the same files.

A cleaning reads the dirty part twice (once for the keys, once to copy), walks and hashes every record,
writes what is kept and syncs it; the peer reads and writes every byte once, and syncs it too. The figure is
the bytes of the log over the time of the whole cleaning: choosing, mapping, filtering, syncing, swapping.
"""

import asyncio
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Row, markdown, seconds
from ottla.log.cleaner.cleaner import LogCleaner
from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.log_loader import LoadOptions, create_log, load_log
from ottla.log.segment.handles import FileHandles
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.records.types import Codec
from ottla.runtime.runtime import Runtime

PARTITION = TopicPartition("compacted", 0)
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=64 << 20, min_cleanable_dirty_ratio=0.0
)
MEGABYTES = 256
ROUNDS = 5
NOW_MS = 1_700_000_000_000
COPY_BYTES = 512 * 1024


class Bench:
    """A dirty log, created once and hard-linked for each round."""

    def __init__(self, records: int, codec: Codec, megabytes: int = MEGABYTES) -> None:
        self.runtime = Runtime.real()
        self.root = tempfile.mkdtemp(prefix="ottla-bench-")
        self.pristine = os.path.join(self.root, "pristine")
        os.mkdir(self.pristine)
        self._fill(records, codec, megabytes)
        self.dir = os.path.join(self.root, "work")
        self.log_files = sorted(Path(self.pristine).glob("*/*.log"))[:-1]
        self.log_bytes = sum(path.stat().st_size for path in self.log_files)

    def _directory(self, path: str) -> LogDirectory:
        directory = LogDirectory(
            path, FileHandles(self.runtime.disk), self.runtime.clock, self.runtime.random
        )
        directory.load_checkpoints()
        return directory

    def _fill(self, records: int, codec: Codec, megabytes: int) -> None:
        """Keys of 16 bytes, each written twice on average, values of 100 bytes that compress as text does."""
        source = random.Random(records)
        log = create_log(self._directory(self.pristine), str(PARTITION), PARTITION, CONFIG)
        words = [source.randbytes(5).hex().encode() for _ in range(200)]
        keys = megabytes * 1_000_000 // 130 // 2
        while log.log_end_offset * 130 < megabytes * 1_000_000:
            batch = build_batch(
                [
                    (NOW_MS, b"%016d" % source.randrange(keys), b"".join(source.choices(words, k=10)))
                    for _ in range(records)
                ],
                codec=codec,
            )
            log.append_as_leader(bytearray(batch), 0, now_ms=NOW_MS)
        log.roll(NOW_MS)
        log.close()
        log.directory.raise_recovery_points({PARTITION: log.log_end_offset})

    def fresh_log(self) -> UnifiedLog:
        shutil.rmtree(self.dir, ignore_errors=True)
        # A cleaning never writes to the files it replaces.
        shutil.copytree(self.pristine, self.dir, copy_function=_link_logs)
        log = load_log(self._directory(self.dir), str(PARTITION), PARTITION, CONFIG, LoadOptions(clean=True))
        log.update_high_watermark(log.log_end_offset)
        return log

    def clean(self, log: UnifiedLog) -> None:
        runtime = self.runtime
        cleaner = LogCleaner(runtime.clock, runtime.random, runtime.pool, lambda: [log])
        assert asyncio.run(cleaner.clean_filthiest_log())
        assert not cleaner.uncleanable
        assert cleaner.last_stats is not None
        assert cleaner.last_stats.bytes_read == self.log_bytes

    def copy(self) -> None:
        target = os.open(os.path.join(self.root, "copy"), os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        for path in self.log_files:
            source = os.open(path, os.O_RDONLY)
            while data := os.read(source, COPY_BYTES):
                os.write(target, data)
            os.close(source)
        os.fdatasync(target)
        os.close(target)

    def close(self) -> None:
        self.runtime.close()
        shutil.rmtree(self.root)


def _link_logs(source: str, target: str) -> None:
    if source.endswith(".log") and os.path.getsize(source):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def measure(name: str, records: int, codec: Codec, target: str, megabytes: int = MEGABYTES) -> Row:
    bench = Bench(records, codec, megabytes)
    pairs = []
    for _ in range(ROUNDS):
        log = bench.fresh_log()
        pairs.append((seconds(lambda log=log: bench.clean(log)), seconds(bench.copy)))  # type: ignore[misc]
        log.close_handlers()
    size = bench.log_bytes / 1e6
    bench.close()
    ratios = sorted(copied / cleaned for cleaned, copied in pairs)
    return Row(
        name,
        "MB/s",
        size / statistics.median(cleaned for cleaned, _ in pairs),
        size / statistics.median(copied for _, copied in pairs),
        "copy and fsync",
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        target,
    )


def rows() -> Iterator[Row]:
    yield measure("compact 16 kB batches", 125, Codec.NONE, "≥ 100 MB/s or ≥ 0.3")
    yield measure("compact 1 kB batches", 8, Codec.NONE, "", megabytes=64)
    yield measure("compact batches of one record", 1, Codec.NONE, "", megabytes=32)
    yield measure("compact 16 kB batches of lz4", 125, Codec.LZ4, "")
    yield measure("compact 16 kB batches of zstd", 125, Codec.ZSTD, "")


if __name__ == "__main__":
    print(markdown(list(rows())))

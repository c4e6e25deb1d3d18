"""What recovery finds of a log whose records count only once they are flushed."""

from __future__ import annotations

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.log_loader import LoadOptions, create_log, load_log
from ottla.log.segment.handles import FileHandles
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk


def test_records_that_recovery_found_are_shown_without_waiting_for_another_append() -> None:
    """A simulated node was killed before its flush, and its readers never got the records that were there."""
    clock = SimClock()
    disk = SimDisk(1, clock=clock)
    config = LogConfig(flush_messages=1)
    partition = TopicPartition("orders", 0)
    directory = LogDirectory("/data", FileHandles(disk), clock, SeededRandom(1))
    log = create_log(directory, "orders-0", partition, config)
    log.append_as_leader(build_batch([(0, None, b"value")]), 0, now_ms=0)
    assert log.committable_offset == 0
    disk.kill()
    again = LogDirectory("/data", FileHandles(disk), clock, SeededRandom(1))
    log = load_log(again, "orders-0", partition, config, LoadOptions(clean=False))
    assert (log.log_end_offset, log.committable_offset, log.recovery_point) == (1, 1, 1)

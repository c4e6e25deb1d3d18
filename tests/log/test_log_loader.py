"""Opening a log after a crash, and after damage that no crash explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.log_loader import CorruptionPolicy
from ottla.log.segment.walk import CorruptLog
from ottla.protocol.errors import ErrorCode
from ottla.records.builder import build_batch
from ottla.runtime.clock import SystemClock
from ottla.runtime.disk import RealDisk, write_file
from tests.support.log_harness import PARTITION, LogHarness, all_batches, check_log

FIRST = "/data/orders-3/00000000000000000000"


def damage(lab: LogHarness, path: str, position: int, data: bytes = b"\xff") -> None:
    file = lab.disk.open(path)
    file.pwrite(data, position)
    file.close()


def cut(lab: LogHarness, path: str, size: int) -> None:
    file = lab.disk.open(path)
    file.truncate(size)
    file.close()


def bases(lab: LogHarness) -> list[int]:
    return [segment.base_offset for segment in lab.log.segments]


def filled(count: int = 10, **settings: object) -> LogHarness:
    lab = LogHarness(LogConfig(index_interval_bytes=0, **settings))  # type: ignore[arg-type]
    lab.fill(count)
    return lab


# A tail that was not synced


@pytest.mark.parametrize("missing", [1, 30, 61, 100, 158])
def test_a_torn_batch_at_the_end_is_dropped(missing: int) -> None:
    lab = filled()
    cut(lab, FIRST + ".log", lab.log.size - missing)
    lab.reload()
    assert lab.log.log_end_offset == 9
    check_log(lab.log)
    assert lab.put(b"on") == 9


def test_zeros_behind_the_end_are_dropped_without_noise(caplog: pytest.LogCaptureFixture) -> None:
    """As a preallocated segment has them."""
    lab = filled()
    size = lab.log.size
    cut(lab, FIRST + ".log", size + 5000)
    lab.reload()
    assert lab.log.log_end_offset == 10
    assert lab.log.size == size
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_what_follows_a_damaged_batch_is_lost_but_not_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    lab = filled()
    position = lab.log.segments[0].translate_offset(4).position  # type: ignore[union-attr]
    damage(lab, FIRST + ".log", position + 80)
    lab.reload()
    assert lab.log.log_end_offset == 4
    check_log(lab.log)
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert FIRST + ".log" in error
    assert f"position {position}" in error
    assert "5 whole batches" in error
    assert "from 5 to 9" in error


def test_the_search_behind_the_damage_is_not_led_astray_by_what_looks_like_headers() -> None:
    """Bytes of records may look like the beginning of a batch of any size."""
    lab = LogHarness()
    lab.put(b"first")
    # An offset, a length and a magic byte, but the offset is of no segment here.
    noise = (7 << 40).to_bytes(8, "big") + (200_000).to_bytes(4, "big") + bytes(4) + b"\x02"
    lab.put(noise * 20_000)
    damage(lab, FIRST + ".log", lab.log.size - 3)
    before = len(lab.sim_disk.trace.entries())
    lab.reload()
    assert lab.log.log_end_offset == 1
    read = sum(each.size for each in lab.sim_disk.trace.entries()[before:] if each.op == "read")
    assert read < 10 * 20_000 * len(noise)


def test_segments_behind_a_torn_one_go_too(caplog: pytest.LogCaptureFixture) -> None:
    lab = filled(segment_bytes=530)
    assert bases(lab) == [0, 3, 6, 9]
    cut(lab, "/data/orders-3/00000000000000000003.log", 300)
    lab.reload()
    assert bases(lab) == [0, 3]
    assert lab.log.log_end_offset == 4
    names = lab.disk.list_dir("/data/orders-3")
    assert not [name for name in names if name.startswith(("00000000000000000006", "00000000000000000009"))]
    assert "3 whole batches from 6 to 8 were not synced" in caplog.text


def test_a_segment_that_lost_its_end_at_a_batch_is_recognised_by_the_gap() -> None:
    lab = filled(segment_bytes=530)
    cut(lab, "/data/orders-3/00000000000000000003.log", lab.log.segments[1].translate_offset(5).position)  # type: ignore[union-attr]
    lab.reload()
    assert bases(lab) == [0, 3]
    assert lab.log.log_end_offset == 5


def test_offsets_that_run_backwards_end_the_log() -> None:
    lab = filled(3)
    batch = build_batch([(lab.now_ms, None, b"x")], base_offset=1, leader_epoch=0)
    damage(lab, FIRST + ".log", lab.log.size, batch)
    lab.reload()
    assert lab.log.log_end_offset == 3


def test_everything_that_follows_from_the_batches_is_rebuilt() -> None:
    lab = filled(segment_bytes=530)
    for kind in (".index", ".timeindex"):
        write_file(lab.disk, FIRST + kind, b"\x01" * 24)
    lab.disk.unlink("/data/orders-3/00000000000000000003.index")
    write_file(lab.disk, "/data/orders-3/leader-epoch-checkpoint", b"0\n2\n0 0\n7 3\n")
    lab.reload()
    check_log(lab.log)
    assert lab.log.latest_epoch == 0


# Damage below the recovery point


def test_a_damaged_offset_does_not_pass_for_the_end_of_what_was_synced() -> None:
    """The offset of a batch is not in its checksum. What is in it has to be damaged too, or it is mended."""
    lab = filled()
    lab.log.flush()
    lab.checkpoint()
    size = lab.log.active_segment.size // 10
    damage(lab, lab.log.active_segment.path(".log"), 9 * size + 4, b"\x01")
    damage(lab, lab.log.active_segment.path(".log"), 10 * size - 1)
    with pytest.raises(CorruptLog, match=f"position {9 * size}, after offset 8: "):
        lab.reload()


@pytest.mark.parametrize("kind", ["flipped", "missing", "gap"])
def test_a_log_with_damaged_synced_records_is_refused(kind: str) -> None:
    lab = filled(segment_bytes=530)
    lab.log.flush()
    lab.checkpoint()
    segment = lab.log.segments[3]
    path, position = segment.path(".log"), 0
    if kind == "flipped":
        damage(lab, path, 80)
    elif kind == "missing":
        cut(lab, path, 0)
    else:
        lab.disk.unlink(path)
        path, position = lab.log.segments[2].path(".log"), lab.log.segments[2].size
    before = lab.sim_disk.contents()
    with pytest.raises(CorruptLog) as refused:
        lab.reload()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert f"{path} is damaged at position {position}, after offset 8" in refused.value.message
    assert "up to offset 10 had been synced" in refused.value.message
    assert "stop the node and run `ottla storage repair`" in refused.value.message
    after = lab.sim_disk.contents()
    assert {name: data for name, data in after.items() if name.endswith(".log")} == {
        name: data for name, data in before.items() if name.endswith(".log")
    }


def test_a_refused_log_is_refused_again() -> None:
    lab = filled()
    lab.log.flush()
    lab.checkpoint()
    damage(lab, FIRST + ".log", 80)
    for _ in range(3):
        with pytest.raises(CorruptLog):
            lab.reload()


def test_the_policy_may_be_to_truncate(caplog: pytest.LogCaptureFixture) -> None:
    lab = filled()
    lab.log.flush()
    lab.checkpoint()
    damage(lab, FIRST + ".log", lab.log.segments[0].translate_offset(4).position + 80)  # type: ignore[union-attr]
    lab.reload(policy=CorruptionPolicy.TRUNCATE)
    assert lab.log.log_end_offset == lab.log.recovery_point == 4
    assert "the log is truncated, as the corruption policy says" in caplog.text
    check_log(lab.log)


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_of_a_log_start_deletes_nothing(clean: bool) -> None:
    """3 becomes 7: in Kafka the records between are gone, and of all replicas once this one leads."""
    lab = filled(segment_bytes=530)
    lab.log.flush()
    lab.checkpoint()
    lab.directory.set_log_starts({PARTITION: 3})
    lab.close()
    path = "/data/log-start-offset-checkpoint"
    damage(lab, path, lab.sim_disk.contents()[path].index(b" 3 ") + 1, b"7")
    lab.reload(clean=clean)
    assert lab.log.log_start_offset <= 3
    assert bases(lab)[0] <= 3
    assert lab.log.log_end_offset == 10


def test_records_that_were_deleted_are_not_missed() -> None:
    lab = filled(segment_bytes=530)
    lab.log.flush()
    lab.checkpoint()
    lab.log.update_high_watermark(10)
    lab.log.maybe_increment_log_start_offset(10, "a test")
    lab.directory.set_log_starts({PARTITION: 10})
    damage(lab, lab.log.segments[-1].path(".log"), 80)
    lab.reload()
    assert (lab.log.log_start_offset, lab.log.log_end_offset) == (10, 10)


# What was half done


def test_leftovers_are_removed() -> None:
    lab = filled()
    for name in (
        "00000000000000000000.log.cleaned",
        "00000000000000000000.index.cleaned",
        "00000000000000000005.log.deleted",
        "00000000000000000005.snapshot.deleted",
        "leader-epoch-checkpoint.tmp",
        "00000000000000000077.index",
        "00000000000000000077.txnindex",
    ):
        write_file(lab.disk, f"/data/orders-3/{name}", b"")
    lab.close()
    for clean in (True, False):
        lab.reload(clean=clean)
        assert [name for name in lab.disk.list_dir("/data/orders-3") if not name.startswith("0")] == [
            "leader-epoch-checkpoint",
            "partition.metadata",
        ]
        assert not [
            name for name in lab.disk.list_dir("/data/orders-3") if "77" in name or name.endswith(("ed",))
        ]
        assert lab.log.log_end_offset == 10


def test_a_swap_that_is_complete_is_finished() -> None:
    lab = filled(segment_bytes=530)
    lab.log.flush()
    lab.checkpoint()
    whole = b"".join(
        data for header, data in all_batches(lab.log) if header.last_offset < 6 and header.base_offset != 1
    )
    write_file(lab.disk, FIRST + ".log.swap", whole)
    lab.reload()
    assert bases(lab) == [0, 6, 9]
    assert [header.base_offset for header, _ in all_batches(lab.log)] == [0, *range(2, 10)]
    check_log(lab.log, compacted=True)


def test_a_swap_that_has_not_begun_is_undone() -> None:
    lab = filled(segment_bytes=530)
    lab.log.flush()
    write_file(lab.disk, FIRST + ".log.swap", b"whatever")
    write_file(lab.disk, FIRST + ".index.cleaned", b"whatever")
    lab.reload()
    assert bases(lab) == [0, 3, 6, 9]
    check_log(lab.log)


def test_a_log_without_segments_begins_at_its_start() -> None:
    lab = filled()
    lab.directory.set_log_starts({PARTITION: 25})
    for kind in (".log", ".index", ".timeindex"):
        lab.disk.unlink(FIRST + kind)
    lab.reload()
    assert (lab.log.log_start_offset, lab.log.log_end_offset) == (25, 25)
    assert lab.put(b"on") == 25


# Producers


def test_a_damaged_snapshot_is_replaced_by_an_older_one_and_the_log() -> None:
    lab = LogHarness(LogConfig(segment_bytes=530))
    for sequence in range(12):
        data = build_batch(
            [(lab.now_ms, None, b"x" * 100)], producer_id=4, producer_epoch=0, base_sequence=sequence
        )
        lab.log.append_as_leader(bytearray(data), 0, now_ms=lab.now_ms)
    lab.close()
    newest = lab.log.producer_snapshots.latest
    damage(lab, f"/data/orders-3/{newest:020d}.snapshot", 8)
    for clean in (True, False):
        lab.reload(clean=clean)
        assert lab.log.producer_state_manager.active_producers[4].last_sequence == 11
        check_log(lab.log)


def test_after_a_crash_a_producer_goes_on_where_it_was() -> None:
    lab = LogHarness(LogConfig(segment_bytes=530))

    def send(sequence: int) -> bool:
        data = build_batch(
            [(lab.now_ms, None, b"x" * 100)], producer_id=4, producer_epoch=0, base_sequence=sequence
        )
        return lab.log.append_as_leader(bytearray(data), 0, now_ms=lab.now_ms).duplicate

    for sequence in range(12):
        send(sequence)
    lab.log.flush()
    lab.crash()
    assert send(11)
    assert not send(12)


# The real disk


def test_recovery_on_the_real_disk(tmp_path: Path) -> None:
    lab = LogHarness(
        LogConfig(segment_bytes=2000, index_interval_bytes=200),
        disk=RealDisk(),
        clock=SystemClock(),
        path=str(tmp_path / "data"),
    )
    lab.fill(100)
    lab.log.flush()
    lab.checkpoint()
    lab.fill(20)
    path = Path(lab.log.active_segment.path(".log"))
    content = [data for _, data in all_batches(lab.log)]
    path.write_bytes(path.read_bytes()[:-3])
    lab.reload()
    assert [data for _, data in all_batches(lab.log)] == content[:-1]
    check_log(lab.log)
    lab.close()
    lab.reload(clean=True)
    assert [data for _, data in all_batches(lab.log)] == content[:-1]
    check_log(lab.log)

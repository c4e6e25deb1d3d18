"""The repair of a damaged log that has no other replica: what is lost is shown first, and kept."""

from __future__ import annotations

import os
import posixpath
from random import Random

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.directory import checkpoints
from ottla.log.directory.dir_names import DirKind
from ottla.log.log_repair import clear_report, damaged_partitions, find_damage, repair
from ottla.log.segment.file_names import LOG
from ottla.log.segment.walk import CorruptLog
from ottla.sim.disk_faults import SimCrash
from tests.support.log_harness import PARTITION, LogHarness, all_batches, check_log

BATCHES = 24


def damaged(kind: str, seed: int = 0) -> tuple[LogHarness, list[bytes]]:
    """A log of several segments, all synced, with damage in one in the middle; and its batches before."""
    lab = LogHarness(LogConfig(segment_bytes=800), seed=seed)
    lab.fill(BATCHES)
    lab.close()
    whole = [bytes(data) for _, data in all_batches(lab.log)]
    segment = lab.log.segments[2]
    path = segment.path(LOG)
    file = lab.disk.open(path)
    if kind == "flipped":
        file.pwrite(b"\xff", 400)
    elif kind == "zeroed":
        file.pwrite(bytes(300), 200)
    elif kind == "short":
        file.truncate(segment.size - 10)
    elif kind == "last":
        last = lab.disk.open(lab.log.active_segment.path(LOG))
        last.truncate(lab.log.active_segment.size - 10)
    lab.sim_disk.sync_all()
    return lab, whole


def aside(lab: LogHarness) -> list[str]:
    names = lab.disk.list_dir(lab.path)
    return [posixpath.join(lab.path, name) for name in names if name.endswith(DirKind.DAMAGED.value)]


def kept_files(lab: LogHarness, dir: str) -> dict[str, bytes]:
    found = {}
    for name in lab.disk.list_dir(dir):
        file = lab.disk.open(posixpath.join(dir, name), writable=False)
        found[name] = file.pread(file.size(), 0)
    return found


@pytest.mark.parametrize("kind", ["flipped", "zeroed", "short", "last"])
def test_a_log_ends_before_its_damage_and_what_is_removed_is_kept(kind: str) -> None:
    lab, whole = damaged(kind)
    contents = lab.sim_disk.contents()
    damage = find_damage(lab.directory, PARTITION)
    assert damage is not None
    assert lab.sim_disk.contents() == contents
    assert damage.last_offset == BATCHES - 1
    assert damage.lost_bytes > 0
    assert damage.end_offset + damage.whole_batches < BATCHES
    before = {name: kept_files(lab, lab.log.dir)[name] for name in damage.files}
    copy = repair(lab.directory, damage)
    assert copy is not None
    kept = kept_files(lab, copy)
    assert {name: kept[name] for name in before} == before
    assert aside(lab) == [copy]
    assert find_damage(lab.directory, PARTITION) is None
    for clean in (True, False):
        log = lab.reload(clean=clean)
        assert log.log_end_offset == damage.end_offset
        assert [bytes(data) for _, data in all_batches(log)] == whole[: damage.end_offset]
    check_log(log)
    lab.put(b"goes on")


def test_a_log_with_a_missing_first_segment_is_repaired_too() -> None:
    lab, _ = damaged("none")
    lab.directory.write_log_starts({PARTITION: 0})
    lab.disk.unlink(lab.log.segments[0].path(LOG))
    with pytest.raises(CorruptLog):
        lab.reload()
    damage = find_damage(lab.directory, PARTITION)
    assert damage is not None
    assert damage.end_offset == 0
    assert damage.whole_batches > 0
    copy = repair(lab.directory, damage)
    assert copy is not None
    assert lab.reload().log_end_offset == 0


def test_a_sound_log_is_not_damaged() -> None:
    lab, whole = damaged("none")
    assert find_damage(lab.directory, PARTITION) is None
    assert damaged_partitions(lab.directory) == []
    checkpoints.write_damage_report(lab.disk, lab.log.dir, "it was, once")
    assert damaged_partitions(lab.directory) == [PARTITION]
    clear_report(lab.directory, PARTITION)
    assert damaged_partitions(lab.directory) == []
    assert [bytes(data) for _, data in all_batches(lab.reload(clean=True))] == whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flipped", "short", "last"])
def test_a_repair_may_be_interrupted_at_any_point(kind: str) -> None:
    step = 0
    while True:
        lab, whole = damaged(kind, seed=step)
        damage = find_damage(lab.directory, PARTITION)
        assert damage is not None
        before = {name: kept_files(lab, lab.log.dir)[name] for name in damage.files}
        checkpoints.write_damage_report(lab.disk, lab.log.dir, "refused")
        lab.sim_disk.crash_after(step)
        try:
            repair(lab.directory, damage)
            lab.sim_disk.spare()
            complete = True
        except SimCrash:
            complete = False
        lab.sim_disk.crash()
        try:
            # A start after it either refuses the log still, or has completed the repair.
            assert lab.reload().log_end_offset == damage.end_offset, step
            assert aside(lab)
        except CorruptLog:
            assert not complete
        lab.directory = lab.open_directory()
        again = find_damage(lab.directory, PARTITION)
        if again is not None:
            repair(lab.directory, again)
        log = lab.reload()
        assert [bytes(data) for _, data in all_batches(log)] == whole[: damage.end_offset], step
        complete_copies = [kept_files(lab, dir) for dir in aside(lab)]
        assert any(before.items() <= kept.items() for kept in complete_copies), step
        if complete:
            return
        step += 1


# Damage anywhere in a log that has no other replica

SEED = os.environ.get("OTTLA_DAMAGE_SEED", "0")
KINDS = ["flipped", "truncated", "zeroed", "deleted"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_is_never_served_without_records_that_were_synced(kind: str) -> None:
    """Whatever file is damaged: the log has all that was synced, or is refused and can be repaired."""
    random = Random(f"{kind} {SEED}")
    refused = 0
    for number in range(60):
        lab = LogHarness(LogConfig(segment_bytes=random.choice([500, 800, 1 << 20])), seed=number)
        lab.fill(BATCHES, epoch=random.randrange(3))
        lab.close()
        whole = [bytes(data) for _, data in all_batches(lab.log)]
        path = posixpath.join(lab.log.dir, random.choice(lab.disk.list_dir(lab.log.dir)))
        harm(lab, path, kind, random)
        lab.sim_disk.sync_all()
        checks_all = random.random() < 0.5
        if checks_all:
            checkpoints.write_damage_report(lab.disk, lab.log.dir, "a reader met something")
        try:
            log = lab.reload()
        except CorruptLog:
            refused += 1
            damage = find_damage(lab.directory, PARTITION)
            assert damage is not None, (number, path)
            repair(lab.directory, damage)
            log = lab.reload()
            assert log.log_end_offset == damage.end_offset
            assert [bytes(data) for _, data in all_batches(log)] == whole[: damage.end_offset]
        else:
            # Without a report, segments below the recovery point are not read; and one that is missing in
            # the middle looks like one of which compaction has left nothing.
            is_seen = checks_all and kind != "deleted"
            if is_seen or not path.endswith(LOG) or len(log.segments) == 1:
                assert [bytes(data) for _, data in all_batches(log)] == whole, (number, path)
            assert log.log_end_offset == BATCHES
    assert refused > 0


def harm(lab: LogHarness, path: str, kind: str, random: Random) -> None:
    if kind == "deleted":
        lab.disk.unlink(path)
        return
    file = lab.disk.open(path)
    size = file.size()
    at = random.randrange(size) if size else 0
    if kind == "flipped":
        data = file.pread(1, at) or b"\x00"
        file.pwrite(bytes([data[0] ^ (1 << random.randrange(8))]), at)
    elif kind == "truncated":
        file.truncate(at)
    else:
        file.pwrite(bytes(min(512, max(size - at, 1))), at)

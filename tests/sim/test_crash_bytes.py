"""What a crash may do to the bytes of a file, checked against a plain history of its contents."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.runtime.disk import File, read_file
from ottla.sim.disk import SimDisk

PATH = "/file"
SEEDS = range(300)


def durable_file(disk: SimDisk, data: bytes = b"") -> File:
    file = disk.open(PATH, create=True)
    file.pwrite(data, 0)
    file.sync()
    disk.sync_dir("/")
    return file


def outcomes(disk: SimDisk, seeds: range = SEEDS) -> set[bytes]:
    return {read_file(disk.after_crash(seed), PATH) for seed in seeds}


class TestOneFile:
    def test_what_was_synced_survives_every_crash(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        file.pwrite(b"x" * 5000, 0)
        file.pwrite(b"y" * 5000, 5000)
        file.sync()
        assert outcomes(disk) == {b"x" * 5000 + b"y" * 5000}

    def test_what_was_not_synced_may_be_kept_lost_or_torn_at_every_byte(self) -> None:
        disk = SimDisk()
        file = durable_file(disk, b"synced ")
        file.pwrite(b"torn", 7)
        prefixes = {b"synced " + b"torn"[:cut] for cut in range(5)}
        assert prefixes <= outcomes(disk)

    def test_a_later_write_may_survive_without_an_earlier_one(self) -> None:
        disk = SimDisk()
        file = durable_file(disk, bytes(2000))
        file.pwrite(b"first", 0)
        file.pwrite(b"second", 1500)
        kept = {(data[:5] == b"first", data[1500:1506] == b"second") for data in outcomes(disk)}
        assert kept == {(False, False), (True, False), (False, True), (True, True)}

    def test_a_later_write_to_the_same_sector_never_survives_without_an_earlier_one(self) -> None:
        disk = SimDisk()
        file = durable_file(disk, bytes(500))
        file.pwrite(b"first", 0)
        file.pwrite(b"second", 100)
        assert {data[:5] for data in outcomes(disk) if data[100:106] == b"second"} == {b"first"}

    def test_the_file_may_have_grown_over_bytes_that_were_never_written(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        file.pwrite(b"z" * 3000, 0)
        found = outcomes(disk)
        assert any(len(data) == 3000 and bytes(512) in data and b"z" in data for data in found)

    def test_an_unsynced_truncation_may_be_lost_or_kept(self) -> None:
        disk = SimDisk()
        durable_file(disk, b"0123456789").truncate(4)
        found = outcomes(disk)
        assert {b"0123456789", b"0123"} <= found
        assert {data[:4] for data in found} == {b"0123"}

    def test_what_a_synced_truncation_cut_off_never_comes_back(self) -> None:
        disk = SimDisk()
        file = durable_file(disk, b"A" * 9000)
        file.truncate(1000)
        file.sync()
        file.pwrite(b"B" * 8000, 1000)
        for data in outcomes(disk):
            assert data[:1000] == b"A" * 1000
            assert set(data[1000:]) <= {0, ord("B")}

    def test_what_a_surviving_truncation_cut_off_never_comes_back(self) -> None:
        disk = SimDisk()
        file = durable_file(disk, b"A" * 9000)
        file.truncate(1000)
        file.pwrite(b"B" * 2000, 1000)
        survived = [data for data in outcomes(disk) if len(data) < 9000]
        assert len(survived) > 10
        for data in survived:
            assert data[:1000] == b"A" * 1000
            assert set(data[1000:]) <= {0, ord("B")}

    def test_sectors_freed_by_a_lost_truncation_keep_their_old_bytes(self) -> None:
        disk = SimDisk()
        file = durable_file(disk, b"A" * 9000)
        file.truncate(1000)
        file.pwrite(b"B" * 7000, 1000)
        lost = [data for data in outcomes(disk) if len(data) == 9000]
        assert len(lost) > 2
        for data in lost:
            # Up to the border of the sector the new bytes may have been written in place.
            assert data[:1000] == b"A" * 1000
            assert data[1024:] == b"A" * (9000 - 1024)

    def test_one_write_may_be_torn_while_a_later_one_is_whole(self) -> None:
        disk = SimDisk()
        file = durable_file(disk, b"a" * 2000)
        file.pwrite(b"b" * 8, 0)
        file.pwrite(b"c" * 8, 1600)
        torn = {data[:8].count(b"b") for data in outcomes(disk) if data[1600:1608] == b"c" * 8}
        assert torn - {0, 8}

    def test_many_writes_may_survive_in_order_up_to_a_torn_one(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        whole = b"".join(bytes([index]) * 700 for index in range(1, 41))
        for start in range(0, len(whole), 700):
            file.pwrite(whole[start : start + 700], start)
        torn = [data for data in outcomes(disk) if data and whole.startswith(data) and len(data) % 700]
        assert len({len(data) // 700 for data in torn}) > 10

    def test_a_new_file_without_a_sync_may_be_empty_under_a_durable_name(self) -> None:
        disk = SimDisk()
        disk.open(PATH, create=True).pwrite(b"data", 0)
        disk.sync_dir("/")
        assert {b"", b"data"} <= outcomes(disk)

    def test_the_modification_time_survives_only_with_a_sync(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        disk.set_mtime_ms(PATH, 5)
        assert len({disk.after_crash(seed).mtime_ms(PATH) for seed in SEEDS}) == 2
        file.sync()
        assert {disk.after_crash(seed).mtime_ms(PATH) for seed in SEEDS} == {5}

    def test_a_very_long_history_stays_bounded_and_honest(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        for index in range(10_000):
            file.pwrite(b"%07d\n" % index, index * 8)
        whole = b"".join(b"%07d\n" % index for index in range(10_000))
        for data in outcomes(disk, range(20)):
            assert all(byte in (0, whole[index]) for index, byte in enumerate(data))


# A step of a random workload as plain numbers, so that hypothesis can shrink it.
CHANGES = st.tuples(
    st.sampled_from(["write", "write", "append", "append", "truncate", "sync"]),
    st.integers(0, 300),
    st.integers(1, 120),
)


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(CHANGES, max_size=25),
    sector_bytes=st.sampled_from([1, 16, 64, 512]),
    seeds=st.lists(st.integers(), min_size=1, max_size=20, unique=True),
)
def test_every_byte_after_a_crash_is_one_that_was_there_since_the_last_sync(
    changes: list[tuple[str, int, int]], sector_bytes: int, seeds: list[int]
) -> None:
    disk = SimDisk(sector_bytes=sector_bytes)
    file = durable_file(disk)
    content = b""
    history = [content]
    fill = random.Random(0)
    for kind, position, length in changes:
        offset = len(content) if kind == "append" else position
        if kind in ("write", "append"):
            data = fill.randbytes(length)
            file.pwrite(data, offset)
            content = content.ljust(offset, b"\0")
            content = content[:offset] + data + content[offset + length :]
        elif kind == "truncate":
            file.truncate(position)
            content = content[:position].ljust(position, b"\0")
        else:
            file.sync()
            history.clear()
        history.append(content)
    assert file.pread(len(content) + 1, 0) == content
    lengths = [len(version) for version in history]
    for seed in seeds:
        survivor = read_file(disk.after_crash(seed), PATH)
        assert min(lengths) <= len(survivor) <= max(lengths)
        for index, byte in enumerate(survivor):
            allowed = {version[index] if index < len(version) else 0 for version in history}
            assert byte in allowed, f"byte {index} is {byte}, was one of {allowed}"


@pytest.mark.parametrize("seed", range(20))
def test_after_a_crash_everything_is_durable_as_it_stands(seed: int) -> None:
    disk = SimDisk(seed)
    durable_file(disk).pwrite(b"unsynced" * 200, 0)
    disk.crash()
    found = disk.contents()
    assert disk.durable_contents() == found
    assert {tuple(disk.after_crash(other).contents().items()) for other in range(10)} == {
        tuple(found.items())
    }

"""The leader epochs of a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.leader_epoch_cache import EpochEntry, LeaderEpochCache, leader_epochs_of_batches
from tests.support.log_harness import LogHarness

Batches = list[tuple[int, int]]  # (base offset, epoch), both ascending


@st.composite
def batches(draw: st.DrawFn) -> Batches:
    offset = draw(st.integers(0, 5))
    epoch = draw(st.integers(0, 2))
    result = []
    for _ in range(draw(st.integers(0, 12))):
        result.append((offset, epoch))
        offset += draw(st.integers(1, 4))
        epoch += draw(st.sampled_from([0, 0, 1, 3]))
    return result


def cache_of(log: Batches) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for offset, epoch in log:
        cache.assign(epoch, offset)
    return cache


def plain(log: Batches) -> list[tuple[int, int]]:
    """(epoch, start offset) by a scan."""
    return [
        (epoch, offset)
        for number, (offset, epoch) in enumerate(log)
        if number == 0 or log[number - 1][1] != epoch
    ]


@given(batches())
def test_the_cache_is_a_digest_of_the_batches(log: Batches) -> None:
    assert [tuple(entry) for entry in cache_of(log).entries] == plain(log)


@given(batches(), st.integers(0, 60))
def test_truncation_leaves_the_epochs_of_what_is_left(log: Batches, end: int) -> None:
    cache = cache_of(log)
    cache.truncate_from_end(end)
    assert [tuple(entry) for entry in cache.entries] == plain([batch for batch in log if batch[0] < end])


@given(batches(), st.integers(0, 60))
def test_a_moved_log_start_keeps_the_epoch_that_it_lies_in(log: Batches, start: int) -> None:
    cache = cache_of(log)
    before = cache.epoch_for_offset(start)
    cache.truncate_from_start(start)
    assert cache.epoch_for_offset(start) == before
    assert all(entry.start_offset >= start for entry in cache.entries)
    assert [entry for entry in cache.entries if entry.start_offset > start] == [
        EpochEntry(*entry) for entry in plain(log) if entry[1] > start
    ]


@given(batches(), batches())
def test_the_batches_correct_a_stale_cache(stale: Batches, log: Batches) -> None:
    """What a crash leaves of the checkpoint may belong to a log that was cut since."""
    cache = cache_of(stale)
    for offset, epoch in log:
        cache.reconcile(epoch, offset)
    for offset, epoch in log:
        assert cache.epoch_for_offset(offset) == epoch
    starts = [entry.start_offset for entry in cache.entries]
    epochs = [entry.epoch for entry in cache.entries]
    assert starts == sorted(set(starts))
    assert epochs == sorted(set(epochs))


@given(batches(), st.integers(-1, 30))
def test_the_end_of_an_epoch_is_where_the_next_one_starts(log: Batches, epoch: int) -> None:
    cache = cache_of(log)
    end = log[-1][0] + 1 if log else 0
    found, offset = cache.end_offset_for(epoch, end)
    entries = plain(log)
    later = [start for other, start in entries if other > epoch]
    earlier = [other for other, _ in entries if other <= epoch]
    if entries and entries[-1][0] == epoch:
        assert (found, offset) == (epoch, end)
    elif epoch == -1 or not later:
        assert (found, offset) == (-1, -1)
    else:
        assert (found, offset) == (earlier[-1] if earlier else epoch, later[0])


def test_an_epoch_that_wrote_nothing_gives_way_to_the_next() -> None:
    cache = LeaderEpochCache()
    cache.assign(1, 10)
    cache.assign(2, 10)
    assert cache.entries == (EpochEntry(2, 10),)


def test_a_known_epoch_keeps_its_start() -> None:
    cache = LeaderEpochCache([(1, 10)])
    cache.assign(1, 20)
    assert cache.entries == (EpochEntry(1, 10),)
    assert cache.is_written(10, 100)


def test_epochs_without_records_need_no_write() -> None:
    cache = LeaderEpochCache([(1, 10)])
    cache.assign(2, 50)
    assert cache.is_written(10, 50)
    cache.assign(3, 50)
    assert cache.is_written(10, 50)
    assert not cache.is_written(10, 51)  # a record of epoch 3
    write = cache.prepare_write()
    assert not cache.is_written(10, 50)  # whether the file has its name yet is unknown
    assert cache.complete_write(write)
    assert cache.is_written(10, 51)
    cache.truncate_from_end(50)
    assert cache.is_written(10, 50)
    assert not cache.is_written(10, 60)  # records of epoch 1, where the file has epoch 3


def test_the_epoch_of_records_that_are_gone_is_written_once() -> None:
    cache = LeaderEpochCache()
    cache.assign(1, 0)
    cache.truncate_from_start(50)
    assert not cache.is_written(50, 50)
    assert cache.complete_write(cache.prepare_write())
    cache.assign(2, 50)
    assert cache.is_written(50, 50)


def test_an_empty_log_remembers_the_epoch_of_its_last_records() -> None:
    cache = LeaderEpochCache([(3, 0)])
    cache.truncate_from_start(50)
    assert LeaderEpochCache(cache.entries).entries == (EpochEntry(3, 50),)
    reloaded = LeaderEpochCache(cache.entries)
    reloaded.fit(50, 50)
    assert reloaded.latest_epoch == 3
    reloaded.fit(40, 50)
    assert reloaded.latest_epoch is None


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([5, 5, 5, 7, 7], [(5, 0), (7, 3)]),
        ([5, 5, 69, 5, 7], [(5, 0), (7, 4)]),
        ([5, 5, 1, 5, 7], [(5, 0), (7, 4)]),
        ([69, 5, 5, 7, 7], [(5, 1), (7, 3)]),
        ([5, 7, 7, 7, 1], [(5, 0), (7, 1)]),
        ([5, 5, 7, -9, 7], [(5, 0), (7, 2)]),
    ],
)
def test_of_epochs_of_batches_that_fall_the_most_that_agree_are_believed(
    epochs: list[int], expected: Batches
) -> None:
    lab = LogHarness()
    for epoch in sorted(epochs):
        lab.put(b"x", epoch=max(epoch, 0))
    (segment,) = lab.log.segments
    file = lab.disk.open(segment.path(".log"))
    for epoch, (position, _) in zip(epochs, list(segment.headers())):
        file.pwrite(epoch.to_bytes(4, "big", signed=True), position + 12)
    assert [tuple(each) for each in leader_epochs_of_batches([segment]).entries] == expected

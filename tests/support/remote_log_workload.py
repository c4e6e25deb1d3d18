"""Random operations on a log whose old segments go to remote storage, with a model of what a crash may leave.

As `log_workload`, with copies to remote storage in place of compaction. After a crash the log on the disk
together with what was copied is the whole log: a segment that was not copied is never missing, the segments
that are left join without a hole, and the leader epochs are those of the whole log, from its start on.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.log.leader_epoch_cache import LeaderEpochCache
from ottla.log.unified_log import RemoteLogAuxState
from tests.support.log_harness import Batch, all_batches, check_indexes, check_producers, replayed
from tests.support.log_workload import LogWorkload, run_workload


class RemoteLogWorkload(LogWorkload):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lab.configure(
            remote_storage_enable=True,
            cleanup_policy=frozenset({"delete"}),
            local_retention_bytes=self.random.choice([0, 1000, 3000]),
            local_retention_ms=-1,
            retention_bytes=-1,
        )
        # The batches that were copied, by their base offsets, as they were at that time.
        self.copied: dict[int, Batch] = {}
        self.copied_end = 0
        # True while a start behind remote storage is being written.
        self.starts_at: int | None = None

    def actions(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            *((weight, action) for weight, action in super().actions() if action != self.compact),
            (12, self.copy),
            (12, self.delete_old),
            (8, self.new_epoch),
            (2, self.begin_behind_remote_storage),
        ]

    # Operations

    def copy(self) -> None:
        """Copy the closed segments below the high watermark, or some of them."""
        log = self.log
        for segment in log.segments[:-1]:
            following = [each.base_offset for each in log.segments if each.base_offset > segment.base_offset]
            if following[0] <= self.copied_end:
                continue
            if following[0] > log.high_watermark or self.random.random() < 0.2:
                break
            for header, data in all_batches(log):
                if header.base_offset < following[0]:
                    self.copied[header.base_offset] = header, data
            self.copied_end = following[0]
        log.update_highest_offset_in_remote_storage(self.copied_end - 1)

    def delete_old(self) -> None:
        log = self.log
        self.model.highest_start = log.high_watermark
        deleted = log.delete_old_segments(self.lab.now_ms)
        self._note(deleted=deleted)
        self.model.highest_start = log.log_start_offset
        self.model.synced_end = max(self.model.synced_end, log.recovery_point)
        self._update_model()

    def truncate(self) -> None:
        super().truncate()
        self._forget_copies_from(self.log.log_end_offset)
        self._restore_producers(self.doing)

    def truncate_fully(self) -> None:
        log = self.log
        offset = max(
            log.log_start_offset, self.random.choice([log.log_end_offset + 7, log.log_end_offset - 5])
        )
        self._truncate_fully(offset)
        self._forget_copies_from(0)

    def _producers_at(self, offset: int) -> bytes:
        """What remote storage has of the producers at an offset."""
        start = self.log.log_start_offset
        whole = [each for each in self._whole() if start <= each[0].last_offset < offset]
        return replayed(whole)[0].snapshot()

    def _restore_producers(self, doing: str) -> None:
        """Restore the producers of what is in remote storage only, where the log lacks them: only a
        truncation below the disk may leave it so.
        """
        log = self.log
        if log.lacks_producers:
            assert "truncate" in doing or "begin_behind" in doing, doing
            log.begin_restoring_producers(self._producers_at(log.segments[0].base_offset)).finish()
            self._forget_lost_producers()
            self.check()

    def _forget_copies_from(self, end: int) -> None:
        """What was truncated is of another lineage."""
        self.copied = {base: each for base, each in self.copied.items() if each[0].last_offset < end}
        self.copied_end = min(self.copied_end, end)
        self.log.update_highest_offset_in_remote_storage(self.copied_end - 1)

    def begin_behind_remote_storage(self) -> None:
        """Begin again where the copies end, as a follower does that has lost its log."""
        log = self.log
        if not log.log_start_offset < self.copied_end <= log.log_end_offset:
            return
        offset, start = self.copied_end, log.log_start_offset
        self._note(offset=offset)
        epochs = tuple((entry.epoch, entry.start_offset) for entry in self._expected_epochs(offset).entries)
        self.model.synced_end = 0
        self.model.lowest_start = min(self.model.lowest_start, start)
        self.starts_at = offset
        log.truncate_fully_and_start_at(offset, start, RemoteLogAuxState(epochs, self._producers_at(offset)))
        self.starts_at = None
        self.model.synced_end = offset
        self._update_model()
        self._forget_lost_producers()

    def restart(self) -> None:
        super().restart()
        self._after_reload()

    def crash(self) -> None:
        doing = self.doing
        super().crash()
        self.starts_at = None
        self._after_reload()
        self._restore_producers(doing)

    def _after_reload(self) -> None:
        end = self.log.log_end_offset
        if self.copied_end > end:
            self._forget_copies_from(end)
        self.log.update_highest_offset_in_remote_storage(self.copied_end - 1)

    # Checks

    def _whole(self) -> list[Batch]:
        """The batches in remote storage and, behind them, on the disk."""
        local = self.log.segments[0].base_offset
        remote = [each for base, each in sorted(self.copied.items()) if each[0].last_offset < local]
        return remote + all_batches(self.log)

    def _expected_epochs(self, end: int) -> LeaderEpochCache:
        expected = LeaderEpochCache()
        start = self.log.log_start_offset
        for header, _ in self._whole():
            if start <= header.last_offset and header.base_offset < end:
                expected.assign(header.leader_epoch, max(header.base_offset, start))
        return expected

    def check(self) -> None:
        log = self.log
        check_indexes(log)
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        bases = [segment.base_offset for segment in log.segments]
        assert bases == sorted(set(bases))
        start = max(self.greatest_start, log.log_start_offset)
        if bases[0] <= start:
            check_producers(log, start=max(start, bases[0]), compacted=True)
        elif start == 0 and not log.lacks_producers:
            self._check_all_producers()
        self._check_epochs()

    def _check_all_producers(self) -> None:
        """Check that the producers are those of all records, wherever these are."""
        expected, aborted = replayed(self._whole())
        known = self.log.producer_state_manager
        for producer_id, want in expected.active_producers.items():
            have = known.active_producers[producer_id]
            assert (have.producer_epoch, have.last_sequence, have.current_txn_first_offset) == (
                want.producer_epoch,
                want.last_sequence,
                want.current_txn_first_offset,
            ), f"{have}, not {want}"
        assert known.first_undecided_offset() == expected.first_undecided_offset()
        local = self.log.segments[0].base_offset
        indexed = [txn for segment in self.log.segments for txn in segment.txn_index.entries]
        assert indexed == [txn for txn in aborted if txn.last_offset >= local]

    def _check_epochs(self) -> None:
        log = self.log
        # Otherwise it is known that those of the records in remote storage have to be fetched.
        known = all_batches(log) if log.lacks_auxiliary_state else self._whole()
        for header, _ in known:
            if header.last_offset >= log.log_start_offset:
                at = max(header.base_offset, log.log_start_offset)
                epoch = log.leader_epoch_cache.epoch_for_offset(at)
                assert epoch == header.leader_epoch, (
                    f"{at}: {epoch}, not {header.leader_epoch}, of {log.leader_epoch_cache.entries}"
                )

    def _check_survivor(self) -> None:
        model, log = self.model, self.log
        local, end = log.segments[0].base_offset, log.log_end_offset
        if self.starts_at is not None and local == end == self.starts_at:
            return
        start = log.log_start_offset
        if start < local:
            assert local <= self.copied_end, f"{local=} is above what was copied, {self.copied_end}"
        before = model.lowest_start, model.content
        # What left the disk is in remote storage: the rest is as in any log.
        model.content = [batch for batch in model.content if batch[0].last_offset >= local]
        super()._check_survivor()
        model.lowest_start = min(before[0], model.lowest_start)


def run_remote_log_workload(seed: int) -> None:
    """Run the workload on one log, with several crashes, each at some change of the disk."""
    run_workload(RemoteLogWorkload(seed), seed)

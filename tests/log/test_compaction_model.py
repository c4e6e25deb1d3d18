"""Random lives of a compacted partition, compared with the plain rules: of each key the newest committed
record stays, tombstones until their horizon, everything else goes; offsets, reads and producers are as if
nothing had happened.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.log.cleaner.cleaner import CleanerConfig
from ottla.records.types import Codec
from tests.support.compaction_harness import PARTITION, CompactionHarness

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
VALUES = st.none() | st.integers(0, 99).map(lambda n: b"%d" % n)
BATCHES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4)
CODECS = st.sampled_from(
    [Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.SNAPPY, Codec.ZSTD]
)
IDEMPOTENT = st.sampled_from([-1, -1, 4, 5])
TRANSACTIONAL = st.sampled_from([1, 2, 3])


class CompactedLives(RuleBasedStateMachine):
    @initialize(room=st.sampled_from([2, 3, 1000]))
    def begin(self, room: int) -> None:
        """With a small map, a cleaning covers only so many keys at a time."""
        self.lab = CompactionHarness(
            cleaner_config=CleanerConfig(
                dedupe_buffer_size=1024 * 1024, io_buffer_load_factor=(room + 0.5) / 43690, io_buffer_size=400
            )
        )

    @rule(records=BATCHES, codec=CODECS, producer_id=IDEMPOTENT)
    def append(self, records: list[tuple[bytes, bytes | None]], codec: Codec, producer_id: int) -> None:
        self.lab.append(*records, codec=codec, producer_id=producer_id)

    @rule(records=BATCHES, codec=CODECS, producer_id=TRANSACTIONAL)
    def append_in_transaction(
        self, records: list[tuple[bytes, bytes | None]], codec: Codec, producer_id: int
    ) -> None:
        self.lab.append(*records, codec=codec, producer_id=producer_id, transactional=True)

    @rule(producer_id=TRANSACTIONAL, commit=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool) -> None:
        if producer_id in self.lab.producers:
            self.lab.end(producer_id, commit=commit)

    @rule()
    def roll(self) -> None:
        self.lab.roll()

    @rule(ms=st.integers(0, 1500))
    def pass_time(self, ms: int) -> None:
        self.lab.pass_time(ms)

    @rule(roll=st.booleans())
    def clean(self, roll: bool) -> None:
        lab = self.lab
        if roll:
            lab.roll()
        records, horizons, before = lab.records(), lab.horizons(), lab.clean_until
        if lab.clean():
            assert not lab.cleaner.uncleanable
            assert lab.clean_until > before
            lab.check_clean(records, horizons, lab.now_ms)

    @rule(at=st.floats(0, 1))
    def truncate(self, at: float) -> None:
        """Truncate above what was cleaned, and above the markers by which it was: a cleaning takes away the
        records of an aborted transaction, so its marker is committed.
        """
        lab = self.lab
        clean_until = lab.clean_until
        lowest = max(
            (
                record.marker + 1
                for record in lab.appended
                if record.is_aborted and record.marker is not None and record.offset < clean_until
            ),
            default=clean_until,
        )
        lowest = max(lowest, clean_until)
        bases = [header.base_offset for header, _ in lab.batches() if header.base_offset >= lowest]
        if bases:
            lab.truncate(bases[int(at * (len(bases) - 1))])

    @rule()
    def restart(self) -> None:
        self.lab.restart()

    @rule()
    def recover(self) -> None:
        """Open the log as after a crash, with everything on the disk but no word of a clean shutdown."""
        lab = self.lab
        lab.replicate_and_flush()
        lab.directory.raise_recovery_points({PARTITION: lab.log.recovery_point})
        lab.disk.sync_all()
        lab.disk.crash()
        lab.reload(clean=False)

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "lab"):
            self.lab.check_all()


TestCompactedLives = pytest.mark.slow(CompactedLives.TestCase)
TestCompactedLives.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)

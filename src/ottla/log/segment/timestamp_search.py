"""A search for a timestamp in the file of a segment, in steps whose cost is known before they are done.

The time index says where a search begins. From there on it walks over the headers of batches, and opens one
batch that holds the record: two, where the greatest timestamp is sought from the middle of a batch on. A
batch is opened without building its records. How many headers there are to walk over and what a batch
decompresses to is up to those who wrote them, so `step` ends where its allowance does, and says what the next
one costs; it may run in any thread, as the file holds no position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.log.segment.walk import CorruptBatch, walk_headers
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchHeader, find_greatest_timestamp, find_timestamp, verify_crc
from ottla.records.cost import affordable_bytes, likely_bytes, walk_cost
from ottla.records.types import MAX_DECOMPRESSED_BYTES, NO_TIMESTAMP
from ottla.runtime.disk import File

# The header of a batch that is only passed.
_HEADER_US: Final = 1
# A search that finds its record at once.
_SEARCH_US: Final = 50
# What a further step may cost, unless one batch takes more.
STEP_US: Final = 50_000


class TimestampAndOffset(NamedTuple):
    """A record that a search by timestamp found."""

    timestamp: int
    offset: int
    leader_epoch: int | None
    """None where the batch has none."""


class TimestampSearch:
    """The first record from `start_offset` on that is not older than `timestamp`, or with `greatest` the
    first one that has the greatest timestamp. `position` is that of a batch before it.
    """

    __slots__ = (
        "_best",
        "_error",
        "_file",
        "_greatest",
        "_highest",
        "_opening",
        "_position",
        "_size",
        "_start_offset",
        "_timestamp",
        "cost_us",
        "is_done",
        "memory_bytes",
    )

    def __init__(
        self,
        file: File,
        size: int,
        position: int,
        *,
        timestamp: int = NO_TIMESTAMP,
        start_offset: int,
        greatest: bool = False,
    ) -> None:
        self._file: Final = file
        self._size: Final = size
        # Of the next header.
        self._position = position
        self._timestamp: Final = timestamp
        self._start_offset: Final = start_offset
        self._greatest: Final = greatest
        self._best: TimestampAndOffset | None = None
        # The batch that is to be opened next, and the bytes to which it may decompress.
        self._opening: tuple[int, BatchHeader, int] | None = None
        # With `greatest`: the first batch with the greatest timestamp of those from `start_offset` on.
        self._highest: tuple[int, BatchHeader] | None = None
        self._error: KafkaError | None = None
        self.is_done = False
        # What the next step costs at least, and the memory that it takes.
        self.cost_us = 0
        self.memory_bytes = 0

    @property
    def result(self) -> TimestampAndOffset | None:
        """What was found, once it is done; raises what went wrong."""
        assert self.is_done
        if self._error is not None:
            raise self._error.again()
        return self._best

    def run(self) -> TimestampAndOffset | None:
        """Search to the end here and now."""
        while not self.is_done:
            self.step(self.cost_us + STEP_US)
        return self.result

    def step(self, allowed_us: int) -> None:
        """Go on until it is done, or more would be done than is allowed."""
        left_us: int | None = allowed_us
        try:
            while left_us is not None and not self.is_done:
                if self._opening is not None:
                    left_us = self._open(*self._opening, left_us)
                elif self._position < self._size:
                    left_us = self._walk(left_us)
                elif self._highest is not None:
                    position, header = self._highest
                    self._opening, self._highest = (position, header, likely_bytes(header)), None
                else:
                    self.is_done = True
        except KafkaError as error:
            self._error = error.again()
            self.is_done = True

    def _walk(self, left_us: int) -> int | None:
        """Walk to the next batch that has to be opened; return what is left of the allowance, or None if it
        was used up.
        """
        for position, header in walk_headers(self._file, self._size, self._position):
            if left_us < _HEADER_US:
                self._position = position
                self.cost_us, self.memory_bytes = STEP_US, 0
                return None
            left_us -= _HEADER_US
            if header.last_offset < self._start_offset:
                continue
            if not self._greatest:
                opens = header.max_timestamp >= self._timestamp
            elif header.max_timestamp <= self._known:
                continue
            elif not (opens := header.base_offset < self._start_offset):
                self._highest = position, header
            if opens:
                self._opening = position, header, likely_bytes(header)
                self._position = position + header.size
                return left_us
        self._position = self._size
        return left_us

    @property
    def _known(self) -> int:
        """The greatest timestamp so far."""
        if self._highest is not None:
            return self._highest[1].max_timestamp
        return NO_TIMESTAMP if self._best is None else self._best.timestamp

    def _open(self, position: int, header: BatchHeader, bound: int, left_us: int) -> int | None:
        """Look for the record in a batch; return what is left of the allowance, or None if the batch takes
        more.
        """
        cost_us = walk_cost(header, bound)
        if cost_us > left_us:
            self.cost_us, self.memory_bytes = cost_us, bound
            return None
        data = self._file.pread(header.size, position)
        try:
            verify_crc(data, 0, header)
        except KafkaError as error:
            raise CorruptBatch(self._file.path, position, error.message) from None
        try:
            if self._greatest:
                found = find_greatest_timestamp(
                    data, 0, header, start_offset=self._start_offset, max_decompressed_bytes=bound
                )
            else:
                found = find_timestamp(
                    data,
                    0,
                    header,
                    self._timestamp,
                    start_offset=self._start_offset,
                    max_decompressed_bytes=bound,
                )
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE or bound == MAX_DECOMPRESSED_BYTES:
                raise
            # It compresses better than others, or is damaged.
            more = affordable_bytes(header, STEP_US)
            self._opening = position, header, more if more > bound else MAX_DECOMPRESSED_BYTES
            return left_us - cost_us
        self._opening = None
        if found is not None:
            epoch = header.leader_epoch
            self._best = TimestampAndOffset(found[1], found[0], epoch if epoch >= 0 else None)
            self.is_done = not self._greatest
        return left_us - cost_us


class SearchTooLong(Exception):
    """A search is more than a turn of the event loop allows: its further steps are for another thread."""

    def __init__(self, search: TimestampSearch) -> None:
        super().__init__("a search by timestamp takes longer than a turn")
        self.search: Final = search


class TimestampSearches:
    """The searches of one request, of which little is done in a turn of the event loop: what remains is
    raised as `SearchTooLong`, and found here by the attempt after it.
    """

    __slots__ = ("_searches", "left_us")

    def __init__(self, allowed_us: int) -> None:
        # What may be done until it is set again.
        self.left_us = allowed_us
        self._searches: dict[tuple[str, int, int], TimestampSearch] = {}

    def run(
        self, key: tuple[str, int, int], begin: Callable[[], TimestampSearch]
    ) -> TimestampAndOffset | None:
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = begin()
        if not search.is_done:
            search.step(self.left_us)
            self.left_us -= _SEARCH_US
            if not search.is_done:
                self.left_us = 0
                raise SearchTooLong(search)
        return search.result

"""Validate a batch before the leader of a partition appends it, and assign its offsets.

The rules, codes and messages are those of Kafka's `LogValidator`. A batch that breaks a rule as a whole is
refused with one code; a batch with records that break a rule is refused with `RecordErrors`, which names each
of them. A batch that passes keeps its bytes wherever it can: base offset, leader epoch, timestamp type and
maximum timestamp are patched in place, and the records are rewritten only for another codec, or if the offset
deltas do not count up from 0. Nearly every batch is valid and not compressed: the kernel handles those by
itself (`place_plain`), and the rules in this file are for the others.

The result has contiguous offsets from `first_offset` on, the maximum timestamp as the broker computed it, and
a valid checksum.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records._kernel import (
    NO_KEY,
    TIMESTAMP_OUT_OF_RANGE,
    BatchHeader,
    Encoder,
    copy_records,
    place_plain,
    validate_records,
)
from ottla.records.batch import (
    iter_batches,
    payload_of,
    set_max_timestamp,
    set_offset_and_epoch,
    verify_crc,
)
from ottla.records.builder import attributes_of, join_batch
from ottla.records.checksum import crc32c
from ottla.records.compression import compress
from ottla.records.cost import affordable_bytes, check_cost, compression_cost, likely_bytes, walk_cost
from ottla.records.types import (
    HEADER_SIZE,
    MAGIC,
    MAX_DECOMPRESSED_BYTES,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_RECORD_ERRORS: Final = 1000
"""How many bad records the error names one by one; a batch that has more is refused as well."""
MAX_TIMESTAMP_DIFFERENCE_MS: Final = 2**63 - 1
PRODUCE_VERSION_WITH_ZSTD: Final = 7
MAGIC_POSITION: Final = 16
LIKELY_COST_US: Final = 50_000
"""What the check of a batch may cost although its header promises less."""
MAX_COST_US: Final = 10_000_000
"""What it may cost at most; a batch that takes more to be compressed again is refused."""


class AppendOrigin(Enum):
    """The sender of a batch. Only clients are held to the rules that protect internal records."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    RAFT_LEADER = "raft leader"
    REPLICATION = "replication"


@dataclass(frozen=True, slots=True)
class RecordError:
    """Why one record of a batch was refused; `index` counts from 0 within the batch."""

    index: int
    message: str


class RecordErrors(KafkaError):
    """A batch refused because of some of its records."""

    __slots__ = ("errors",)

    errors: tuple[RecordError, ...]

    def __init__(self, code: ErrorCode, message: str, errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.errors = errors

    def __reduce__(self) -> tuple[type[RecordErrors], tuple[ErrorCode, str, tuple[RecordError, ...]]]:
        return type(self), (self.code, self.message, self.errors)


class BatchTooCostly(Exception):
    """The check of a batch takes more than its caller allows; nothing was changed."""


class ValidationResult(NamedTuple):
    """Batches ready to be appended, and what the log needs to know about them.

    `offset_of_max_timestamp` is what the time index stores: the last offset of the batch that has the largest
    timestamp, the first such batch if there are several; -1 if no record has a timestamp.
    """

    buffer: memoryview
    batches: list[BatchHeader]
    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int


def check_produce_records(data: Buffer | None, version: int) -> BatchHeader:
    """Return the header of the one batch that a partition of a Produce request must carry, or raise the error
    that Kafka raises.
    """
    view = memoryview(data if data is not None else b"").cast("B")
    if len(view) > MAGIC_POSITION and view[MAGIC_POSITION] < MAGIC:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain record batches with magic "
            f"version {MAGIC}, not {view[MAGIC_POSITION]}",
        )
    header = BatchHeader.parse(view, 0) if len(view) >= HEADER_SIZE else None
    if header is None or header.size != len(view):
        header = _only_batch(view, version)
    if version < PRODUCE_VERSION_WITH_ZSTD and header.codec is Codec.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {version} are not allowed to use ZStandard compression",
        )
    return header


def _only_batch(view: memoryview, version: int) -> BatchHeader:
    """Return the header of the only complete batch; bytes of an incomplete one may follow it."""
    batches = list(iter_batches(view))
    if not batches:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} must have at least one record batch per partition",
        )
    if len(batches) > 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain exactly one record batch "
            f"per partition, not {len(batches)}",
        )
    return batches[0][1]


def validate_and_assign_offsets(
    data: Buffer,
    *,
    first_offset: int,
    leader_epoch: int,
    now_ms: int,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    before_max_ms: int = MAX_TIMESTAMP_DIFFERENCE_MS,
    after_max_ms: int = MAX_TIMESTAMP_DIFFERENCE_MS,
    compacted: bool = False,
    codec_target: Codec | None = None,
    level: int | None = None,
    max_message_bytes: int = 2**31 - 1,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    max_cost_us: int | None = None,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> ValidationResult:
    """Validate `data` and assign its place in the log: offsets from `first_offset` on in `leader_epoch`.

    With `max_cost_us` a batch that turns out to cost more raises BatchTooCostly (see `BatchCheck`). A
    writable buffer is patched in place and returned; another one is copied first. `codec_target` is the
    topic's `compression.type`, None for 'producer'. Clients send one batch; other origins may send several.
    An incomplete batch at the end is cut off, as in Kafka.
    """
    if (
        origin is AppendOrigin.CLIENT
        and timestamp_type is TimestampType.CREATE_TIME
        and (codec_target is None or codec_target is Codec.NONE)
    ):
        placed = place_plain(
            data,
            crc32c,
            first_offset,
            leader_epoch,
            now_ms,
            before_max_ms,
            after_max_ms,
            max_message_bytes,
            compacted,
        )
        if placed is not None:
            last, newest_ms = placed.last_offset, placed.max_timestamp
            return ValidationResult(
                _writable(data),
                [placed],
                first_offset,
                last,
                newest_ms,
                -1 if newest_ms == NO_TIMESTAMP else last,
            )
    found = list(iter_batches(data))
    if not found:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the records hold no complete batch")
    if origin is AppendOrigin.CLIENT and len(found) > 1:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"an append may hold one batch, not {len(found)}")
    if max_cost_us is not None:
        max_decompressed_bytes = min(max_decompressed_bytes, affordable_bytes(found[0][1], max_cost_us))
    rules = _Rules(
        now_ms,
        timestamp_type,
        before_max_ms,
        after_max_ms,
        compacted,
        codec_target,
        level,
        max_message_bytes,
        max_decompressed_bytes,
        max_cost_us,
        origin,
    )
    buffer = _writable(data)
    parts: list[memoryview] = []
    batches: list[BatchHeader] = []
    offset = first_offset
    newest: BatchHeader | None = None
    in_place = True
    for pos, header in found:
        given = buffer[pos : pos + header.size]
        part = _check(given, header, rules)
        set_offset_and_epoch(part, 0, offset, leader_epoch)
        in_place = in_place and part is given
        assigned = BatchHeader.parse(part)
        if newest is None or assigned.max_timestamp > newest.max_timestamp:
            newest = assigned
        parts.append(part)
        batches.append(assigned)
        offset = assigned.next_offset
    assert newest is not None
    if len(parts) == 1:
        buffer = parts[0]
    elif in_place:
        buffer = buffer[: pos + header.size]
    else:
        buffer = memoryview(bytearray().join(parts))
    return ValidationResult(
        buffer=buffer,
        batches=batches,
        first_offset=first_offset,
        last_offset=offset - 1,
        max_timestamp=newest.max_timestamp,
        offset_of_max_timestamp=-1 if newest.max_timestamp == NO_TIMESTAMP else newest.last_offset,
    )


class BatchCheck:
    """The check of a batch of a client that is too costly for a turn of the event loop.

    `run` may be called in any thread, until `is_done`: at first it assumes that the batch compresses as
    others do, and if that is wrong, the next run costs more. `place` then assigns offsets, in the thread of
    the log. The rules are those of the time at which the check was made; what depends on the time of the
    append is set by `place`.
    """

    __slots__ = ("_buffer", "_error", "_header", "_rules", "cost_us", "is_done", "plain_bytes")

    def __init__(
        self,
        data: Buffer,
        header: BatchHeader,
        *,
        now_ms: int,
        timestamp_type: TimestampType,
        before_max_ms: int,
        after_max_ms: int,
        compacted: bool,
        codec_target: Codec | None,
        level: int | None,
        max_message_bytes: int,
    ) -> None:
        self._buffer = _writable(data)[: header.size]
        self._header: Final = header
        likely = likely_bytes(header)
        self.cost_us = min(check_cost(header, likely, codec_target, level), MAX_COST_US)
        # What its records may take without compression.
        self.plain_bytes = max(likely, affordable_bytes(header, LIKELY_COST_US))
        self._rules: Final = _Rules(
            now_ms,
            timestamp_type,
            before_max_ms,
            after_max_ms,
            compacted,
            codec_target,
            level,
            max_message_bytes,
            self.plain_bytes,
            min(max(self.cost_us, LIKELY_COST_US), MAX_COST_US),
            AppendOrigin.CLIENT,
        )
        self._error: KafkaError | None = None
        self.is_done = False

    def run(self) -> None:
        """Check the batch, or find that it costs more than was known."""
        try:
            self._buffer = _check(self._buffer, self._header, self._rules)
        except BatchTooCostly:
            self._expect_the_most()
            return
        except KafkaError as error:
            self._error = error.again()
        self.is_done = True

    def _expect_the_most(self) -> None:
        rules = self._rules
        if rules.max_decompressed_bytes == MAX_DECOMPRESSED_BYTES:
            self._error = KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The batch would take more than {MAX_COST_US // 1_000_000} s to be compressed again "
                "(compression.type). Send smaller batches, or compress them as the topic does.",
            )
            self.is_done = True
            return
        rules.max_cost_us = MAX_COST_US
        rules.max_decompressed_bytes = self.plain_bytes = MAX_DECOMPRESSED_BYTES
        cost_us = check_cost(self._header, self.plain_bytes, rules.codec_target, rules.level)
        self.cost_us = min(cost_us, MAX_COST_US)

    def place(self, first_offset: int, leader_epoch: int, now_ms: int) -> ValidationResult:
        """Assign offsets to the batch that was checked, or raise what the check has found."""
        assert self.is_done
        if self._error is not None:
            raise self._error.again()
        buffer = self._buffer
        if self._rules.timestamp_type is TimestampType.LOG_APPEND_TIME:
            header = BatchHeader.parse(buffer)
            set_max_timestamp(buffer, 0, header, TimestampType.LOG_APPEND_TIME, now_ms)
        set_offset_and_epoch(buffer, 0, first_offset, leader_epoch)
        header = BatchHeader.parse(buffer)
        newest_ms, last = header.max_timestamp, header.last_offset
        return ValidationResult(
            buffer, [header], first_offset, last, newest_ms, -1 if newest_ms == NO_TIMESTAMP else last
        )


@dataclass(slots=True)
class _Rules:
    now_ms: int
    timestamp_type: TimestampType
    before_max_ms: int
    after_max_ms: int
    compacted: bool
    codec_target: Codec | None
    level: int | None
    max_message_bytes: int
    max_decompressed_bytes: int
    max_cost_us: int | None
    origin: AppendOrigin


def _writable(data: Buffer) -> memoryview:
    view = memoryview(data)
    return memoryview(bytearray(view)) if view.readonly else view.cast("B")


def _check(batch: memoryview, header: BatchHeader, rules: _Rules) -> memoryview:
    """Validate one batch, and make of it what is stored, but for its offset and epoch; return the same memory
    if it could be patched in place, new memory if not.
    """
    _check_header(header, rules)
    verify_crc(batch, 0, header)
    try:
        payload = payload_of(batch, 0, header, max_decompressed_bytes=rules.max_decompressed_bytes)
    except KafkaError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        if rules.max_decompressed_bytes < MAX_DECOMPRESSED_BYTES and rules.max_cost_us is not None:
            raise BatchTooCostly from None  # or it is damaged, which costs as much to know
        # The checksum holds, so the sender compressed it like this: sending it again will not help.
        raise KafkaError(ErrorCode.INVALID_RECORD, error.message) from error
    max_timestamp, contiguous, refused, details = validate_records(
        payload,
        header,
        keys_required=rules.compacted,
        create_time=rules.timestamp_type is TimestampType.CREATE_TIME,
        now_ms=rules.now_ms,
        before_max_ms=rules.before_max_ms,
        after_max_ms=rules.after_max_ms,
        max_refusals=MAX_RECORD_ERRORS,
    )
    if refused:
        raise _refusal(refused, details, rules)
    codec = header.codec if rules.codec_target is None else rules.codec_target
    if header.is_control and not header.is_compressed:
        codec, contiguous = Codec.NONE, True
    if codec is not header.codec or not contiguous:
        if rules.max_cost_us is not None:
            plain_bytes = memoryview(payload).nbytes
            cost_us = compression_cost(plain_bytes, codec, rules.level)
            if walk_cost(header, plain_bytes) + cost_us > rules.max_cost_us:
                raise BatchTooCostly
        return _rewrite_batch(payload, header, codec, contiguous, max_timestamp, rules)
    if rules.timestamp_type is TimestampType.LOG_APPEND_TIME:
        max_timestamp = rules.now_ms
    set_max_timestamp(batch, 0, header, rules.timestamp_type, max_timestamp)
    return batch


def _check_header(header: BatchHeader, rules: _Rules) -> None:
    """Check the rules that the header alone can break, in Kafka's order."""
    if rules.origin is AppendOrigin.CLIENT and header.base_offset != 0:
        raise _invalid(
            f"The baseOffset of the record batch in the append should be 0, but it is {header.base_offset}"
        )
    _check_size(header.size, rules)
    if header.last_offset_delta < 0:
        raise _invalid(f"Batch has an invalid offset range: [0, {header.last_offset_delta}]")
    if rules.origin is not AppendOrigin.CLIENT:
        return
    if header.count <= 0:
        raise _invalid(f"Invalid reported count for record batch: {header.count}")
    if header.last_offset_delta != header.count - 1:
        raise _invalid(
            f"Inconsistent batch offset range [0, {header.last_offset_delta}] and count of records "
            f"{header.count}"
        )
    if header.is_control:
        raise _invalid("Clients are not allowed to write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise _invalid(
            f"Invalid sequence number {header.base_sequence} in record batch with producerId "
            f"{header.producer_id}"
        )


def _check_size(size: int, rules: _Rules) -> None:
    if size > rules.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append is {size} bytes which exceeds the maximum configured value "
            f"of {rules.max_message_bytes} (max.message.bytes).",
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def _refusal(refused: int, details: list[tuple[int, int, int, int]], rules: _Rules) -> RecordErrors:
    earliest, latest = rules.now_ms - rules.before_max_ms, rules.now_ms + rules.after_max_ms
    errors: list[RecordError] = []
    code = ErrorCode.INVALID_RECORD
    for index, reason, offset, timestamp in details:
        if reason == NO_KEY:
            errors.append(RecordError(index, "Compacted topic cannot accept message without key."))
            continue
        code = ErrorCode.INVALID_TIMESTAMP
        if reason == TIMESTAMP_OUT_OF_RANGE:
            text = (
                f"Timestamp {timestamp} of message with offset {offset} is out of range. The timestamp "
                f"should be within [{earliest}, {latest}] (message.timestamp.before.max.ms, "
                "message.timestamp.after.max.ms)"
            )
        else:
            text = (
                f"Invalid timestamp type in message {index}. Producer should not set timestamp type to "
                "LogAppendTime."
            )
        errors.append(RecordError(index, text))
    if code is ErrorCode.INVALID_TIMESTAMP:
        message = "One or more records have been rejected due to invalid timestamp"
    else:
        shown = "; ".join(f"{error.index}: {error.message}" for error in errors[:3])
        message = (
            f"One or more records have been rejected due to {refused} record errors in total, and only "
            f"showing the first three errors at most: {shown}"
        )
    return RecordErrors(code, message, tuple(errors))


def _rewrite_batch(
    payload: Buffer,
    header: BatchHeader,
    codec: Codec,
    contiguous: bool,
    max_timestamp: int,
    rules: _Rules,
) -> memoryview:
    """Write the batch with another codec or with offset deltas that count up; its producer and transaction
    stay.
    """
    append_time = rules.timestamp_type is TimestampType.LOG_APPEND_TIME
    base_timestamp = header.base_timestamp
    if not contiguous or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        encoder = Encoder()
        copy_records(encoder, payload, header, renumber=True)
        payload = encoder.payload
        base_timestamp = encoder.base_timestamp
    batch = join_batch(
        compress(codec, payload, rules.level),
        base_offset=0,
        leader_epoch=NO_LEADER_EPOCH,
        attributes=attributes_of(codec, rules.timestamp_type, transactional=header.is_transactional),
        last_offset_delta=header.count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=rules.now_ms if append_time else max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        count=header.count,
    )
    _check_size(len(batch), rules)
    return memoryview(batch)

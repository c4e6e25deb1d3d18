from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, final

from typing_extensions import Buffer

from ottla.records.types import Codec, TimestampType

_Headers: TypeAlias = Iterable[tuple[str | bytes, Buffer | None]] | Mapping[str, Buffer | None]
_RecordTuple: TypeAlias = (
    tuple[int, Buffer | None, Buffer | None] | tuple[int, Buffer | None, Buffer | None, _Headers]
)

class Block:
    def __init__(self, capacity: int = 0, size: int = 0, recycled: bool = False) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def shrink(self, size: int) -> None: ...

@final
class BatchHeader:
    base_offset: Final[int]
    batch_length: Final[int]
    leader_epoch: Final[int]
    magic: Final[int]
    crc: Final[int]
    attributes: Final[int]
    last_offset_delta: Final[int]
    base_timestamp: Final[int]
    max_timestamp: Final[int]
    producer_id: Final[int]
    producer_epoch: Final[int]
    base_sequence: Final[int]
    count: Final[int]
    @staticmethod
    def parse(buf: Buffer, pos: int = 0) -> BatchHeader: ...
    size: Final[int]
    last_offset: Final[int]
    next_offset: Final[int]
    codec: Final[Codec]
    timestamp_type: Final[TimestampType]
    is_transactional: Final[bool]
    is_control: Final[bool]
    is_compressed: Final[bool]
    delete_horizon_ms: Final[int | None]
    has_producer_id: Final[bool]
    last_sequence: Final[int]

@final
class Record:
    __match_args__: ClassVar[tuple[str, ...]]
    def __init__(
        self,
        offset: int = 0,
        timestamp: int = -1,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        sequence: int = -1,
    ) -> None: ...
    offset: Final[int]
    timestamp: Final[int]
    key: Final[bytes | None]
    value: Final[bytes | None]
    headers: Final[tuple[tuple[str, bytes | None], ...]]
    sequence: Final[int]

def check_batches(
    buf: Buffer,
    crc32c: Callable[[memoryview], int],
    least_offset: int,
    end_offset: int,
    least_epoch: int,
    greatest_epoch: int,
) -> tuple[int, int, str | None]: ...
def decode_records(payload: Buffer, header: BatchHeader) -> list[Record]: ...

@final
class Encoder:
    def __init__(self, base_timestamp: int | None = None, capacity: int = 16384) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_delta(self) -> int: ...
    @property
    def payload(self) -> Block: ...
    @property
    def size(self) -> int: ...
    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: _Headers = (),
        offset_delta: int | None = None,
        limit: int = 0,
    ) -> int: ...
    def extend(self, records: Iterable[Record | _RecordTuple], base_offset: int) -> None: ...

def copy_records(
    encoder: Encoder, payload: Buffer, header: BatchHeader, marks: bytes | None = None, renumber: bool = False
) -> None: ...

NO_KEY: int
TIMESTAMP_OUT_OF_RANGE: int
TIMESTAMP_TYPE_SET: int

def validate_records(
    payload: Buffer,
    header: BatchHeader,
    *,
    keys_required: bool,
    create_time: bool,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    max_refusals: int,
) -> tuple[int, bool, int, list[tuple[int, int, int, int]]]: ...
def place_plain(
    batch: Buffer,
    crc32c: Callable[[memoryview], int],
    first_offset: int,
    leader_epoch: int,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    max_bytes: int,
    keys_required: bool,
) -> BatchHeader | None: ...
def read_batches(
    log: object,
    offset: int,
    max_bytes: int,
    min_one_batch: bool,
    upper: int,
    end: int,
    crc32c: Callable[[memoryview], int],
) -> tuple[bytes, int, int] | None: ...

class RequestLane:
    def __init__(
        self,
        gate: object,
        quotas: object,
        statistics_of: Callable[[int], object | None],
        now_ns: Callable[[], int],
        time_bounds_ns: tuple[int, ...],
        crc32c: Callable[[memoryview], int],
        internal_topics: Container[str],
        topic_partition: Callable[[str, int], object],
        is_allowed: Callable[..., bool],
        max_version: int,
        *own: object,
    ) -> None: ...

@final
class ProduceLane(RequestLane):
    appended: list[tuple[int, int, int]] | None
    waiting: list[tuple[Any, int, int]] | None
    timeout_ms: int
    def answer(self, connection: object, frame: memoryview) -> bytes | None: ...

@final
class FetchLane(RequestLane): ...

@final
class RequestLanes:
    appended: list[tuple[int, int, int]] | None
    def __init__(self, produce: ProduceLane, fetch: FetchLane) -> None: ...
    def take(
        self, connection: object, data: memoryview, position: int, room: int, received_ns: int
    ) -> int: ...

def find_timestamp(
    payload: Buffer, header: BatchHeader, timestamp: int, start_offset: int
) -> tuple[int, int] | None: ...

@final
class OffsetMap:
    latest_offset: int
    def __init__(self, memory_bytes: int, load_factor: float = 0.9, seed: bytes = ...) -> None: ...
    def __len__(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def used(self) -> int: ...
    def clear(self) -> None: ...
    def get(self, key: Buffer) -> int: ...
    def put(self, key: Buffer, offset: int) -> bool: ...
    def put_batch(self, payload: Buffer, header: BatchHeader, start_offset: int = 0) -> bool: ...

def select_records(
    payload: Buffer, header: BatchHeader, offset_map: OffsetMap, *, keep_tombstones: bool
) -> tuple[int, bool, bytes]: ...

COLUMNS: dict[str, int]

class BinaryColumn:
    @property
    def rows(self) -> int: ...
    @property
    def null_count(self) -> int: ...
    def buffers(self) -> tuple[Block | None, Block, Block]: ...

@final
class Columns:
    def __init__(self, wanted: int, *, rows: int = 0, key_bytes: int = 0, value_bytes: int = 0) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def key(self) -> BinaryColumn: ...
    @property
    def value(self) -> BinaryColumn: ...
    @property
    def offset(self) -> Block: ...
    @property
    def timestamp(self) -> Block: ...
    @property
    def timestamp_type(self) -> Block: ...
    @property
    def header_offsets(self) -> Block: ...
    @property
    def header_valid(self) -> Block: ...
    @property
    def rows_with_headers(self) -> int: ...
    @property
    def header_key(self) -> BinaryColumn: ...
    @property
    def header_value(self) -> BinaryColumn: ...
    @property
    def nbytes(self) -> int: ...
    def renewed(self) -> Columns: ...

@final
class BatchReader:
    def __init__(
        self,
        *,
        start_offset: int,
        end_offset: int,
        check_crc: bool,
        decompress: Callable[[Codec, memoryview, int], Buffer],
        crc32c: Callable[[memoryview], int],
        max_decompressed_bytes: int,
    ) -> None: ...
    @property
    def next_offset(self) -> int: ...
    def set_aborted(self, aborted: Iterable[tuple[int, int]]) -> None: ...
    def read(self, buf: Buffer) -> list[Record]: ...
    def read_for_user(
        self, buf: Buffer, source: ConsumerRecord[Any, Any]
    ) -> list[ConsumerRecord[bytes | None, bytes | None]]: ...
    def read_columns(self, buf: Buffer, columns: Columns) -> None: ...

_K = TypeVar("_K", covariant=True)
_V = TypeVar("_V", covariant=True)

@final
class ConsumerRecord(Generic[_K, _V]):
    __match_args__: ClassVar[tuple[str, ...]]
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int = -1,
        key: Any = None,
        value: Any = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_type: int = 0,
        leader_epoch: int = -1,
    ) -> None: ...
    topic: Final[str]
    partition: Final[int]
    offset: Final[int]
    timestamp: Final[int]
    timestamp_type: Final[int]
    leader_epoch: Final[int]
    @property
    def key(self) -> _K | None: ...
    @property
    def value(self) -> _V | None: ...
    headers: Final[tuple[tuple[str, bytes | None], ...]]

def deserialize(
    records: list[ConsumerRecord[Any, Any]],
    key_deserializer: Callable[[bytes], Any] | None,
    value_deserializer: Callable[[bytes], Any] | None,
) -> tuple[int, Exception | None]: ...
def murmur2(key: Buffer) -> int: ...
def partition_for(key: Buffer, partitions: int) -> int: ...

class BinaryInput:
    def __init__(
        self,
        valid: Buffer | None,
        offsets: Buffer,
        data: Buffer | None,
        *,
        first: int,
        rows: int,
        wide: bool = False,
    ) -> None: ...
    @property
    def rows(self) -> int: ...

@final
class Rows:
    def __init__(
        self,
        count: int,
        *,
        key: BinaryInput | None = None,
        value: BinaryInput | None = None,
        timestamps: Buffer | None = None,
        default_timestamp: int = -1,
        lists: BinaryInput | None = None,
        header_key: BinaryInput | None = None,
        header_value: BinaryInput | None = None,
    ) -> None: ...
    @property
    def count(self) -> int: ...
    def encode(self, encoder: Encoder, start: int, limit_bytes: int) -> int: ...
    def partitions(self, partitions: int) -> Block: ...

AVRO_KINDS: dict[str, int]
AVRO_FAULTS: tuple[str, ...]

@final
class AvroColumn:
    def __init__(
        self,
        kind: int,
        children: list[AvroColumn],
        *,
        kept: bool = True,
        low: int = ...,
        high: int = ...,
        size: int = 0,
        null_branch: int = -1,
        branches: int = 0,
        may_be_null: bool = True,
        allowed: bytes = b"",
        decimal_limit: int = 0,
    ) -> None: ...
    @property
    def children(self) -> list[AvroColumn]: ...
    @property
    def rows(self) -> int: ...
    @property
    def null_count(self) -> int: ...
    def buffers(self) -> tuple[Block | None, Block, Block]: ...

def read_avro(
    column: AvroColumn, values: BinaryInput, start: int, head: int, most_bytes: int
) -> tuple[int, list[tuple[int, int]]]: ...

@final
class AvroSource:
    def __init__(
        self,
        kind: int,
        children: list[AvroSource],
        valid: Buffer | None = None,
        offsets: Buffer | None = None,
        data: Buffer | None = None,
        *,
        first: int = 0,
        rows: int = 0,
        size: int = 0,
        null_branch: int = -1,
        branch: int = 0,
        branches: bytes = b"",
    ) -> None: ...

def write_avro(source: AvroSource, prefix: bytes, rows: int) -> tuple[Block, Block] | None: ...

# The header of a batch, and records as Python objects.

from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.string cimport memcmp

cdef enum:
    KNOWN_NAMES = 32
    CODEC_MASK = 0x07
    TIMESTAMP_TYPE_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40

cdef tuple CODECS = tuple(Codec)
cdef object CREATE_TIME = TimestampType.CREATE_TIME
cdef object LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME


cdef inline int32_t sequence_at(int32_t base, int32_t delta) noexcept nogil:
    return <int32_t> ((<uint32_t> base + <uint32_t> delta) & INT32_MAX)


@cython.final
cdef class BatchHeader:
    """The 61 bytes in front of a batch's records, as they are; the properties say what they mean."""

    cdef readonly int64_t base_offset
    cdef readonly int32_t batch_length
    cdef readonly int32_t leader_epoch
    cdef readonly int8_t magic
    cdef readonly uint32_t crc
    cdef readonly int16_t attributes
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly int32_t count

    @staticmethod
    def parse(buf, Py_ssize_t pos=0):
        """The header at `pos`. Magic and length are checked; that the records are there and sound is not."""
        cdef Py_buffer view
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            return parse_header(<const uint8_t*> view.buf, view.len, pos)
        finally:
            PyBuffer_Release(&view)

    @property
    def size(self):
        """Bytes of the whole batch, base offset and length included."""
        return OVERHEAD_BYTES + <int64_t> self.batch_length

    @property
    def last_offset(self):
        return wrapping_add(self.base_offset, self.last_offset_delta)

    @property
    def next_offset(self):
        return wrapping_add(self.base_offset, <int64_t> self.last_offset_delta + 1)

    @property
    def codec(self):
        cdef int number = self.attributes & CODEC_MASK
        if number >= len(CODECS):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"the batch at offset {self.base_offset} is compressed with codec {number}; there is none",
            )
        return CODECS[number]

    @property
    def timestamp_type(self):
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else CREATE_TIME

    @property
    def is_transactional(self):
        return (self.attributes & TRANSACTIONAL_BIT) != 0

    @property
    def is_control(self):
        return (self.attributes & CONTROL_BIT) != 0

    @property
    def is_compressed(self):
        return (self.attributes & CODEC_MASK) != 0

    @property
    def delete_horizon_ms(self):
        """When tombstones and markers of this batch may be removed; set by the first compaction that meets them."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_producer_id(self):
        return self.producer_id > -1

    @property
    def last_sequence(self):
        """Sequence number of the last record; numbers wrap from 2^31-1 to 0."""
        if self.base_sequence < 0:
            return -1
        return sequence_at(self.base_sequence, self.last_offset_delta)

    def _fields(self):
        return (self.base_offset, self.batch_length, self.leader_epoch, self.magic, self.crc, self.attributes,
                self.last_offset_delta, self.base_timestamp, self.max_timestamp, self.producer_id,
                self.producer_epoch, self.base_sequence, self.count)

    def __eq__(self, other):
        return isinstance(other, BatchHeader) and self._fields() == (<BatchHeader> other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"BatchHeader(base_offset={self.base_offset}, last_offset={self.last_offset}, size={self.size},"
            f" leader_epoch={self.leader_epoch}, attributes={self.attributes:#x}, count={self.count},"
            f" base_timestamp={self.base_timestamp}, max_timestamp={self.max_timestamp},"
            f" producer_id={self.producer_id}, producer_epoch={self.producer_epoch},"
            f" base_sequence={self.base_sequence})"
        )


cdef BatchHeader parse_header(const uint8_t* data, Py_ssize_t size, Py_ssize_t pos):
    cdef BatchHeader h
    cdef const uint8_t* p
    if pos < 0 or size - pos < HEADER_BYTES:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{max(size - pos, 0)} bytes at position {pos} are less than a batch's header of {HEADER_BYTES}",
        )
    p = data + pos
    if p[16] != 2:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch at position {pos} has magic {<int8_t> p[16]}; only record format 2 is supported",
        )
    h = BatchHeader.__new__(BatchHeader)
    h.batch_length = get32(p + 8)
    if h.batch_length < HEADER_BYTES - OVERHEAD_BYTES:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch at position {pos} declares a length of {h.batch_length} bytes;"
            f" its header alone takes {HEADER_BYTES - OVERHEAD_BYTES}",
        )
    h.base_offset = get64(p)
    h.leader_epoch = get32(p + 12)
    h.magic = <int8_t> p[16]
    h.crc = <uint32_t> get32(p + 17)
    h.attributes = get16(p + 21)
    h.last_offset_delta = get32(p + 23)
    h.base_timestamp = get64(p + 27)
    h.max_timestamp = get64(p + 35)
    h.producer_id = get64(p + 43)
    h.producer_epoch = get16(p + 51)
    h.base_sequence = get32(p + 53)
    h.count = get32(p + 57)
    return h


@cython.final
@cython.freelist(256)
cdef class Record:
    """One record. Immutable; `sequence` is -1 where its batch has no producer."""

    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers
    cdef readonly int32_t sequence

    __match_args__ = ("offset", "timestamp", "key", "value", "headers")

    def __init__(self, offset=0, timestamp=-1, key=None, value=None, headers=(), sequence=-1):
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = tuple(headers)
        self.sequence = sequence

    def __eq__(self, other):
        cdef Record that
        if not isinstance(other, Record):
            return NotImplemented
        that = <Record> other
        return (
            self.offset == that.offset
            and self.timestamp == that.timestamp
            and self.sequence == that.sequence
            and self.key == that.key
            and self.value == that.value
            and self.headers == that.headers
        )

    def __hash__(self):
        return hash((self.offset, self.timestamp, self.key, self.value, self.headers, self.sequence))

    def __reduce__(self):
        return Record, (self.offset, self.timestamp, self.key, self.value, self.headers, self.sequence)

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r},"
            f" value={self.value!r}, headers={self.headers!r}, sequence={self.sequence})"
        )


cdef inline object bytes_or_none(const uint8_t* data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*> data, size)


cdef struct Name:
    const uint8_t* data             # within the payload, so valid as long as its batch is being decoded
    int32_t size
    PyObject* text                  # borrowed from the list of names


cdef object name_of(const uint8_t* data, int32_t size, Name* known, list names):
    """A header's name as text. The same few come with every record, so they are decoded once per batch."""
    cdef Name* name
    if size == 0:
        return ""
    name = &known[(data[0] + data[size - 1] + size) % KNOWN_NAMES]
    if name.size != size or memcmp(name.data, data, size) != 0:
        text = PyUnicode_DecodeUTF8(<const char*> data, size, "replace")
        names.append(text)
        name.data = data
        name.size = size
        name.text = <PyObject*> text
    return <object> name.text


cdef tuple headers_of(Entry* entry, Py_ssize_t index, Name* known, list names):
    cdef const uint8_t* p = entry.headers
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef int32_t key_size
    cdef int32_t value_size
    cdef int32_t i
    cdef Fault fault
    cdef tuple pair
    cdef tuple headers = PyTuple_New(entry.header_count)
    for i in range(entry.header_count):
        fault = read_header(&p, entry.end, &key, &key_size, &value, &value_size)
        if fault:
            raise corrupt(fault, index)
        pair = (name_of(key, key_size, known, names), bytes_or_none(value, value_size))
        Py_INCREF(pair)
        PyTuple_SET_ITEM(headers, i, pair)
    if p != entry.end:
        raise corrupt(RECORD_LENGTH_MISMATCH, index)
    return headers


cdef int decode_into(list records, const uint8_t* p, Py_ssize_t size, BatchHeader header,
                     int64_t start_offset, int64_t end_offset, ConsumerRecord source) except -1:
    """Append the records of a batch that lie in [start_offset, end_offset), as `Record` objects, or as those
    of a consumer whose topic and partition `source` names.
    """
    cdef const uint8_t* end = p + size
    cdef bint append_time = (header.attributes & TIMESTAMP_TYPE_BIT) != 0
    cdef Entry entry
    cdef Fault fault
    cdef Py_ssize_t i
    cdef int64_t offset
    cdef int64_t timestamp
    cdef tuple headers
    cdef Name[KNOWN_NAMES] known
    cdef list names = []
    memset(known, 0, sizeof(known))
    if header.count < 0 or header.count > size // MIN_ENTRY_BYTES:
        raise corrupt(BAD_COUNT, 0)
    for i in range(header.count):
        if p == end:
            raise corrupt(RECORDS_MISSING, i)
        fault = read_entry(&p, end, &entry)
        if fault:
            raise corrupt(fault, i)
        offset = wrapping_add(header.base_offset, entry.offset_delta)
        if offset < start_offset or offset >= end_offset:
            continue
        timestamp = (
            header.max_timestamp if append_time
            else wrapping_add(header.base_timestamp, entry.timestamp_delta)
        )
        headers = headers_of(&entry, i, known, names) if entry.header_count else ()
        if source is None:
            records.append(plain_record(&entry, header, offset, timestamp, headers))
        else:
            records.append(consumer_record(&entry, header, offset, timestamp, headers, source))
    if p != end:
        raise corrupt(TRAILING_BYTES, header.count)
    return 0


cdef inline Record plain_record(Entry* entry, BatchHeader header, int64_t offset, int64_t timestamp,
                                tuple headers):
    cdef Record record = Record.__new__(Record)
    record.offset = offset
    record.timestamp = timestamp
    record.key = bytes_or_none(entry.key, entry.key_size)
    record.value = bytes_or_none(entry.value, entry.value_size)
    record.headers = headers
    if header.base_sequence >= 0:
        record.sequence = sequence_at(header.base_sequence, entry.offset_delta)
    else:
        record.sequence = -1
    return record


cdef inline ConsumerRecord consumer_record(Entry* entry, BatchHeader header, int64_t offset,
                                           int64_t timestamp, tuple headers, ConsumerRecord source):
    cdef ConsumerRecord record = ConsumerRecord.__new__(ConsumerRecord)
    record.topic = source.topic
    record.partition = source.partition
    record.offset = offset
    record.timestamp = timestamp
    record.timestamp_type = 1 if header.attributes & TIMESTAMP_TYPE_BIT else 0
    record.leader_epoch = header.leader_epoch
    record.key = bytes_or_none(entry.key, entry.key_size)
    record.value = bytes_or_none(entry.value, entry.value_size)
    record.headers = headers
    return record


def decode_records(payload, BatchHeader header not None):
    """All records of a batch; `payload` is what follows its header, decompressed."""
    cdef Py_buffer view
    cdef list records = []
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        decode_into(records, <const uint8_t*> view.buf, view.len, header, INT64_MIN, INT64_MAX, None)
    finally:
        PyBuffer_Release(&view)
    return records


cdef inline bint is_alone(const uint8_t* p, Py_ssize_t left, int64_t least_offset, int32_t least_epoch) noexcept nogil:
    """Whether what contradicts the batch before it is no batch, or what follows it goes on behind that one."""
    cdef Py_ssize_t size
    if left < 17 or p[16] != 2 or get32(p + 8) < HEADER_BYTES - OVERHEAD_BYTES:
        return True
    size = OVERHEAD_BYTES + <Py_ssize_t> get32(p + 8)
    return (
        size <= left - 17
        and p[size + 16] == 2
        and get64(p + size) >= least_offset
        and get32(p + size + 12) >= least_epoch
    )


def check_batches(buf, crc32c, int64_t least_offset, int64_t end_offset, int32_t least_epoch,
                  int32_t greatest_epoch):
    """Check the whole batches that `buf` begins with, up to one at `end_offset` or above: their checksums, and
    what no checksum covers, that offsets rise, and leader epochs do not fall and are at most `greatest_epoch`.
    Return where the sound ones end, the offset behind them, and what is wrong with what follows; None if nothing
    is, as where `buf` ends inside a batch.

    Of two batches that contradict each other the second is taken for the damaged one if the first one goes on
    where its own predecessor ended; the first if the second would go on there; else the second if what is behind
    it goes on behind the first.
    """
    cdef Py_buffer view
    cdef Py_ssize_t end
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        fault = find_fault(<const uint8_t*> view.buf, view.len, crc32c, &least_offset, end_offset, least_epoch,
                           greatest_epoch, &end)
    finally:
        PyBuffer_Release(&view)
    return end, least_offset, fault


cdef object find_fault(const uint8_t* data, Py_ssize_t data_size, crc32c, int64_t* next_offset, int64_t end_offset,
                       int32_t least_epoch, int32_t greatest_epoch, Py_ssize_t* end):
    """As `check_batches`; `next_offset` is the least offset first, and then the one behind the sound batches."""
    cdef const uint8_t* p
    cdef Py_ssize_t pos = 0
    cdef Py_ssize_t previous = 0
    cdef Py_ssize_t left, size
    cdef int64_t base_offset
    cdef int64_t least_offset = next_offset[0]
    cdef int64_t previous_offset = least_offset
    cdef int64_t previous_base = least_offset
    cdef int32_t previous_epoch = least_epoch
    cdef int32_t epoch, delta
    cdef bint offset_follows = True
    cdef bint epoch_follows = True
    cdef object fault = None
    while data_size - pos >= 8:
        p = data + pos
        left = data_size - pos
        base_offset = get64(p)
        if base_offset < least_offset:
            fault = f"a batch at offset {base_offset}, below {least_offset}, where the one before it ends"
            if not offset_follows and (
                base_offset - previous_offset == least_offset - previous_base
                or not is_alone(p, left, least_offset, least_epoch)
            ):
                pos, least_offset = previous, previous_offset
            break
        if left < 17:
            break
        if base_offset >= end_offset:
            break
        epoch = get32(p + 12)
        if epoch < least_epoch:
            fault = f"a batch of leader epoch {epoch} behind one of {least_epoch}"
            if not epoch_follows and (
                epoch == previous_epoch or not is_alone(p, left, least_offset, least_epoch)
            ):
                pos, least_offset = previous, previous_offset
            break
        if epoch > greatest_epoch:
            fault = f"a batch of leader epoch {epoch} among those of {greatest_epoch}"
            break
        if p[16] != 2:
            fault = f"a batch of magic {<int8_t> p[16]}"
            break
        if get32(p + 8) < HEADER_BYTES - OVERHEAD_BYTES:
            fault = f"a batch of length {get32(p + 8)}"
            break
        size = OVERHEAD_BYTES + <Py_ssize_t> get32(p + 8)
        if size > left:
            break
        delta = get32(p + 23)
        if (delta < 0 or base_offset > INT64_MAX - delta - 1
                or crc32c(PyMemoryView_FromMemory(<char*> p + CRC_START, size - CRC_START, PyBUF_READ))
                != <uint32_t> get32(p + 17)):
            fault = f"the batch at offset {base_offset} does not have the checksum that it declares"
            break
        offset_follows = base_offset == least_offset
        epoch_follows = epoch == least_epoch
        previous, previous_offset, previous_base, previous_epoch = pos, least_offset, base_offset, least_epoch
        least_offset = base_offset + delta + 1
        least_epoch = epoch
        pos += size
    end[0] = pos
    next_offset[0] = least_offset
    return fault

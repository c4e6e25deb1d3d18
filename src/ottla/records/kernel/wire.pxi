# Bytes: big-endian integers, varints, one record of a batch, and memory that is handed out as a Python buffer.

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.types import Codec, TimestampType

# Attribute, both deltas, both lengths and the header count take one byte each at least, as does the length itself.
cdef enum:
    MIN_ENTRY_BYTES = 7
    HEADER_BYTES = 61
    OVERHEAD_BYTES = 12
    KEPT_SLACK_BYTES = 65536
    MAX_DELTA_GROWTH = 9 + 4 + 4    # timestamp delta, offset delta and record length from shortest to longest

cdef enum Fault:
    SOUND = 0
    TRUNCATED_VARINT = 1
    LONG_VARINT = 2
    RECORD_BEYOND_PAYLOAD = 3
    FIELD_BEYOND_RECORD = 4
    BAD_HEADER_COUNT = 5
    NULL_HEADER_KEY = 6
    RECORD_LENGTH_MISMATCH = 7
    RECORDS_MISSING = 8
    TRAILING_BYTES = 9
    BAD_COUNT = 10

cdef tuple FAULTS = (
    "the record is sound",
    "the payload ends inside of a length",
    "a variable-length integer is longer than its type allows",
    "a record's length reaches beyond the end of the batch",
    "a field's length reaches beyond the end of its record",
    "the number of headers is negative or more than the record can hold",
    "a header has no key",
    "a record's fields do not add up to its length",
    "the batch ends before the number of records that it declares",
    "bytes remain after the last record of the batch",
    "the batch declares a number of records that its size cannot hold",
)


cdef inline int16_t get16(const uint8_t* p) noexcept nogil:
    return <int16_t> ((<uint16_t> p[0] << 8) | p[1])


cdef inline int32_t get32(const uint8_t* p) noexcept nogil:
    return <int32_t> ((<uint32_t> p[0] << 24) | (<uint32_t> p[1] << 16) | (<uint32_t> p[2] << 8) | p[3])


cdef inline int64_t get64(const uint8_t* p) noexcept nogil:
    return <int64_t> ((<uint64_t> <uint32_t> get32(p) << 32) | <uint32_t> get32(p + 4))


cdef inline int64_t wrapping_add(int64_t a, int64_t b) noexcept nogil:
    return <int64_t> (<uint64_t> a + <uint64_t> b)


cdef inline int64_t wrapping_sub(int64_t a, int64_t b) noexcept nogil:
    return <int64_t> (<uint64_t> a - <uint64_t> b)


cdef inline Fault read_varint(const uint8_t** at, const uint8_t* end, int32_t* out) noexcept nogil:
    cdef const uint8_t* p = at[0]
    cdef uint32_t raw
    cdef uint32_t byte
    cdef int shift
    if p >= end:
        return TRUNCATED_VARINT
    raw = p[0]
    p += 1
    if raw & 0x80:
        raw &= 0x7F
        shift = 7
        while True:
            if p >= end:
                return TRUNCATED_VARINT
            byte = p[0]
            p += 1
            raw |= (byte & 0x7F) << shift
            if not byte & 0x80:
                break
            shift += 7
            if shift > 28:
                return LONG_VARINT
    at[0] = p
    out[0] = <int32_t> ((raw >> 1) ^ (~(raw & 1) + 1))
    return SOUND


cdef inline Fault read_varlong(const uint8_t** at, const uint8_t* end, int64_t* out) noexcept nogil:
    cdef const uint8_t* p = at[0]
    cdef uint64_t raw
    cdef uint64_t byte
    cdef int shift
    if p >= end:
        return TRUNCATED_VARINT
    raw = p[0]
    p += 1
    if raw & 0x80:
        raw &= 0x7F
        shift = 7
        while True:
            if p >= end:
                return TRUNCATED_VARINT
            byte = p[0]
            p += 1
            raw |= (byte & 0x7F) << shift
            if not byte & 0x80:
                break
            shift += 7
            if shift > 63:
                return LONG_VARINT
    at[0] = p
    out[0] = <int64_t> ((raw >> 1) ^ (~(raw & 1) + 1))
    return SOUND


cdef struct Entry:
    const uint8_t* start            # its length prefix
    const uint8_t* body             # its attributes, behind the length prefix
    const uint8_t* end              # one past its last byte
    const uint8_t* key
    const uint8_t* value
    const uint8_t* after_offset     # the key's length: what comes before depends on the batch, what follows does not
    const uint8_t* headers          # the first header
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_size                # negative: null
    int32_t value_size              # negative: null
    int32_t header_count


cdef inline Fault read_bytes(const uint8_t** at, const uint8_t* end, const uint8_t** data, int32_t* size) noexcept nogil:
    cdef Fault fault = read_varint(at, end, size)
    if fault:
        return fault
    data[0] = at[0]
    if size[0] > 0:
        if size[0] > end - at[0]:
            return FIELD_BEYOND_RECORD
        at[0] += size[0]
    return SOUND


cdef inline Fault read_entry(const uint8_t** at, const uint8_t* end, Entry* entry) noexcept nogil:
    """The record at `at`, which moves behind it. Headers are counted, not walked: see `check_headers`."""
    cdef const uint8_t* p = at[0]
    cdef int32_t length
    cdef Fault fault
    entry.start = p
    fault = read_varint(&p, end, &length)
    if fault:
        return fault
    if length < 0 or length > end - p:
        return RECORD_BEYOND_PAYLOAD
    entry.body = p
    end = p + length
    entry.end = end
    if length < MIN_ENTRY_BYTES - 1:
        return RECORD_LENGTH_MISMATCH
    p += 1
    fault = read_varlong(&p, end, &entry.timestamp_delta)
    if fault:
        return fault
    fault = read_varint(&p, end, &entry.offset_delta)
    if fault:
        return fault
    entry.after_offset = p
    fault = read_bytes(&p, end, &entry.key, &entry.key_size)
    if fault:
        return fault
    fault = read_bytes(&p, end, &entry.value, &entry.value_size)
    if fault:
        return fault
    fault = read_varint(&p, end, &entry.header_count)
    if fault:
        return fault
    if entry.header_count < 0 or entry.header_count > (end - p) >> 1:
        return BAD_HEADER_COUNT
    if entry.header_count == 0 and p != end:
        return RECORD_LENGTH_MISMATCH
    entry.headers = p
    at[0] = end
    return SOUND


cdef inline Fault read_header(const uint8_t** at, const uint8_t* end, const uint8_t** key, int32_t* key_size,
                              const uint8_t** value, int32_t* value_size) noexcept nogil:
    cdef Fault fault = read_bytes(at, end, key, key_size)
    if fault:
        return fault
    if key_size[0] < 0:
        return NULL_HEADER_KEY
    return read_bytes(at, end, value, value_size)


cdef inline Fault check_headers(Entry* entry) noexcept nogil:
    cdef const uint8_t* p = entry.headers
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef int32_t key_size
    cdef int32_t value_size
    cdef int32_t i
    cdef Fault fault
    for i in range(entry.header_count):
        fault = read_header(&p, entry.end, &key, &key_size, &value, &value_size)
        if fault:
            return fault
    return SOUND if p == entry.end else RECORD_LENGTH_MISMATCH


cdef object corrupt(Fault fault, Py_ssize_t index):
    """The error a reader raises for bad bytes in record number `index` of a batch."""
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"record {index} of the batch: {FAULTS[<int> fault]}")


cdef class Block:
    """Plain memory that Python sees as a writable buffer; it grows by `reserve` while nobody looks at it.

    Fresh memory is not touched, so a generous block costs address space and not pages. `len()` is what was filled.
    """

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef int exports

    def __cinit__(self, Py_ssize_t capacity=0, Py_ssize_t size=0):
        if capacity < size:
            capacity = size
        self.data = <uint8_t*> PyMem_RawMalloc(capacity if capacity > 0 else 1)
        if self.data == NULL:
            raise MemoryError(f"no memory for a buffer of {capacity} bytes")
        self.capacity = capacity
        self.size = size

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1

    cdef int reserve(self, Py_ssize_t extra) except -1 nogil:
        """Room for `extra` more bytes; fails without a change."""
        cdef Py_ssize_t wanted = self.size + extra
        cdef uint8_t* grown
        if wanted <= self.capacity:
            return 0
        if self.exports:
            with gil:
                raise BufferError("a buffer cannot grow while views of it exist")
        if wanted < self.capacity * 2:
            wanted = self.capacity * 2
        grown = <uint8_t*> PyMem_RawRealloc(self.data, wanted)
        if grown == NULL:
            with gil:
                raise MemoryError(f"no memory to grow a buffer to {wanted} bytes")
        self.data = grown
        self.capacity = wanted
        return 0

    def shrink(self, Py_ssize_t size):
        """Keep the first `size` bytes and give the rest of the memory back."""
        cdef uint8_t* shrunk
        if not 0 <= size <= self.size:
            raise ValueError(f"size {size} is not within 0..{self.size}")
        if self.exports:
            raise BufferError("a buffer cannot shrink while views of it exist")
        self.size = size
        if self.capacity - size > KEPT_SLACK_BYTES:
            shrunk = <uint8_t*> PyMem_RawRealloc(self.data, size if size else 1)
            if shrunk != NULL:
                self.data = shrunk
                self.capacity = size

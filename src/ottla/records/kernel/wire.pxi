# Bytes on the wire: big-endian integers, varints, and one record of a batch.

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef extern from *:
    bint likely(bint condition) nogil
    bint unlikely(bint condition) nogil

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.types import FIRST_BROKER_PRODUCER_ID, Codec, TimestampType

cdef enum:
    MIN_ENTRY_BYTES = 7             # length, attributes, two deltas, two lengths, header count: a byte each
    HEADER_BYTES = 61
    OVERHEAD_BYTES = 12
    CRC_START = 21                  # the attributes, the first that the checksum covers
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


cdef inline void put32(uint8_t* p, int32_t value) noexcept nogil:
    cdef uint32_t bits = <uint32_t> value
    p[0], p[1], p[2], p[3] = bits >> 24, (bits >> 16) & 0xFF, (bits >> 8) & 0xFF, bits & 0xFF


cdef inline void put64(uint8_t* p, int64_t value) noexcept nogil:
    put32(p, <int32_t> (<uint64_t> value >> 32))
    put32(p + 4, <int32_t> value)


cdef inline int64_t wrapping_add(int64_t a, int64_t b) noexcept nogil:
    return <int64_t> (<uint64_t> a + <uint64_t> b)


cdef inline int64_t wrapping_sub(int64_t a, int64_t b) noexcept nogil:
    return <int64_t> (<uint64_t> a - <uint64_t> b)


cdef Fault read_long_varint(const uint8_t** at, const uint8_t* end, int max_shift,
                            uint64_t* out) noexcept nogil:
    """A varint of any length, before zigzag. `max_shift` is that of the last byte its type can have."""
    cdef const uint8_t* p = at[0]
    cdef uint64_t raw = 0
    cdef int shift = 0
    while True:
        if p >= end:
            return TRUNCATED_VARINT
        raw |= (<uint64_t> (p[0] & 0x7F)) << shift
        if not p[0] & 0x80:
            at[0] = p + 1
            out[0] = raw
            return SOUND
        p += 1
        shift += 7
        if shift > max_shift:
            return LONG_VARINT


cdef inline Fault read_raw(const uint8_t** at, const uint8_t* end, int max_shift,
                           uint64_t* out) noexcept nogil:
    """As `read_long_varint`, quick for one byte and two, which nearly all have."""
    cdef const uint8_t* p = at[0]
    if likely(end - p >= 2):
        if likely(p[0] < 0x80):
            out[0] = p[0]
            at[0] = p + 1
            return SOUND
        if likely(p[1] < 0x80):
            out[0] = (p[0] & 0x7F) | (<uint64_t> p[1] << 7)
            at[0] = p + 2
            return SOUND
    return read_long_varint(at, end, max_shift, out)


cdef inline Fault read_varint(const uint8_t** at, const uint8_t* end, int32_t* out) noexcept nogil:
    cdef uint64_t raw = 0
    cdef Fault fault = read_raw(at, end, 28, &raw)
    # A fifth byte may carry more than 32 bits; as in Java, they are lost.
    out[0] = <int32_t> ((<uint32_t> raw >> 1) ^ (~(<uint32_t> raw & 1) + 1))
    return fault


cdef inline Fault read_varlong(const uint8_t** at, const uint8_t* end, int64_t* out) noexcept nogil:
    cdef uint64_t raw = 0
    cdef Fault fault = read_raw(at, end, 63, &raw)
    out[0] = <int64_t> ((raw >> 1) ^ (~(raw & 1) + 1))
    return fault


cdef struct Entry:
    const uint8_t* start            # its length prefix
    const uint8_t* body             # its attributes, behind the length prefix
    const uint8_t* end              # one past its last byte
    const uint8_t* key
    const uint8_t* value
    const uint8_t* after_offset     # the key's length, from where on nothing depends on the batch
    const uint8_t* headers          # the first header
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_size                # negative: null
    int32_t value_size              # negative: null
    int32_t header_count


cdef inline Fault read_bytes(const uint8_t** at, const uint8_t* end, const uint8_t** data,
                             int32_t* size) noexcept nogil:
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
    if unlikely(fault):
        return fault
    if unlikely(length < 0 or length > end - p):
        return RECORD_BEYOND_PAYLOAD
    entry.body = p
    end = p + length
    entry.end = end
    if unlikely(length < MIN_ENTRY_BYTES - 1):
        return RECORD_LENGTH_MISMATCH
    p += 1
    fault = read_varlong(&p, end, &entry.timestamp_delta)
    if unlikely(fault):
        return fault
    fault = read_varint(&p, end, &entry.offset_delta)
    if unlikely(fault):
        return fault
    entry.after_offset = p
    fault = read_bytes(&p, end, &entry.key, &entry.key_size)
    if unlikely(fault):
        return fault
    fault = read_bytes(&p, end, &entry.value, &entry.value_size)
    if unlikely(fault):
        return fault
    if likely(end - p == 1 and p[0] == 0):
        entry.header_count = 0
        entry.headers = end
    else:
        fault = read_varint(&p, end, &entry.header_count)
        if unlikely(fault):
            return fault
        if unlikely(entry.header_count < 0 or entry.header_count > (end - p) >> 1):
            return BAD_HEADER_COUNT
        if unlikely(entry.header_count == 0 and p != end):
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

# Records into columns in Arrow's memory layout, without Arrow.

cdef class BinaryColumn:
    """Byte strings as Arrow lays them out: offsets, data, and a bit per row that is 0 where it is null."""

    cdef Block offset_block
    cdef Block data_block
    cdef Block valid_block
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t null_count

    def __cinit__(self):
        self.offset_block = Block(4096)
        self.data_block = Block(4096)
        self.valid_block = Block(512)
        (<int32_t*> self.offset_block.data)[0] = 0
        self.offset_block.size = sizeof(int32_t)

    def buffers(self):
        """Validity, offsets and data; validity is None where nothing is null."""
        return self.valid_block if self.null_count else None, self.offset_block, self.data_block

    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t size) except -1:
        if self.data_block.size + size > INT32_MAX:
            raise OverflowError("a column cannot hold more than 2 GiB; decode fewer records at once")
        self.offset_block.reserve(rows * sizeof(int32_t))
        self.data_block.reserve(size)
        reserve_valid(self.valid_block, self.rows + rows)
        return 0

    cdef inline void put(self, const uint8_t* data, int32_t size) noexcept nogil:
        cdef Py_ssize_t end = self.data_block.size
        if size > 0:
            memcpy(self.data_block.data + end, data, size)
            end += size
            self.data_block.size = end
        elif size < 0:
            clear_bit(self.valid_block, self.rows)
            self.null_count += 1
        (<int32_t*> (self.offset_block.data + self.offset_block.size))[0] = <int32_t> end
        self.offset_block.size += sizeof(int32_t)
        self.rows += 1


cdef inline int reserve_valid(Block block, Py_ssize_t rows) except -1:
    """Bits for `rows` rows, new ones set: only a null has to touch its bit."""
    cdef Py_ssize_t size = (rows + 7) >> 3
    if size > block.size:
        block.reserve(size - block.size)
        memset(block.data + block.size, 0xFF, size - block.size)
        block.size = size
    return 0


cdef inline void clear_bit(Block block, Py_ssize_t row) noexcept nogil:
    block.data[row >> 3] &= <uint8_t> ~(1 << (row & 7))


cdef inline void put_int32(Block block, int32_t number) noexcept nogil:
    (<int32_t*> (block.data + block.size))[0] = number
    block.size += sizeof(int32_t)


cdef inline void put_int64(Block block, int64_t number) noexcept nogil:
    (<int64_t*> (block.data + block.size))[0] = number
    block.size += sizeof(int64_t)


cdef enum Wanted:
    WANT_KEY = 1
    WANT_VALUE = 2
    WANT_HEADERS = 4
    WANT_OFFSET = 8
    WANT_TIMESTAMP = 16
    WANT_TIMESTAMP_TYPE = 32

COLUMNS = {
    "key": <int> WANT_KEY,
    "value": <int> WANT_VALUE,
    "headers": <int> WANT_HEADERS,
    "offset": <int> WANT_OFFSET,
    "timestamp": <int> WANT_TIMESTAMP,
    "timestampType": <int> WANT_TIMESTAMP_TYPE,
}


@cython.final
cdef class Columns:
    """Records as columns, of which only the wanted ones are filled."""

    cdef int wanted
    cdef readonly Py_ssize_t rows
    cdef readonly BinaryColumn key
    cdef readonly BinaryColumn value
    cdef readonly Block offset
    cdef readonly Block timestamp
    cdef readonly Block timestamp_type
    cdef readonly Block header_offsets
    cdef readonly Block header_valid
    cdef readonly Py_ssize_t rows_without_headers
    cdef readonly BinaryColumn header_key
    cdef readonly BinaryColumn header_value

    def __cinit__(self, int wanted):
        self.wanted = wanted
        self.key = BinaryColumn()
        self.value = BinaryColumn()
        self.offset = Block(4096)
        self.timestamp = Block(4096)
        self.timestamp_type = Block(4096)
        self.header_offsets = Block(4096)
        self.header_valid = Block(512)
        self.header_key = BinaryColumn()
        self.header_value = BinaryColumn()
        put_int32(self.header_offsets, 0)

    @property
    def nbytes(self):
        """Bytes of keys, values and headers so far."""
        return (
            self.key.data_block.size
            + self.value.data_block.size
            + self.header_key.data_block.size
            + self.header_value.data_block.size
        )

    cdef int add(self, const uint8_t* p, Py_ssize_t size, BatchHeader header, int64_t start_offset,
                 int64_t end_offset) except -1:
        """Append the records of a batch that lie in [start_offset, end_offset)."""
        cdef Py_ssize_t index = 0
        cdef Fault fault
        if header.count < 0 or header.count > size // MIN_ENTRY_BYTES:
            raise corrupt(BAD_COUNT, 0)
        # All that this batch can add fits from here on, so that the walk below need not look.
        if self.wanted & WANT_KEY:
            self.key.reserve(header.count, size)
        if self.wanted & WANT_VALUE:
            self.value.reserve(header.count, size)
        if self.wanted & WANT_OFFSET:
            self.offset.reserve(header.count * sizeof(int64_t))
        if self.wanted & WANT_TIMESTAMP:
            self.timestamp.reserve(header.count * sizeof(int64_t))
        if self.wanted & WANT_TIMESTAMP_TYPE:
            self.timestamp_type.reserve(header.count * sizeof(int32_t))
        if self.wanted & WANT_HEADERS:
            self.header_offsets.reserve(header.count * sizeof(int32_t))
            reserve_valid(self.header_valid, self.rows + header.count)
        with nogil:
            fault = self.walk(p, size, header, start_offset, end_offset, &index)
        if fault:
            raise corrupt(fault, index)
        return 0

    cdef Fault walk(self, const uint8_t* p, Py_ssize_t size, BatchHeader header, int64_t start_offset,
                    int64_t end_offset, Py_ssize_t* index) except? RECORDS_MISSING nogil:
        cdef const uint8_t* end = p + size
        cdef bint append_time = (header.attributes & TIMESTAMP_TYPE_BIT) != 0
        cdef int wanted = self.wanted
        cdef int32_t count = header.count
        cdef int64_t base_offset = header.base_offset
        cdef int64_t base_timestamp = header.base_timestamp
        cdef int64_t append_timestamp = header.max_timestamp
        cdef int64_t offset
        cdef Entry entry
        cdef Fault fault
        cdef int32_t i
        for i in range(count):
            index[0] = i
            if p == end:
                return RECORDS_MISSING
            fault = read_entry(&p, end, &entry)
            if fault:
                return fault
            offset = wrapping_add(base_offset, entry.offset_delta)
            if offset < start_offset or offset >= end_offset:
                continue
            if wanted & WANT_KEY:
                self.key.put(entry.key, entry.key_size)
            if wanted & WANT_VALUE:
                self.value.put(entry.value, entry.value_size)
            if wanted & WANT_OFFSET:
                put_int64(self.offset, offset)
            if wanted & WANT_TIMESTAMP:
                put_int64(
                    self.timestamp,
                    append_timestamp if append_time else wrapping_add(base_timestamp, entry.timestamp_delta),
                )
            if wanted & WANT_TIMESTAMP_TYPE:
                put_int32(self.timestamp_type, append_time)
            if wanted & WANT_HEADERS:
                if entry.header_count:
                    with gil:
                        fault = self.put_headers(&entry)
                    if fault:
                        return fault
                else:
                    clear_bit(self.header_valid, self.rows)
                    self.rows_without_headers += 1
                put_int32(self.header_offsets, <int32_t> self.header_key.rows)
            self.rows += 1
        if p != end:
            index[0] = count
            return TRAILING_BYTES
        return SOUND

    cdef Fault put_headers(self, Entry* entry) except? RECORDS_MISSING:
        cdef const uint8_t* p = entry.headers
        cdef const uint8_t* key
        cdef const uint8_t* value
        cdef int32_t key_size
        cdef int32_t value_size
        cdef int32_t i
        cdef Fault fault
        cdef bytes repaired
        self.header_key.reserve(entry.header_count, entry.end - p)
        self.header_value.reserve(entry.header_count, entry.end - p)
        for i in range(entry.header_count):
            fault = read_header(&p, entry.end, &key, &key_size, &value, &value_size)
            if fault:
                return fault
            if is_ascii(key, key_size):
                self.header_key.put(key, key_size)
            else:
                # Arrow's text must be UTF-8; what is not is replaced, as Kafka's clients do.
                repaired = PyUnicode_DecodeUTF8(<const char*> key, key_size, "replace").encode()
                self.header_key.reserve(1, PyBytes_GET_SIZE(repaired))
                self.header_key.put(<const uint8_t*> PyBytes_AS_STRING(repaired), <int32_t> PyBytes_GET_SIZE(repaired))
            self.header_value.put(value, value_size)
        return SOUND if p == entry.end else RECORD_LENGTH_MISMATCH


cdef inline bint is_ascii(const uint8_t* data, int32_t size) noexcept nogil:
    cdef uint8_t seen = 0
    cdef int32_t i
    for i in range(size):
        seen |= data[i]
    return seen < 0x80

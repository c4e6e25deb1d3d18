# Records into columns in Arrow's memory layout, without Arrow.

cdef enum:
    COPY_CHUNK = 32
    MAX_CHUNKED_COPY = 256
    FIRST_KEY_BYTES = 4096


cdef struct Cursor:
    uint8_t* start                  # of the column's data
    uint8_t* data                   # where the next row's content goes
    uint8_t* end                    # of what is reserved for content
    int32_t* offset                 # where the next row's end is noted
    Py_ssize_t row


cdef class BinaryColumn:
    """Byte strings as Arrow lays them out: offsets, data, and a bit per row that is 0 where it is null."""

    cdef Block offset_block
    cdef Block data_block
    cdef Block valid_block
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t null_count

    def __cinit__(self, Py_ssize_t rows=0, Py_ssize_t size=0):
        self.offset_block = Block((rows + 1) * sizeof(int32_t), recycled=True)
        self.data_block = Block(size, recycled=True)
        self.valid_block = Block((rows + 7) >> 3)
        self.offset_block.reserve(sizeof(int32_t))
        put_int32(self.offset_block, 0)

    def buffers(self):
        """Validity, offsets and data; validity is None where nothing is null."""
        return self.valid_block if self.null_count else None, self.offset_block, self.data_block

    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t size) except -1 nogil:
        if self.data_block.size + size > INT32_MAX:
            with gil:
                raise OverflowError("a column cannot hold more than 2 GiB; decode fewer records at once")
        self.offset_block.reserve(rows * sizeof(int32_t))
        self.data_block.reserve(size + COPY_CHUNK)
        reserve_bits(self.valid_block, self.rows + rows, 0xFF)
        return 0

    cdef Cursor open(self) noexcept nogil:
        """A cursor to the place of the next rows, which owns the column until `close`."""
        cdef Cursor cursor
        cursor.start = self.data_block.data
        cursor.data = self.data_block.data + self.data_block.size
        cursor.end = self.data_block.data + self.data_block.capacity
        cursor.offset = <int32_t*> (self.offset_block.data + self.offset_block.size)
        cursor.row = self.rows
        return cursor

    cdef void close(self, Cursor* cursor) noexcept nogil:
        self.data_block.size = cursor.data - cursor.start
        self.offset_block.size = <uint8_t*> cursor.offset - self.offset_block.data
        self.rows = cursor.row

    cdef int make_room(self, Cursor* cursor, Py_ssize_t size) except -1 nogil:
        """Reserve room for the content of one more row, for columns whose whole size is not known before."""
        self.close(cursor)
        self.reserve(0, size)
        cursor[0] = self.open()
        return 0

    cdef void put_null(self, Py_ssize_t row) noexcept nogil:
        clear_bit(self.valid_block, row)
        self.null_count += 1

    cdef void put(self, const uint8_t* data, int32_t size) noexcept nogil:
        cdef Cursor cursor = self.open()
        put_row(&cursor, self, data, size, data + size)
        self.close(&cursor)


cdef inline void put_row(Cursor* cursor, BinaryColumn column, const uint8_t* data, int32_t size,
                         const uint8_t* readable_end) noexcept nogil:
    """Add a row; `readable_end` is how far `data` may be read, which may be beyond its own end."""
    cdef Py_ssize_t at
    if size >= 0:
        if readable_end - data >= <Py_ssize_t> size + COPY_CHUNK and size <= MAX_CHUNKED_COPY:
            # Whole chunks of a fixed size are faster than a call for each short string; the block has room
            # for the excess, and what it leaves behind is overwritten by the next row.
            at = 0
            while at < size:
                memcpy(cursor.data + at, data + at, COPY_CHUNK)
                at += COPY_CHUNK
        else:
            memcpy(cursor.data, data, size)
        cursor.data += size
    else:
        column.put_null(cursor.row)
    cursor.offset[0] = <int32_t> (cursor.data - cursor.start)
    cursor.offset += 1
    cursor.row += 1


cdef inline int reserve_bits(Block block, Py_ssize_t rows, int fill) except -1 nogil:
    """Bits for `rows` rows; new ones are what most are expected to be, so that few rows touch theirs."""
    cdef Py_ssize_t size = (rows + 7) >> 3
    if size > block.size:
        block.reserve(size - block.size)
        memset(block.data + block.size, fill, size - block.size)
        block.size = size
    return 0


cdef inline void set_bit(Block block, Py_ssize_t row) noexcept nogil:
    block.data[row >> 3] |= <uint8_t> (1 << (row & 7))


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
    """Records as columns, of which only the wanted ones are filled.

    What is expected to come is only a hint that saves growing.
    """

    cdef int wanted
    cdef readonly Py_ssize_t rows
    cdef readonly BinaryColumn key
    cdef readonly BinaryColumn value
    cdef readonly Block offset
    cdef readonly Block timestamp
    cdef readonly Block timestamp_type
    cdef readonly Block header_offsets
    cdef readonly Block header_valid
    cdef readonly Py_ssize_t rows_with_headers
    cdef readonly BinaryColumn header_key
    cdef readonly BinaryColumn header_value

    def __cinit__(self, int wanted, *, Py_ssize_t rows=0, Py_ssize_t key_bytes=0, Py_ssize_t value_bytes=0):
        self.wanted = wanted
        self.value = BinaryColumn(rows, value_bytes) if wanted & WANT_VALUE else BinaryColumn()
        self.key = BinaryColumn(rows, key_bytes) if wanted & WANT_KEY else BinaryColumn()
        self.offset = Block(rows * sizeof(int64_t) if wanted & WANT_OFFSET else 0, recycled=True)
        self.timestamp = Block(rows * sizeof(int64_t) if wanted & WANT_TIMESTAMP else 0, recycled=True)
        self.timestamp_type = Block(
            rows * sizeof(int32_t) if wanted & WANT_TIMESTAMP_TYPE else 0, recycled=True
        )
        self.header_offsets = Block(rows * sizeof(int32_t) if wanted & WANT_HEADERS else 0, recycled=True)
        self.header_valid = Block((rows + 7) >> 3 if wanted & WANT_HEADERS else 0)
        self.header_key = BinaryColumn()
        self.header_value = BinaryColumn()
        self.header_offsets.reserve(sizeof(int32_t))
        put_int32(self.header_offsets, 0)

    def renewed(self):
        """Empty columns of the same kind that expect a little more than these hold."""
        return Columns(
            self.wanted,
            rows=self.rows + self.rows // 4,
            key_bytes=self.key.data_block.size + self.key.data_block.size // 4,
            value_bytes=self.value.data_block.size + self.value.data_block.size // 4,
        )

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
            # Keys are small beside what they come with, or null: room for their bytes is made as they come.
            self.key.reserve(header.count, min(size, FIRST_KEY_BYTES))
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
            reserve_bits(self.header_valid, self.rows + header.count, 0)
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
        cdef Cursor key = self.key.open()
        cdef Cursor value = self.value.open()
        cdef int64_t* offsets = <int64_t*> (self.offset.data + self.offset.size)
        cdef int64_t* timestamps = <int64_t*> (self.timestamp.data + self.timestamp.size)
        cdef int32_t* types = <int32_t*> (self.timestamp_type.data + self.timestamp_type.size)
        cdef int32_t* header_offsets = <int32_t*> (self.header_offsets.data + self.header_offsets.size)
        cdef Py_ssize_t row = 0
        cdef Entry entry
        cdef Fault fault = SOUND
        cdef int32_t i
        for i in range(count):
            fault = read_entry(&p, end, &entry) if p != end else RECORDS_MISSING
            if fault:
                index[0] = i
                return fault
            offset = wrapping_add(base_offset, entry.offset_delta)
            if offset < start_offset or offset >= end_offset:
                continue
            if wanted & WANT_KEY:
                if key.end - key.data < <Py_ssize_t> entry.key_size + COPY_CHUNK:
                    self.key.make_room(&key, entry.key_size)
                put_row(&key, self.key, entry.key, entry.key_size, end)
            if wanted & WANT_VALUE:
                put_row(&value, self.value, entry.value, entry.value_size, end)
            if wanted & WANT_OFFSET:
                offsets[row] = offset
            if wanted & WANT_TIMESTAMP:
                timestamps[row] = (
                    append_timestamp if append_time else wrapping_add(base_timestamp, entry.timestamp_delta)
                )
            if wanted & WANT_TIMESTAMP_TYPE:
                types[row] = append_time
            if wanted & WANT_HEADERS:
                if entry.header_count:
                    fault = self.put_headers(&entry, self.rows + row)
                    if fault:
                        index[0] = i
                        return fault
                header_offsets[row] = <int32_t> self.header_key.rows
            row += 1
        if p != end:
            index[0] = count
            return TRAILING_BYTES
        self.rows += row
        self.key.close(&key)
        self.value.close(&value)
        if wanted & WANT_OFFSET:
            self.offset.size += row * sizeof(int64_t)
        if wanted & WANT_TIMESTAMP:
            self.timestamp.size += row * sizeof(int64_t)
        if wanted & WANT_TIMESTAMP_TYPE:
            self.timestamp_type.size += row * sizeof(int32_t)
        if wanted & WANT_HEADERS:
            self.header_offsets.size += row * sizeof(int32_t)
        return SOUND

    cdef Fault put_headers(self, Entry* entry, Py_ssize_t row) except? RECORDS_MISSING nogil:
        cdef const uint8_t* p = entry.headers
        cdef const uint8_t* key
        cdef const uint8_t* value
        cdef int32_t key_size
        cdef int32_t value_size
        cdef int32_t i
        cdef Fault fault
        set_bit(self.header_valid, row)
        self.rows_with_headers += 1
        self.header_key.reserve(entry.header_count, entry.end - p)
        self.header_value.reserve(entry.header_count, entry.end - p)
        for i in range(entry.header_count):
            fault = read_header(&p, entry.end, &key, &key_size, &value, &value_size)
            if fault:
                return fault
            if is_ascii(key, key_size):
                self.header_key.put(key, key_size)
            else:
                with gil:
                    self.put_repaired(key, key_size, entry.end - p)
            self.header_value.put(value, value_size)
        return SOUND if p == entry.end else RECORD_LENGTH_MISMATCH

    cdef int put_repaired(self, const uint8_t* key, int32_t key_size, Py_ssize_t others) except -1:
        """Arrow's text must be UTF-8; what is not is replaced, as Kafka's clients do, and may grow."""
        cdef bytes text = PyUnicode_DecodeUTF8(<const char*> key, key_size, "replace").encode()
        self.header_key.reserve(1, PyBytes_GET_SIZE(text) + others)
        self.header_key.put(<const uint8_t*> PyBytes_AS_STRING(text), <int32_t> PyBytes_GET_SIZE(text))
        return 0


cdef inline bint is_ascii(const uint8_t* data, int32_t size) noexcept nogil:
    cdef uint8_t seen = 0
    cdef int32_t i
    for i in range(size):
        seen |= data[i]
    return seen < 0x80

# Columns in Arrow's memory layout into records.

cdef enum:
    NOT_FITTING = -1
    NOT_ENCODABLE = -2


cdef class BinaryInput:
    """A column of byte strings as Arrow lays it out; `wide` says that its offsets have 64 bits."""

    cdef Py_buffer valid
    cdef Py_buffer offsets
    cdef Py_buffer data
    cdef bint has_valid
    cdef bint has_offsets
    cdef bint has_data
    cdef bint wide
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t rows

    def __init__(self, valid, offsets, data, *, Py_ssize_t first, Py_ssize_t rows, bint wide=False):
        cdef Py_ssize_t width = 8 if wide else 4
        self.first = first
        self.rows = rows
        self.wide = wide
        if first < 0 or rows < 0:
            raise ValueError(f"rows {first}..{first + rows} are not rows")
        if valid is not None:
            PyObject_GetBuffer(valid, &self.valid, PyBUF_SIMPLE)
            self.has_valid = True
            if self.valid.len * 8 < first + rows:
                raise ValueError("the validity of a column is shorter than the column")
        PyObject_GetBuffer(offsets, &self.offsets, PyBUF_SIMPLE)
        self.has_offsets = True
        if rows and self.offsets.len // width < first + rows + 1:
            raise ValueError("the offsets of a column are shorter than the column")
        if data is not None:
            PyObject_GetBuffer(data, &self.data, PyBUF_SIMPLE)
            self.has_data = True

    def __dealloc__(self):
        if self.has_valid:
            PyBuffer_Release(&self.valid)
        if self.has_offsets:
            PyBuffer_Release(&self.offsets)
        if self.has_data:
            PyBuffer_Release(&self.data)

    cdef inline bint is_null(self, Py_ssize_t row) noexcept nogil:
        row += self.first
        return self.has_valid and not (<const uint8_t*> self.valid.buf)[row >> 3] & (1 << (row & 7))

    cdef inline bint span(self, Py_ssize_t row, int64_t* start, int64_t* size) noexcept nogil:
        """Where a row's content lies; False if that is outside of the data."""
        cdef int64_t end
        row += self.first
        if self.wide:
            start[0] = (<const int64_t*> self.offsets.buf)[row]
            end = (<const int64_t*> self.offsets.buf)[row + 1]
        else:
            start[0] = (<const int32_t*> self.offsets.buf)[row]
            end = (<const int32_t*> self.offsets.buf)[row + 1]
        size[0] = end - start[0]
        return 0 <= start[0] <= end

    cdef inline bint get(self, Py_ssize_t row, const uint8_t** data, int64_t* size) noexcept nogil:
        cdef int64_t start
        if self.is_null(row):
            size[0] = -1
            return True
        if not self.span(row, &start, size):
            return False
        if size[0] and (not self.has_data or start + size[0] > self.data.len):
            return False
        data[0] = <const uint8_t*> self.data.buf + start if self.has_data else NULL
        return True


@cython.final
cdef class Rows:
    """Columns to be encoded row by row; any may be missing. `lists` are where each row's headers begin."""

    cdef readonly Py_ssize_t count
    cdef BinaryInput key
    cdef BinaryInput value
    cdef BinaryInput lists
    cdef BinaryInput header_key
    cdef BinaryInput header_value
    cdef Py_buffer timestamps
    cdef bint has_timestamps
    cdef int64_t default_timestamp

    def __init__(self, Py_ssize_t count, *, BinaryInput key=None, BinaryInput value=None, timestamps=None,
                 int64_t default_timestamp=-1, BinaryInput lists=None, BinaryInput header_key=None,
                 BinaryInput header_value=None):
        self.count = count
        self.key = key
        self.value = value
        self.lists = lists
        self.header_key = header_key
        self.header_value = header_value
        self.default_timestamp = default_timestamp
        for column in (key, value, lists):
            if column is not None and (<BinaryInput> column).rows < count:
                raise ValueError(f"a column has {(<BinaryInput> column).rows} rows, not {count}")
        if lists is not None and (header_key is None or header_value is None):
            raise ValueError("lists of headers need the columns of their keys and values")
        if timestamps is not None:
            PyObject_GetBuffer(timestamps, &self.timestamps, PyBUF_SIMPLE)
            self.has_timestamps = True
            if self.timestamps.len < count * <Py_ssize_t> sizeof(int64_t):
                raise ValueError("the timestamps are shorter than the other columns")

    def __dealloc__(self):
        if self.has_timestamps:
            PyBuffer_Release(&self.timestamps)

    def encode(self, Encoder encoder not None, Py_ssize_t start, Py_ssize_t limit_bytes):
        """Append rows from `start` on until the batch would exceed `limit_bytes`; returns the next row.

        The first row of a batch is taken whatever its size.
        """
        cdef Py_ssize_t row = start
        cdef int64_t taken = 1
        if start < 0:
            raise ValueError(f"row {start} is not a row")
        with nogil:
            while row < self.count:
                taken = self.encode_row(encoder, row, limit_bytes)
                if taken <= 0:
                    break
                row += 1
        if taken == NOT_ENCODABLE:
            raise ValueError(f"row {row} is not valid: its offsets leave the data, or a header has no key")
        if taken == NOT_FITTING and row == start and encoder.count == 0:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"row {row} does not fit into a batch of 2 GiB")
        return row

    cdef int64_t encode_row(self, Encoder encoder, Py_ssize_t row, Py_ssize_t limit_bytes) except -3 nogil:
        cdef const uint8_t* key = NULL
        cdef const uint8_t* value = NULL
        cdef int64_t key_size = -1
        cdef int64_t value_size = -1
        cdef int64_t header_start = 0
        cdef int64_t header_count = 0
        cdef int64_t header_bytes = 0
        cdef int64_t timestamp
        cdef int64_t timestamp_delta
        cdef int64_t length
        cdef int64_t total
        cdef int32_t delta = encoder.last_offset_delta + 1
        cdef uint8_t* p
        if self.key is not None and not self.key.get(row, &key, &key_size):
            return NOT_ENCODABLE
        if self.value is not None and not self.value.get(row, &value, &value_size):
            return NOT_ENCODABLE
        if self.lists is not None and not self.lists.is_null(row):
            if not self.lists.span(row, &header_start, &header_count):
                return NOT_ENCODABLE
            header_bytes = self.headers_size(header_start, header_count)
            if header_bytes < 0:
                return header_bytes
        timestamp = self.default_timestamp
        if self.has_timestamps:
            timestamp = (<const int64_t*> self.timestamps.buf)[row]
        timestamp_delta = wrapping_sub(timestamp, encoder.base_timestamp) if encoder.has_base_timestamp else 0
        if key_size > INT32_MAX or value_size > INT32_MAX or header_count > INT32_MAX:
            return NOT_FITTING
        length = (
            1 + varlong_size(timestamp_delta) + varint_size(delta) + field_size(key_size)
            + field_size(value_size) + varint_size(<int32_t> header_count) + header_bytes
        )
        total = 5 + length
        if encoder.block.size + total > INT32_MAX - HEADER_BYTES:
            return NOT_FITTING
        if encoder.count and HEADER_BYTES + encoder.block.size + total > limit_bytes:
            return NOT_FITTING
        encoder.block.reserve(total)
        if encoder.note(delta, timestamp) < 0:
            return NOT_FITTING
        p = put_varint(encoder.block.data + encoder.block.size, <int32_t> length)
        p[0] = 0
        p = put_varlong(p + 1, timestamp_delta)
        p = put_varint(p, delta)
        p = put_field(p, key, key_size)
        p = put_field(p, value, value_size)
        p = put_varint(p, <int32_t> header_count)
        if header_count:
            p = self.put_headers(p, header_start, header_count)
        encoder.block.size = p - encoder.block.data
        return total

    cdef int64_t headers_size(self, int64_t start, int64_t count) noexcept nogil:
        cdef const uint8_t* data = NULL
        cdef int64_t key_size
        cdef int64_t value_size
        cdef int64_t total = 0
        cdef int64_t i
        if start + count > self.header_key.rows or start + count > self.header_value.rows:
            return NOT_ENCODABLE
        for i in range(start, start + count):
            if not self.header_key.get(i, &data, &key_size) or key_size < 0:
                return NOT_ENCODABLE
            if not self.header_value.get(i, &data, &value_size):
                return NOT_ENCODABLE
            total += field_size(key_size) + field_size(value_size)
            if total > INT32_MAX:
                return NOT_FITTING
        return total

    cdef uint8_t* put_headers(self, uint8_t* p, int64_t start, int64_t count) noexcept nogil:
        cdef const uint8_t* data = NULL
        cdef int64_t size
        cdef int64_t i
        for i in range(start, start + count):
            self.header_key.get(i, &data, &size)
            p = put_field(p, data, size)
            self.header_value.get(i, &data, &size)
            p = put_field(p, data, size)
        return p

    def partitions(self, int32_t partitions):
        """One int32 for each row: the partition of its key, -1 for a row without one."""
        cdef Block out = Block(self.count * sizeof(int32_t))
        cdef const uint8_t* key = NULL
        cdef int64_t size
        cdef Py_ssize_t row
        cdef bint sound = True
        if partitions <= 0:
            raise ValueError(f"a topic has at least 1 partition, not {partitions}")
        with nogil:
            for row in range(self.count):
                size = -1
                if self.key is not None and not self.key.get(row, &key, &size):
                    sound = False
                    break
                put_int32(out, -1 if size < 0 else (murmur2_of(key, size) & INT32_MAX) % partitions)
        if not sound:
            raise ValueError(f"row {row} is not valid: its offsets leave the data")
        return out

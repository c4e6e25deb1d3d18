# Records into bytes.

cdef inline uint8_t* put_varint(uint8_t* p, int32_t number) noexcept nogil:
    cdef uint32_t raw = (<uint32_t> number << 1) ^ <uint32_t> (number >> 31)
    while raw >= 0x80:
        p[0] = <uint8_t> (raw | 0x80)
        raw >>= 7
        p += 1
    p[0] = <uint8_t> raw
    return p + 1


cdef inline uint8_t* put_varlong(uint8_t* p, int64_t number) noexcept nogil:
    cdef uint64_t raw = (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)
    while raw >= 0x80:
        p[0] = <uint8_t> (raw | 0x80)
        raw >>= 7
        p += 1
    p[0] = <uint8_t> raw
    return p + 1


cdef inline int varint_size(int32_t number) noexcept nogil:
    cdef uint32_t raw = (<uint32_t> number << 1) ^ <uint32_t> (number >> 31)
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline int varlong_size(int64_t number) noexcept nogil:
    cdef uint64_t raw = (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline uint8_t* put_bytes(uint8_t* p, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    p = put_varint(p, <int32_t> size)
    memcpy(p, data, size)
    return p + size


cdef struct Field:
    const uint8_t* data
    Py_ssize_t size             # negative: null
    bint held
    Py_buffer view


cdef inline int open_field(object source, Field* field) except -1:
    """Borrow the bytes of a key or value. The view is held only where `source` is not plain `bytes`."""
    field.held = False
    if source is None:
        field.data = NULL
        field.size = -1
    elif type(source) is bytes:
        field.data = <const uint8_t*> PyBytes_AS_STRING(source)
        field.size = PyBytes_GET_SIZE(source)
    else:
        PyObject_GetBuffer(source, &field.view, PyBUF_SIMPLE)
        field.held = True
        field.data = <const uint8_t*> field.view.buf
        field.size = field.view.len
    return 0


cdef inline void close_field(Field* field) noexcept:
    if field.held:
        PyBuffer_Release(&field.view)


cdef inline int64_t field_size(Py_ssize_t size) noexcept nogil:
    return 1 if size < 0 else varint_size(<int32_t> size) + size


cdef inline uint8_t* put_field(uint8_t* p, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    if size < 0:
        p[0] = 1
        return p + 1
    return put_bytes(p, data, size)


@cython.final
cdef class Encoder:
    """Records of one batch, encoded one behind the other.

    The first record's timestamp becomes the base timestamp unless one was given. Offset deltas count up
    from 0 unless they are given.
    """

    cdef Block block
    cdef readonly int32_t count
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int32_t max_timestamp_delta
    cdef bint has_base_timestamp

    def __cinit__(self, base_timestamp=None, Py_ssize_t capacity=16384):
        self.block = Block(capacity)
        self.last_offset_delta = -1
        self.max_timestamp = -1
        self.max_timestamp_delta = -1
        self.has_base_timestamp = base_timestamp is not None
        self.base_timestamp = base_timestamp if base_timestamp is not None else -1

    @property
    def payload(self):
        """The encoded records. No more can be added while a view of them is held."""
        return self.block

    @property
    def size(self):
        """Bytes of the batch if it were closed now, without compression."""
        return HEADER_BYTES + self.block.size

    cdef int note(self, int32_t offset_delta, int64_t timestamp) except -1 nogil:
        if offset_delta < 0 or offset_delta <= self.last_offset_delta or self.count == INT32_MAX:
            with gil:
                raise ValueError(
                    f"offset delta {offset_delta} does not follow {self.last_offset_delta};"
                    " offsets of a batch must rise and span less than 2^31"
                )
        if not self.has_base_timestamp:
            self.base_timestamp = timestamp
            self.has_base_timestamp = True
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_delta = offset_delta
        self.last_offset_delta = offset_delta
        self.count += 1
        return 0

    def append(self, int64_t timestamp, key, value, headers=(), offset_delta=None, Py_ssize_t limit=0):
        """Add a record and return its bytes, length prefix included.

        With a limit, a record that would make the batch larger is not added, and 0 returned; the first one is
        taken whatever its size.
        """
        cdef int32_t delta = self.next_delta() if offset_delta is None else offset_delta
        return self.add(timestamp, key, value, headers, delta, limit)

    cdef int32_t next_delta(self) except -1:
        if self.last_offset_delta == INT32_MAX:
            raise ValueError("the batch is full: it spans 2^31 offsets")
        return self.last_offset_delta + 1

    cdef Py_ssize_t add(self, int64_t timestamp, object key, object value, object headers, int32_t delta,
                        Py_ssize_t limit) except -1:
        cdef Field key_field
        cdef Field value_field
        open_field(key, &key_field)
        try:
            open_field(value, &value_field)
            try:
                return self.put(delta, timestamp, &key_field, &value_field, headers, limit)
            finally:
                close_field(&value_field)
        finally:
            close_field(&key_field)

    cdef Py_ssize_t put(self, int32_t delta, int64_t timestamp, Field* key, Field* value, object headers,
                        Py_ssize_t limit) except -1:
        cdef int64_t base = self.base_timestamp if self.has_base_timestamp else timestamp
        cdef int64_t timestamp_delta = wrapping_sub(timestamp, base)
        cdef tuple pairs = header_pairs(headers) if headers else ()
        cdef Py_ssize_t header_count = len(pairs)
        cdef int64_t length
        cdef Py_ssize_t total
        cdef uint8_t* p
        cdef uint8_t* start
        length = 1 + varlong_size(timestamp_delta) + varint_size(delta)
        length += field_size(key.size) + field_size(value.size)
        length += varint_size(<int32_t> header_count) + headers_size(pairs)
        if length > INT32_MAX - 5 or header_count > INT32_MAX:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE, f"a record of {length} bytes is too large; a batch ends at 2 GiB"
            )
        total = varint_size(<int32_t> length) + length
        if limit and self.count and HEADER_BYTES + self.block.size + total > limit:
            return 0
        if self.block.size + total > INT32_MAX - HEADER_BYTES:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {total} bytes does not fit behind {self.block.size}; a batch ends at 2 GiB",
            )
        self.block.reserve(total)
        self.note(delta, timestamp)
        start = self.block.data + self.block.size
        p = put_varint(start, <int32_t> length)
        p[0] = 0
        p = put_varlong(p + 1, timestamp_delta)
        p = put_varint(p, delta)
        p = put_field(p, key.data, key.size)
        p = put_field(p, value.data, value.size)
        p = put_varint(p, <int32_t> header_count)
        if header_count:
            p = put_headers(p, pairs)
        self.block.size += p - start
        return p - start

    cdef int put_copy(self, Entry* entry, int32_t delta, int64_t timestamp) except -1:
        """Append a record that is encoded already; there is room for it."""
        cdef int64_t timestamp_delta
        cdef Py_ssize_t tail = entry.end - entry.after_offset
        cdef uint8_t* p = self.block.data + self.block.size
        self.note(delta, timestamp)
        timestamp_delta = wrapping_sub(timestamp, self.base_timestamp)
        p = put_varint(p, <int32_t> (1 + varlong_size(timestamp_delta) + varint_size(delta) + tail))
        p[0] = entry.body[0]
        p = put_varlong(p + 1, timestamp_delta)
        p = put_varint(p, delta)
        memcpy(p, entry.after_offset, tail)
        self.block.size = p + tail - self.block.data
        return 0

    def extend(self, records, int64_t base_offset):
        """Add `Record` objects at their offsets, or (timestamp, key, value[, headers]) at the next one."""
        cdef Record record
        for item in records:
            if isinstance(item, Record):
                record = <Record> item
                delta = record.offset - base_offset
                self.add(record.timestamp, record.key, record.value, record.headers, delta, 0)
            elif len(item) == 3:
                timestamp, key, value = item
                self.add(timestamp, key, value, (), self.next_delta(), 0)
            else:
                timestamp, key, value, headers = item
                self.add(timestamp, key, value, headers, self.next_delta(), 0)


cdef tuple header_pairs(headers):
    """The headers as (str or bytes, bytes or None) tuples that cannot change while they are written."""
    cdef tuple given = tuple(headers.items() if isinstance(headers, dict) else headers)
    cdef bint plain = True
    for pair in given:
        if (
            type(pair) is not tuple
            or len(<tuple> pair) != 2
            or type((<tuple> pair)[0]) is not str
            or ((<tuple> pair)[1] is not None and type((<tuple> pair)[1]) is not bytes)
        ):
            plain = False
            break
    if plain:
        return given
    made = []
    for key, value in given:
        if not isinstance(key, (str, bytes)):
            raise TypeError(f"the key of a record header must be str, not {type(key).__name__}")
        if isinstance(value, (str, int)):
            raise TypeError(f"the value of header {key!r} must be bytes or None, not {type(value).__name__}")
        text = str(key) if isinstance(key, str) else bytes(key)
        made.append((text, None if value is None else bytes(memoryview(value))))
    return tuple(made)


cdef inline const uint8_t* header_key(object key, Py_ssize_t* size) except NULL:
    if isinstance(key, str):
        return <const uint8_t*> PyUnicode_AsUTF8AndSize(key, size)
    size[0] = PyBytes_GET_SIZE(key)
    return <const uint8_t*> PyBytes_AS_STRING(key)


cdef int64_t headers_size(tuple pairs) except -1:
    cdef int64_t total = 0
    cdef Py_ssize_t size
    for pair in pairs:
        key, value = <tuple> pair
        header_key(key, &size)
        total += field_size(size) + field_size(PyBytes_GET_SIZE(value) if value is not None else -1)
    return total


cdef uint8_t* put_headers(uint8_t* p, tuple pairs) except NULL:
    cdef const uint8_t* data
    cdef Py_ssize_t size
    for pair in pairs:
        key, value = <tuple> pair
        data = header_key(key, &size)
        p = put_bytes(p, data, size)
        if value is None:
            p = put_field(p, NULL, -1)
        else:
            p = put_bytes(p, <const uint8_t*> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return p


def copy_records(Encoder encoder not None, payload, BatchHeader header not None, marks=None,
                 bint renumber=False):
    """Append the marked records of a batch, or all of them, at the offsets that they have or at the next.

    Only what depends on the batch is rewritten: the offset and timestamp deltas. Records stamped by the
    broker get that stamp as their own timestamp.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef const char* mark = NULL
    cdef Entry entry
    cdef Fault fault = SOUND
    cdef int32_t i = 0
    cdef int64_t timestamp
    cdef int32_t delta
    cdef Py_ssize_t room
    cdef bint append_time = (header.attributes & TIMESTAMP_TYPE_BIT) != 0
    if marks is not None:
        if not isinstance(marks, bytes) or len(marks) != header.count:
            raise ValueError(f"a batch of {header.count} records needs as many marks")
        mark = PyBytes_AS_STRING(marks)
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*> view.buf
        end = p + view.len
        if header.count < 0 or header.count > view.len // MIN_ENTRY_BYTES:
            raise corrupt(BAD_COUNT, 0)
        # New deltas and the length in front of them take at most this much more than the old ones did.
        room = view.len + MAX_DELTA_GROWTH * <Py_ssize_t> header.count
        if encoder.block.size + room > INT32_MAX - HEADER_BYTES:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{view.len} bytes are too many for one batch")
        encoder.block.reserve(room)
        for i in range(header.count):
            fault = read_entry(&p, end, &entry)
            if fault:
                raise corrupt(fault, i)
            if mark != NULL and not mark[i]:
                continue
            if append_time:
                timestamp = header.max_timestamp
            else:
                timestamp = wrapping_add(header.base_timestamp, entry.timestamp_delta)
            delta = encoder.last_offset_delta + 1 if renumber else entry.offset_delta
            if delta < 0 or delta <= encoder.last_offset_delta:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"record {i} of the batch has offset delta {delta} behind {encoder.last_offset_delta}",
                )
            encoder.put_copy(&entry, delta, timestamp)
    finally:
        PyBuffer_Release(&view)

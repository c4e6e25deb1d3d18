# Which batches and records of a fetched buffer a consumer sees.

@cython.final
cdef class BatchReader:
    """Reads one partition as a consumer does: in order, from an offset on, without control records.

    `set_aborted` takes the (producer id, first offset) pairs of the transactions that were rolled back, as
    a read_committed fetch brings them; a producer's transactional batches are left out from such an offset
    to its abort marker. One reader serves all fetches of its partition, each with its own list.
    `next_offset` is where the next fetch begins: it also passes over batches of which nothing was returned.
    """

    cdef int64_t end_offset
    cdef readonly int64_t next_offset
    cdef bint check_crc
    cdef object decompress
    cdef object crc32c
    cdef Py_ssize_t max_decompressed_bytes
    cdef list aborted
    cdef Py_ssize_t aborted_seen
    cdef set aborted_producers

    def __cinit__(self, *, int64_t start_offset, int64_t end_offset, bint check_crc, decompress, crc32c,
                  Py_ssize_t max_decompressed_bytes):
        self.next_offset = start_offset
        self.end_offset = end_offset
        self.check_crc = check_crc
        self.decompress = decompress
        self.crc32c = crc32c
        self.max_decompressed_bytes = max_decompressed_bytes
        self.aborted = []
        self.aborted_seen = 0
        self.aborted_producers = set()

    def set_aborted(self, aborted):
        """The transactions aborted within the buffers that come next."""
        self.aborted = sorted([(first_offset, producer_id) for producer_id, first_offset in aborted])
        self.aborted_seen = 0
        self.aborted_producers.clear()

    def read(self, buf):
        """Read the records of the complete batches in `buf` that a consumer sees, as objects."""
        cdef list records = []
        self.run(buf, records, None, None)
        return records

    def read_for_user(self, buf, ConsumerRecord source not None):
        """As `read`, but as a consumer's records of the topic and partition that `source` names."""
        cdef list records = []
        self.run(buf, records, None, source)
        return records

    def read_columns(self, buf, Columns columns not None):
        """As `read`, but into columns."""
        self.run(buf, None, columns, None)

    cdef int run(self, object buf, list records, Columns columns, ConsumerRecord source) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t pos = 0
        cdef Py_ssize_t size
        cdef const uint8_t* data
        cdef BatchHeader header
        cdef int64_t begin = self.next_offset
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            data = <const uint8_t*> view.buf
            while view.len - pos >= HEADER_BYTES and self.next_offset < self.end_offset:
                header = parse_header(data, view.len, pos)
                size = OVERHEAD_BYTES + <Py_ssize_t> header.batch_length
                if size > view.len - pos:
                    break
                if wrapping_add(header.base_offset, header.last_offset_delta) >= self.next_offset:
                    self.take(data + pos, size, header, records, columns, source)
                else:
                    # Skipped, but a transaction may end here.
                    self.admits(data + pos, size, header)
                pos += size
        except BaseException:
            # Nothing of this buffer was handed out, so nothing of it was read.
            self.next_offset = begin
            raise
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef int take(self, const uint8_t* batch, Py_ssize_t size, BatchHeader header, list records,
                  Columns columns, ConsumerRecord source) except -1:
        cdef int64_t after = wrapping_add(header.base_offset, <int64_t> header.last_offset_delta + 1)
        cdef const uint8_t* payload = batch + HEADER_BYTES
        cdef Py_ssize_t payload_size = size - HEADER_BYTES
        if header.base_offset >= self.end_offset:
            self.next_offset = self.end_offset
            return 0
        if self.check_crc:
            self.verify(batch, size, header)
        if self.admits(batch, size, header) and header.count:
            if header.attributes & CODEC_MASK:
                self.take_compressed(payload, payload_size, header, records, columns, source)
            elif columns is not None:
                columns.add(payload, payload_size, header, self.next_offset, self.end_offset)
            else:
                decode_into(
                    records, payload, payload_size, header, self.next_offset, self.end_offset, source
                )
        self.next_offset = after if self.next_offset < after < self.end_offset else self.end_offset
        return 0

    cdef int take_compressed(self, const uint8_t* data, Py_ssize_t size, BatchHeader header, list records,
                             Columns columns, ConsumerRecord source) except -1:
        cdef Py_buffer view
        payload = self.inflate(data, size, header)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if columns is not None:
                columns.add(<const uint8_t*> view.buf, view.len, header, self.next_offset, self.end_offset)
            else:
                decode_into(
                    records, <const uint8_t*> view.buf, view.len, header, self.next_offset, self.end_offset,
                    source,
                )
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef object inflate(self, const uint8_t* data, Py_ssize_t size, BatchHeader header):
        view = PyMemoryView_FromMemory(<char*> data, size, PyBUF_READ)
        try:
            return self.decompress(header.codec, view, self.max_decompressed_bytes)
        finally:
            view.release()

    cdef int verify(self, const uint8_t* batch, Py_ssize_t size, BatchHeader header) except -1:
        view = PyMemoryView_FromMemory(<char*> (batch + 21), size - 21, PyBUF_READ)
        cdef uint32_t computed = self.crc32c(view)
        view.release()
        if computed != header.crc:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at offset {header.base_offset} is corrupt: stored crc = {header.crc},"
                f" computed crc = {computed}",
            )
        return 0

    cdef bint admits(self, const uint8_t* batch, Py_ssize_t size, BatchHeader header) except -1:
        """Whether the consumer sees the records of this batch. Keeps track of aborted transactions."""
        cdef bint control = (header.attributes & CONTROL_BIT) != 0
        cdef int64_t last_offset
        if header.producer_id >= 0 and (self.aborted_producers or self.aborted_seen < len(self.aborted)):
            last_offset = wrapping_add(header.base_offset, header.last_offset_delta)
            while self.aborted_seen < len(self.aborted) and self.aborted[self.aborted_seen][0] <= last_offset:
                self.aborted_producers.add(self.aborted[self.aborted_seen][1])
                self.aborted_seen += 1
            if control:
                if self.is_abort_marker(batch, size, header):
                    self.aborted_producers.discard(header.producer_id)
            elif header.attributes & TRANSACTIONAL_BIT and header.producer_id in self.aborted_producers:
                return False
        return not control

    cdef bint is_abort_marker(self, const uint8_t* batch, Py_ssize_t size, BatchHeader header) except -1:
        cdef Py_buffer view
        if header.count < 1:
            return False
        if not header.attributes & CODEC_MASK:
            return names_abort(batch + HEADER_BYTES, size - HEADER_BYTES)
        payload = self.inflate(batch + HEADER_BYTES, size - HEADER_BYTES, header)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            return names_abort(<const uint8_t*> view.buf, view.len)
        finally:
            PyBuffer_Release(&view)


cdef bint names_abort(const uint8_t* p, Py_ssize_t size) except -1:
    """Whether the first record of a control batch is an abort: its key is a version and a type, here 0."""
    cdef Entry entry
    cdef Fault fault = read_entry(&p, p + size, &entry)
    if fault:
        raise corrupt(fault, 0)
    if entry.key_size < 4:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the key of a control record has {entry.key_size} bytes, not 4"
        )
    return get16(entry.key + 2) == 0

# The broker's checks of records that a client sent, and lookups by timestamp.

cdef enum Reason:
    REFUSED_KEY = 1
    REFUSED_TIMESTAMP = 2
    REFUSED_TIMESTAMP_TYPE = 3

NO_KEY = <int> REFUSED_KEY
TIMESTAMP_OUT_OF_RANGE = <int> REFUSED_TIMESTAMP
TIMESTAMP_TYPE_SET = <int> REFUSED_TIMESTAMP_TYPE

cdef struct Refusal:
    int32_t index
    int32_t reason
    int64_t offset
    int64_t timestamp


cdef struct Rules:
    bint keys_required
    bint create_time
    int64_t now_ms
    int64_t before_max_ms
    int64_t after_max_ms


cdef struct Findings:
    Fault fault
    int32_t index                   # the record that the fault is in
    int64_t max_timestamp
    bint contiguous                 # offset deltas count up from 0
    Py_ssize_t refused


cdef inline int refusal_of(const Rules* rules, Entry* entry, bint append_time,
                           int64_t timestamp) noexcept nogil:
    cdef int64_t age
    if rules.keys_required and entry.key_size < 0:
        return REFUSED_KEY
    if rules.create_time and timestamp != -1:
        age = wrapping_sub(rules.now_ms, timestamp)
        if age > rules.before_max_ms or wrapping_sub(0, age) > rules.after_max_ms:
            return REFUSED_TIMESTAMP
    elif append_time:
        return REFUSED_TIMESTAMP_TYPE
    return 0


cdef void examine(const uint8_t* p, Py_ssize_t size, BatchHeader header, const Rules* rules,
                  Refusal* refusals, Py_ssize_t max_refusals, Findings* found) noexcept nogil:
    cdef const uint8_t* end = p + size
    cdef bint append_time = (header.attributes & TIMESTAMP_TYPE_BIT) != 0
    cdef int64_t base_timestamp = header.base_timestamp
    cdef int32_t count = header.count
    cdef Entry entry
    cdef int64_t timestamp
    cdef int reason
    cdef Refusal* refusal
    cdef int32_t i
    found.fault = SOUND
    found.max_timestamp = -1
    found.contiguous = True
    found.refused = 0
    for i in range(count):
        found.index = i
        if p == end:
            found.fault = RECORDS_MISSING
            return
        found.fault = read_entry(&p, end, &entry)
        if found.fault == SOUND and entry.header_count:
            found.fault = check_headers(&entry)
        if found.fault:
            return
        timestamp = header.max_timestamp
        if not append_time:
            timestamp = wrapping_add(base_timestamp, entry.timestamp_delta)
        if timestamp > found.max_timestamp:
            found.max_timestamp = timestamp
        if entry.offset_delta != i:
            found.contiguous = False
        reason = refusal_of(rules, &entry, append_time, timestamp)
        if reason:
            if found.refused < max_refusals:
                refusal = &refusals[found.refused]
                refusal.index = i
                refusal.reason = reason
                refusal.offset = wrapping_add(header.base_offset, entry.offset_delta)
                refusal.timestamp = timestamp
            found.refused += 1
    if p != end:
        found.index = count
        found.fault = TRAILING_BYTES


def validate_records(payload, BatchHeader header not None, *, bint keys_required, bint create_time,
                     int64_t now_ms, int64_t before_max_ms, int64_t after_max_ms, Py_ssize_t max_refusals):
    """Walk the records of a batch and validate each.

    Returns the largest timestamp, whether offset deltas count up from 0, how many records were refused, and
    of the first `max_refusals` of those index, reason, offset and timestamp. Records that cannot be walked
    raise INVALID_RECORD.
    """
    cdef Py_buffer view
    cdef Rules rules
    cdef Findings found
    cdef Refusal* refusals
    cdef Py_ssize_t i
    rules.keys_required = keys_required
    rules.create_time = create_time
    rules.now_ms = now_ms
    rules.before_max_ms = before_max_ms
    rules.after_max_ms = after_max_ms
    refusals = <Refusal*> PyMem_RawMalloc(max(max_refusals, 1) * sizeof(Refusal))
    if refusals == NULL:
        raise MemoryError()
    try:
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if header.count < 0 or header.count > view.len // MIN_ENTRY_BYTES:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, f"{FAULTS[<int> BAD_COUNT]}: {header.count} in {view.len} bytes"
                )
            with nogil:
                examine(<const uint8_t*> view.buf, view.len, header, &rules, refusals, max_refusals, &found)
        finally:
            PyBuffer_Release(&view)
        if found.fault:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"record {found.index} of the batch: {FAULTS[<int> found.fault]}"
            )
        return found.max_timestamp, found.contiguous, found.refused, [
            (refusals[i].index, refusals[i].reason, refusals[i].offset, refusals[i].timestamp)
            for i in range(min(found.refused, max_refusals))
        ]
    finally:
        PyMem_RawFree(refusals)


cdef BatchHeader check_plain(const uint8_t* data, Py_ssize_t size, crc32c, const Rules* rules):
    """The header of a client's batch that fills these bytes and can be stored as it is, but for its base offset
    and leader epoch; None where the slower checks have to decide.
    """
    cdef BatchHeader header
    cdef Findings found
    if size < HEADER_BYTES or data[16] != 2 or get32(data + 8) != size - OVERHEAD_BYTES:
        return None
    header = parse_header(data, size, 0)
    if (header.base_offset != 0 or header.count <= 0 or header.last_offset_delta != header.count - 1
            or header.attributes & (CODEC_MASK | TIMESTAMP_TYPE_BIT | CONTROL_BIT)
            or (header.producer_id > -1 and header.base_sequence < 0)
            or crc32c(PyMemoryView_FromMemory(<char*> data + CRC_START, size - CRC_START, PyBUF_READ))
            != header.crc):
        return None
    with nogil:
        examine(data + HEADER_BYTES, size - HEADER_BYTES, header, rules, NULL, 0, &found)
    if found.fault or found.refused or not found.contiguous or found.max_timestamp != header.max_timestamp:
        return None
    return header


def place_plain(batch, crc32c, int64_t first_offset, int32_t leader_epoch, int64_t now_ms, int64_t before_max_ms,
                int64_t after_max_ms, int64_t max_bytes, bint keys_required):
    """Set base offset and leader epoch of a client's batch in its own memory, if the batch is valid and nothing
    else has to change; return its header, or None where the slower checks have to decide.

    That is so for nearly every batch: one batch that fills its buffer, not compressed, with the timestamps of
    its producer. Where None is returned the memory is unchanged.
    """
    cdef Py_buffer view
    cdef uint8_t* data
    cdef BatchHeader header = None
    cdef Rules rules
    rules.keys_required = keys_required
    rules.create_time = True
    rules.now_ms = now_ms
    rules.before_max_ms = before_max_ms
    rules.after_max_ms = after_max_ms
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        data = <uint8_t*> view.buf
        if not view.readonly and view.len <= max_bytes:
            header = check_plain(data, view.len, crc32c, &rules)
        if header is not None:
            header.base_offset = first_offset
            header.leader_epoch = leader_epoch
            put64(data, first_offset)
            put32(data + 12, leader_epoch)
        return header
    finally:
        PyBuffer_Release(&view)


cdef struct FoundRecord:
    Fault fault
    int32_t index                   # the record that the fault is in
    bint exists
    int64_t offset
    int64_t timestamp


cdef void seek_timestamp(const uint8_t* p, Py_ssize_t size, BatchHeader header, int64_t least,
                         int64_t start_offset, FoundRecord* found) noexcept nogil:
    cdef const uint8_t* end = p + size
    cdef bint append_time = (header.attributes & TIMESTAMP_TYPE_BIT) != 0
    cdef int64_t base_timestamp = header.base_timestamp
    cdef int32_t count = header.count
    cdef Entry entry
    cdef int32_t i
    found.fault = SOUND
    found.exists = False
    for i in range(count):
        found.index = i
        found.fault = read_entry(&p, end, &entry)
        if found.fault:
            return
        found.offset = wrapping_add(header.base_offset, entry.offset_delta)
        found.timestamp = header.max_timestamp
        if not append_time:
            found.timestamp = wrapping_add(base_timestamp, entry.timestamp_delta)
        if found.timestamp >= least and found.offset >= start_offset:
            found.exists = True
            return


def find_timestamp(payload, BatchHeader header not None, int64_t timestamp, int64_t start_offset):
    """(offset, timestamp) of the first record from `start_offset` on that is not older than `timestamp`."""
    cdef Py_buffer view
    cdef FoundRecord found
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            seek_timestamp(<const uint8_t*> view.buf, view.len, header, timestamp, start_offset, &found)
    finally:
        PyBuffer_Release(&view)
    if found.fault:
        raise corrupt(found.fault, found.index)
    return (found.offset, found.timestamp) if found.exists else None

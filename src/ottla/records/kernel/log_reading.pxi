# Whole batches of a segment, from the one that holds an offset on, as long as there is nothing unusual about them.

cdef enum:
    # As in `ottla.log.segment.walk`.
    STEP_BYTES = 27
    FIND_BYTES = 5 * 1024
    WALK_BYTES = 16 * 1024
    # As in `ottla.log.segment.soundness`.
    NEXT_BATCH_BYTES = 17


cdef struct FoundBatches:
    int64_t position                # in the segment
    Py_ssize_t at                   # in what was read
    Py_ssize_t size
    Py_ssize_t batch_size           # of the first one, of which less may have been read


def read_batches(log, int64_t offset, int64_t max_bytes, bint min_one_batch, int64_t upper, int64_t end, crc32c):
    """Read batches of a `UnifiedLog`, which ends at `end`, from `offset` on and below `upper`: the bytes, the base
    offset of their segment, and their position. None if there is anything that `UnifiedLog.read` has to look at: an
    index that is not open, no such batch in the segment, damage of any kind.
    """
    cdef FoundBatches found
    cdef bytes chunk
    cdef Py_ssize_t number
    local = log.local_log
    segments = <tuple> local._segments
    bases = <tuple> local._bases
    number = segment_below(bases, offset)
    if number < 0 or len(bases) != len(segments):
        return None
    chunk = read_sound(
        log, segments, bases, number, offset, max_bytes, min_one_batch, upper, end, crc32c, &found
    )
    if chunk is None:
        return None
    if found.size != PyBytes_GET_SIZE(chunk):
        chunk = PyBytes_FromStringAndSize(PyBytes_AS_STRING(chunk) + found.at, found.size)
    return chunk, bases[number], found.position


cdef bytes read_sound(log, tuple segments, tuple bases, Py_ssize_t number, int64_t offset, int64_t max_bytes,
                      bint min_one_batch, int64_t upper, int64_t end, crc32c, FoundBatches* out):
    """The bytes that hold the batches, and which of them they are. See `read_batches`."""
    cdef int64_t base_offset
    cdef int64_t next_base
    cdef int64_t held
    cdef int64_t position = 0
    cdef int64_t indexed = -1
    cdef int64_t least_offset
    cdef int64_t first
    cdef int64_t last
    cdef int64_t next_offset
    cdef int64_t wanted = FIND_BYTES
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t sound
    cdef const uint8_t* p
    cdef bytes chunk = None
    cdef bytes following
    segment = segments[number]
    next_base = <int64_t> bases[number + 1] if number + 1 < len(bases) else INT64_MAX
    base_offset = least_offset = bases[number]
    indexes = segment._indexes
    epochs = log._leader_epochs
    held = segment._size
    if indexes is None or epochs is None or held < 0:
        return None
    entry = indexes.offsets._last
    if entry is not None:
        if <int64_t> (<tuple> entry)[0] <= offset - base_offset:
            indexed = base_offset + <int64_t> (<tuple> entry)[0]
            position = (<tuple> entry)[1]
        else:
            entry = indexes.offsets.lookup(offset)
            indexed, position = entry.offset, entry.position
    file = segment._log.get()
    # The first batch that ends at or above the offset, as `find_batch` looks for it.
    while size == 0:
        if position >= held:
            return None
        chunk = file.pread(min(wanted, held - position), position)
        at = 0
        while PyBytes_GET_SIZE(chunk) - at >= STEP_BYTES:
            p = <const uint8_t*> PyBytes_AS_STRING(chunk) + at
            first = get64(p)
            last = wrapping_add(first, get32(p + 23))
            size = OVERHEAD_BYTES + <Py_ssize_t> get32(p + 8)
            if (
                (indexed >= 0 and position > 0 and last != indexed)
                or size < HEADER_BYTES
                or size > held - position - at
                or first < least_offset
                or last < first
            ):
                return None
            indexed = -1
            if last >= offset:
                break
            least_offset = last + 1
            at += size
            size = 0
        if size == 0:
            if at == 0:
                return None
            position += at
            wanted = HEADER_BYTES if wanted == FIND_BYTES and at > wanted else WALK_BYTES
    position += at
    out.position = position
    out.batch_size = size
    wanted = max(max_bytes, <int64_t> size) if min_one_batch else max_bytes
    wanted = max(min(wanted, upper_position(log, segment, held, upper, end, next_base) - position), 0)
    if wanted > PyBytes_GET_SIZE(chunk) - at:
        chunk = file.pread(wanted, position)
        at = 0
        wanted = PyBytes_GET_SIZE(chunk)
    # Only what the producer or the leader sent leaves this broker: see `UnifiedLog._sound_part`.
    p = <const uint8_t*> PyBytes_AS_STRING(chunk) + at
    next_offset = least_offset
    sound = sound_size(epochs, p, wanted, crc32c, &next_offset)
    if sound < 0 or next_offset > min(upper if upper < end else max(end, <int64_t> log.log_end_offset), next_base):
        return None
    if sound == wanted and held - position - sound >= NEXT_BATCH_BYTES:
        # What follows says whether the last one ends where it should.
        if PyBytes_GET_SIZE(chunk) - at - sound >= NEXT_BATCH_BYTES:
            p += sound
        else:
            following = file.pread(NEXT_BATCH_BYTES, position + sound)
            if PyBytes_GET_SIZE(following) != NEXT_BATCH_BYTES:
                return None
            p = <const uint8_t*> PyBytes_AS_STRING(following)
        if sound_size(epochs, p, NEXT_BATCH_BYTES, crc32c, &next_offset) < 0:
            return None
    out.at = at
    out.size = wanted
    return chunk


cdef int64_t upper_position(log, segment, int64_t held, int64_t upper, int64_t end, int64_t next_base) except -1:
    """Where the batches of a segment below `upper` end."""
    if upper >= end or upper >= next_base:
        return held
    known = log._upper_bound
    if known is not None and <int64_t> (<tuple> known)[0] == upper and (<tuple> known)[1] is segment:
        return (<tuple> known)[2]
    return log._upper_position(segment, upper, end)


cdef Py_ssize_t sound_size(epochs, const uint8_t* data, Py_ssize_t size, crc32c, int64_t* next_offset) except -2:
    """The size of the whole batches that the bytes begin with, and the offset behind them, as `sound_end` finds them;
    -1 if what follows is damaged.
    """
    cdef Py_ssize_t done = 0
    cdef Py_ssize_t checked
    cdef int64_t until
    cdef int64_t base_offset
    cdef int32_t least
    cdef int32_t greatest
    entries = <list> epochs._entries
    while size - done >= 8:
        base_offset = get64(data + done)
        span = <tuple> entries[len(entries) - 1] if entries else None
        if span is not None and base_offset >= <int64_t> (<tuple> span)[1]:
            least = greatest = (<tuple> span)[0]
            until = INT64_MAX
        else:
            span = epochs.span(base_offset)
            least, greatest, until = (<tuple> span)[0], (<tuple> span)[1], (<tuple> span)[2]
        if find_fault(
            data + done, size - done, crc32c, next_offset, until, least, greatest, &checked
        ) is not None:
            return -1
        done += checked
        if not checked or size - done < 8 or get64(data + done) < until:
            break
    return done


cdef Py_ssize_t segment_below(tuple bases, int64_t offset) except -2:
    """Which of the segments an offset lies in; -1 if it is below all of them."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = len(bases)
    cdef Py_ssize_t middle
    if high and <int64_t> bases[high - 1] <= offset:
        return high - 1
    while low < high:
        middle = (low + high) // 2
        if <int64_t> bases[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low - 1

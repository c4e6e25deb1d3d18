# Compaction: the map from key to newest offset, and the choice of records that survive.

cdef struct Digest:
    uint64_t low
    uint64_t high


cdef inline uint64_t rotated(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline void sip_round(uint64_t* v0, uint64_t* v1, uint64_t* v2, uint64_t* v3) noexcept nogil:
    v0[0] += v1[0]
    v1[0] = rotated(v1[0], 13) ^ v0[0]
    v0[0] = rotated(v0[0], 32)
    v2[0] += v3[0]
    v3[0] = rotated(v3[0], 16) ^ v2[0]
    v0[0] += v3[0]
    v3[0] = rotated(v3[0], 21) ^ v0[0]
    v2[0] += v1[0]
    v1[0] = rotated(v1[0], 17) ^ v2[0]
    v2[0] = rotated(v2[0], 32)


cdef inline Digest digest_of(const uint8_t* data, Py_ssize_t size, Digest secret) noexcept nogil:
    """SipHash-1-3 with 128 bits of output: a sender that lacks the secret cannot make two keys collide."""
    cdef uint64_t v0 = secret.low ^ 0x736F6D6570736575ULL
    cdef uint64_t v1 = secret.high ^ 0x646F72616E646F6DULL ^ 0xEEULL
    cdef uint64_t v2 = secret.low ^ 0x6C7967656E657261ULL
    cdef uint64_t v3 = secret.high ^ 0x7465646279746573ULL
    cdef uint64_t word
    cdef Py_ssize_t left = size
    cdef Digest out
    while left >= 8:
        memcpy(&word, data, 8)
        v3 ^= word
        sip_round(&v0, &v1, &v2, &v3)
        v0 ^= word
        data += 8
        left -= 8
    word = 0
    memcpy(&word, data, left)
    word |= <uint64_t> size << 56
    v3 ^= word
    sip_round(&v0, &v1, &v2, &v3)
    v0 ^= word
    v2 ^= 0xEE
    sip_round(&v0, &v1, &v2, &v3)
    sip_round(&v0, &v1, &v2, &v3)
    sip_round(&v0, &v1, &v2, &v3)
    out.low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    sip_round(&v0, &v1, &v2, &v3)
    sip_round(&v0, &v1, &v2, &v3)
    sip_round(&v0, &v1, &v2, &v3)
    out.high = v0 ^ v1 ^ v2 ^ v3
    return out


cdef struct Slot:
    uint64_t low
    uint64_t high
    int64_t offset_plus_one         # 0: free


cdef extern from *:
    void __builtin_prefetch(const void* address) nogil

cdef enum:
    PROBES = 16


cdef struct Probe:
    Entry entry
    Digest digest                   # of the key, if there is one


@cython.final
cdef class OffsetMap:
    """The newest offset of each key, in a fixed amount of memory.

    A key is represented by a 128-bit keyed hash, so an entry takes 24 bytes whatever the key's size. The
    table is never more than `load_factor` full: `put_batch` stops there and says so. Memory that is not
    used is not touched.
    """

    cdef Slot* slots
    cdef uint64_t slot_count
    cdef Digest secret
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t used
    cdef public int64_t latest_offset

    def __cinit__(self, Py_ssize_t memory_bytes, double load_factor=0.9, bytes seed=bytes(16)):
        if not 0 < load_factor < 1:
            raise ValueError(f"load factor {load_factor} is not between 0 and 1")
        if len(seed) != 16:
            raise ValueError(f"the seed of an offset map is 16 bytes, not {len(seed)}")
        self.slot_count = memory_bytes // sizeof(Slot) if memory_bytes > 0 else 0
        self.capacity = <Py_ssize_t> (self.slot_count * load_factor)
        if self.capacity < 1:
            raise ValueError(f"{memory_bytes} bytes cannot hold an offset map; give it more")
        memcpy(&self.secret, PyBytes_AS_STRING(seed), 16)
        self.latest_offset = -1
        self.slots = <Slot*> PyMem_RawCalloc(self.slot_count, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError(f"no memory for an offset map of {memory_bytes} bytes")

    def __dealloc__(self):
        PyMem_RawFree(self.slots)

    def __len__(self):
        return self.used

    def clear(self):
        """Forget all keys."""
        memset(self.slots, 0, self.slot_count * sizeof(Slot))
        self.used = 0
        self.latest_offset = -1

    cdef Slot* find(self, Digest digest) noexcept nogil:
        """The slot of this key, or the free one where it belongs; one is always free."""
        cdef Slot* slot
        cdef uint64_t at = digest.low % self.slot_count
        while True:
            slot = &self.slots[at]
            if slot.offset_plus_one == 0 or (slot.low == digest.low and slot.high == digest.high):
                return slot
            at += 1
            if at == self.slot_count:
                at = 0

    cdef bint set(self, Digest digest, int64_t offset) noexcept nogil:
        cdef Slot* slot = self.find(digest)
        if slot.offset_plus_one == 0:
            if self.used >= self.capacity:
                return False
            slot.low = digest.low
            slot.high = digest.high
            self.used += 1
        slot.offset_plus_one = offset + 1
        return True

    cdef int64_t lookup(self, Digest digest) noexcept nogil:
        return self.find(digest).offset_plus_one - 1

    cdef Fault probe(self, const uint8_t** at, const uint8_t* end, int32_t left, Probe* probes,
                     int32_t* count) noexcept nogil:
        """The next few records of a batch, with their slots on the way from memory: waiting for each in turn
        is what a large map costs.
        """
        cdef Probe* probe
        cdef Fault fault
        count[0] = 0
        while count[0] < left and count[0] < PROBES:
            probe = &probes[count[0]]
            fault = read_entry(at, end, &probe.entry)
            if fault:
                return fault
            if probe.entry.key_size >= 0:
                probe.digest = digest_of(probe.entry.key, probe.entry.key_size, self.secret)
                __builtin_prefetch(&self.slots[probe.digest.low % self.slot_count])
            count[0] += 1
        return SOUND

    def get(self, key):
        """The newest offset of this key, or -1."""
        cdef Field field
        if key is None:
            raise TypeError("a record without a key has no place in an offset map")
        open_field(key, &field)
        try:
            return self.lookup(digest_of(field.data, field.size, self.secret))
        finally:
            close_field(&field)

    def put(self, key, int64_t offset):
        """Remember the offset of this key; False if the map is full."""
        cdef Field field
        if key is None:
            raise TypeError("a record without a key has no place in an offset map")
        if offset < 0 or offset == INT64_MAX:
            raise ValueError(f"{offset} is not an offset")
        open_field(key, &field)
        try:
            if not self.set(digest_of(field.data, field.size, self.secret), offset):
                return False
        finally:
            close_field(&field)
        self.latest_offset = offset
        return True

    def put_batch(self, payload, BatchHeader header not None, int64_t start_offset=0):
        """Remember the keyed records of a batch at or after `start_offset`; False once a key finds no room.

        `latest_offset` becomes the last record that was taken in, or the batch's last offset if all were.
        """
        cdef Py_buffer view
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef Probe[PROBES] probes
        cdef Entry* entry
        cdef Fault fault = SOUND
        cdef int32_t done = 0
        cdef int32_t count = 0
        cdef int32_t i
        cdef int64_t offset
        cdef bint full = False
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            p = <const uint8_t*> view.buf
            end = p + view.len
            with nogil:
                while done < header.count and not full and not fault:
                    fault = self.probe(&p, end, header.count - done, probes, &count)
                    for i in range(count):
                        entry = &probes[i].entry
                        offset = wrapping_add(header.base_offset, entry.offset_delta)
                        if entry.key_size < 0 or offset < start_offset or offset < 0 or offset == INT64_MAX:
                            continue
                        if not self.set(probes[i].digest, offset):
                            full = True
                            break
                        self.latest_offset = offset
                    done += count
        finally:
            PyBuffer_Release(&view)
        if fault and not full:
            raise corrupt(fault, done)
        if full:
            return False
        offset = wrapping_add(header.base_offset, header.last_offset_delta)
        if offset >= start_offset:
            self.latest_offset = offset
        return True


def select_records(payload, BatchHeader header not None, OffsetMap offset_map not None, *,
                   bint keep_tombstones):
    """Decide what compaction keeps of a batch: how many records, whether one is a tombstone, a byte for each.

    A record stays if it lies beyond what the map covers, or if it has a key of which it is the newest record
    and has a value or is a tombstone whose time has not come.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef Probe[PROBES] probes
    cdef Entry* entry
    cdef Fault fault = SOUND
    cdef int32_t done = 0
    cdef int32_t count = 0
    cdef int32_t i
    cdef Py_ssize_t kept = 0
    cdef bint tombstones = False
    cdef bint keep
    cdef int64_t offset
    cdef bytes marks
    cdef char* mark
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        if header.count < 0 or header.count > view.len // MIN_ENTRY_BYTES:
            raise corrupt(BAD_COUNT, 0)
        marks = PyBytes_FromStringAndSize(NULL, header.count)
        mark = PyBytes_AS_STRING(marks)
        p = <const uint8_t*> view.buf
        end = p + view.len
        with nogil:
            while done < header.count and not fault:
                fault = offset_map.probe(&p, end, header.count - done, probes, &count)
                for i in range(count):
                    entry = &probes[i].entry
                    offset = wrapping_add(header.base_offset, entry.offset_delta)
                    if offset > offset_map.latest_offset:
                        keep = True
                    elif entry.key_size < 0 or (entry.value_size < 0 and not keep_tombstones):
                        keep = False
                    else:
                        keep = offset >= offset_map.lookup(probes[i].digest)
                    mark[done + i] = keep
                    kept += keep
                    if keep and entry.value_size < 0:
                        tombstones = True
                done += count
    finally:
        PyBuffer_Release(&view)
    if fault:
        raise corrupt(fault, done)
    return kept, tombstones, marks

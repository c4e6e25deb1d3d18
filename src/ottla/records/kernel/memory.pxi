# Memory that is filled by the kernel and handed out as a Python buffer.

cdef enum:
    MAX_SPARES = 64
    MIN_SPARE_BYTES = 1 << 16
    MAX_SPARE_BYTES = 1 << 25
    MAX_ALL_SPARES_BYTES = 1 << 26


cdef struct Spare:
    uint8_t* data
    Py_ssize_t capacity

# Memory of columns that were given up, kept for the next ones: the first touch of a fresh page costs more
# than all the work of decoding into it. Touched only with the GIL.
cdef Spare[MAX_SPARES] spares
cdef int spare_count = 0
cdef Py_ssize_t spare_bytes = 0


cdef uint8_t* take_spare(Py_ssize_t* capacity) noexcept:
    """The smallest spare that fits and is not half wasted, or NULL; `capacity` becomes its own."""
    global spare_count, spare_bytes
    cdef int best = -1
    cdef int i
    cdef uint8_t* data
    for i in range(spare_count):
        if not capacity[0] <= spares[i].capacity <= 2 * capacity[0]:
            continue
        if best < 0 or spares[i].capacity < spares[best].capacity:
            best = i
    if best < 0:
        return NULL
    data = spares[best].data
    capacity[0] = spares[best].capacity
    spare_count -= 1
    spare_bytes -= capacity[0]
    spares[best] = spares[spare_count]
    return data


cdef void give_spare(uint8_t* data, Py_ssize_t capacity) noexcept:
    global spare_count, spare_bytes
    if (
        MIN_SPARE_BYTES <= capacity <= MAX_SPARE_BYTES
        and spare_count < MAX_SPARES
        and spare_bytes + capacity <= MAX_ALL_SPARES_BYTES
    ):
        spares[spare_count].data = data
        spares[spare_count].capacity = capacity
        spare_count += 1
        spare_bytes += capacity
    else:
        PyMem_RawFree(data)


cdef class Block:
    """Plain memory that Python sees as a writable buffer; it grows by `reserve` while no view of it is held.

    Fresh memory is not touched, so a generous block costs address space and not pages. `len()` is what was
    filled. A recycled block draws on memory that others gave up, and leaves its own to the next.
    """

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef int exports
    cdef bint recycled

    def __cinit__(self, Py_ssize_t capacity=0, Py_ssize_t size=0, bint recycled=False):
        self.capacity = max(capacity, size, 1)
        if recycled:
            self.data = take_spare(&self.capacity)
        if self.data == NULL:
            self.data = <uint8_t*> PyMem_RawMalloc(self.capacity)
        if self.data == NULL:
            raise MemoryError(f"no memory for a buffer of {self.capacity} bytes")
        self.size = size
        self.recycled = recycled

    def __dealloc__(self):
        if self.recycled:
            give_spare(self.data, self.capacity)
        else:
            PyMem_RawFree(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1

    cdef int reserve(self, Py_ssize_t extra) except -1 nogil:
        """Make room for `extra` more bytes; fails without a change."""
        if self.size + extra > self.capacity:
            with gil:
                self.grow(self.size + extra)
        return 0

    cdef int grow(self, Py_ssize_t wanted) except -1:
        cdef uint8_t* grown
        if self.exports:
            raise BufferError("a buffer cannot grow while views of it exist")
        if wanted < self.capacity * 2:
            wanted = self.capacity * 2
        grown = <uint8_t*> PyMem_RawRealloc(self.data, wanted)
        if grown == NULL:
            raise MemoryError(f"no memory to grow a buffer to {wanted} bytes")
        self.data = grown
        self.capacity = wanted
        return 0

    def shrink(self, Py_ssize_t size):
        """Keep the first `size` bytes; where most of the memory is idle then, give it back."""
        cdef uint8_t* shrunk
        if not 0 <= size <= self.size:
            raise ValueError(f"size {size} is not within 0..{self.size}")
        if self.exports:
            raise BufferError("a buffer cannot shrink while views of it exist")
        self.size = size
        if self.capacity >= MIN_SPARE_BYTES and self.capacity // 2 > size:
            shrunk = <uint8_t*> PyMem_RawRealloc(self.data, max(size, 1))
            if shrunk != NULL:
                self.data = shrunk
                self.capacity = max(size, 1)

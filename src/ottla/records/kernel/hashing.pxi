# The hash by which Kafka's producers spread keys over partitions.

cdef int32_t murmur2_of(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = 0x9747B28CU ^ <uint32_t> size
    cdef uint32_t k
    while size >= 4:
        k = <uint32_t> data[0] | (<uint32_t> data[1] << 8)
        k |= (<uint32_t> data[2] << 16) | (<uint32_t> data[3] << 24)
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        data += 4
        size -= 4
    if size == 3:
        h ^= <uint32_t> data[2] << 16
    if size >= 2:
        h ^= <uint32_t> data[1] << 8
    if size >= 1:
        h ^= data[0]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return <int32_t> h


def murmur2(key):
    """The 32-bit hash of a key, signed, as Kafka's Java producer computes it."""
    cdef Field field
    if key is None:
        raise TypeError("only a key has a hash; records without one go to any partition")
    open_field(key, &field)
    try:
        return murmur2_of(field.data, field.size)
    finally:
        close_field(&field)


def partition_for(key, int32_t partitions):
    """The partition that Kafka's default partitioner gives to a key."""
    if partitions <= 0:
        raise ValueError(f"a topic has at least 1 partition, not {partitions}")
    return (murmur2(key) & INT32_MAX) % partitions

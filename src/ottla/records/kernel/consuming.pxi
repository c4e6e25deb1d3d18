# Records as a consumer hands them to its user: with the partition they come from, keys and values deserialized.

@cython.final
@cython.freelist(256)
cdef class ConsumerRecord:
    """A record and where it was read. `timestamp_type` is 0 for the producer's time, 1 for the broker's."""

    cdef readonly object topic
    cdef readonly int32_t partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly int8_t timestamp_type
    cdef readonly int32_t leader_epoch
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers

    __match_args__ = ("topic", "partition", "offset", "key", "value")

    def __init__(self, topic, partition, offset, timestamp=-1, key=None, value=None, headers=(), timestamp_type=0,
                 leader_epoch=-1):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = tuple(headers)
        self.timestamp_type = timestamp_type
        self.leader_epoch = leader_epoch

    @classmethod
    def __class_getitem__(cls, item):
        return cls

    def _fields(self):
        return (self.topic, self.partition, self.offset, self.timestamp, self.key, self.value, self.headers,
                self.timestamp_type, self.leader_epoch)

    def __eq__(self, other):
        return isinstance(other, ConsumerRecord) and self._fields() == (<ConsumerRecord> other)._fields()

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self):
        return ConsumerRecord, self._fields()

    def __repr__(self):
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset},"
            f" timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )


def deserialize(list records not None, key_deserializer, value_deserializer):
    """Replaces keys and values by what the deserializers make of them; what is null stays None.

    Stops before a record that one of them refuses, which stays as it is: the result is (its index, the
    exception), with the number of records and None where all went well.
    """
    cdef ConsumerRecord record
    cdef Py_ssize_t i
    for i in range(len(records)):
        record = <ConsumerRecord?> records[i]
        key = record.key
        value = record.value
        try:
            if key_deserializer is not None and key is not None:
                key = key_deserializer(key)
            if value_deserializer is not None and value is not None:
                value = value_deserializer(value)
        except Exception as error:
            return i, error
        record.key = key
        record.value = value
    return len(records), None

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


def consumer_records(list records not None, topic, int32_t partition, *, int32_t leader_epoch=-1,
                     int8_t timestamp_type=0, key_deserializer=None, value_deserializer=None):
    """The same records for a user. A deserializer gets bytes, never None: what is null stays None.

    Stops before a record that a deserializer refuses: the result is (records so far, index, exception), with the
    number of records and None where all went well.
    """
    cdef list found = []
    cdef Record record
    cdef ConsumerRecord made
    cdef Py_ssize_t i
    for i in range(len(records)):
        record = <Record?> records[i]
        made = ConsumerRecord.__new__(ConsumerRecord)
        made.topic = topic
        made.partition = partition
        made.offset = record.offset
        made.timestamp = record.timestamp
        made.timestamp_type = timestamp_type
        made.leader_epoch = leader_epoch
        made.headers = record.headers
        made.key = record.key
        made.value = record.value
        try:
            if key_deserializer is not None and record.key is not None:
                made.key = key_deserializer(record.key)
            if value_deserializer is not None and record.value is not None:
                made.value = value_deserializer(record.value)
        except Exception as error:
            return found, i, error
        found.append(made)
    return found, len(records), None

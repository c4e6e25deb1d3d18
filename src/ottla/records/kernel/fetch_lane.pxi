# The lane for fetches of consumers that need not wait: all of a request is read, then its session goes on.

cdef enum:
    FETCH_KEY = 1
    FIRST_FETCH_VERSION = 4
    FIRST_FETCH_VERSION_WITH_LOG_START = 5
    FIRST_FETCH_VERSION_WITH_SESSIONS = 7
    FIRST_FETCH_VERSION_WITH_EPOCHS = 9
    FIRST_FETCH_VERSION_WITH_RACKS = 11
    FIRST_FLEXIBLE_FETCH_VERSION = 12
    FIRST_FETCH_VERSION_WITH_IDS = 13
    FIRST_FETCH_VERSION_WITH_REPLICA_STATE = 15
    READ_COMMITTED = 1
    # Of a request: what names more is kept by its connection, or read in turns.
    MOST_FETCH_PARTITIONS = 63
    # What is around the records of a partition: its topic, whose name has at most 249 bytes, and its numbers.
    MOST_AROUND_RECORDS = 400
    AROUND_BYTES = 128 * 1024


@cython.final
cdef class FetchedPartition:
    """A partition as the lane has found it."""

    cdef object partition
    cdef KnownTopic topic
    cdef object key                 # in sessions
    cdef int64_t requested          # the number of the request that read it last


cdef struct PartitionRead:
    # What is asked for.
    int32_t index
    int32_t current_leader_epoch
    int32_t last_fetched_epoch
    int32_t max_bytes
    int64_t fetch_offset
    int64_t log_start               # as a follower has it
    int64_t order                   # its place in its session
    # What was found.
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    Py_ssize_t at                   # the records in what was read
    Py_ssize_t size
    bint is_included                # in the response
    Py_ssize_t behind               # where the records go into what is around all records


@cython.final
cdef class FetchLane(RequestLane):
    """Answers the fetches of consumers that need nothing special, of one or more partitions that this broker leads,
    without a session or continuing one.

    Unusual, and so for Python, are followers, a request that has to wait for records, one that begins, changes or
    ends a session, records that are not in memory or are damaged, a consumer that is sent to another replica, an
    error of any kind.

    A read follows `UnifiedLog.read`, and what a request does to its session is what `FetchReader` does.
    """

    cdef object _impatient
    cdef object _unreadable
    cdef object _isolations
    cdef uint8_t* _around
    cdef int64_t _number            # of the request
    # The request.
    cdef int _count_of_reads
    cdef int _count_of_named        # of the reads, those that the request names: the first ones
    cdef int32_t _correlation_id
    cdef int32_t _max_wait_ms
    cdef int32_t _min_bytes
    cdef int32_t _max_bytes
    cdef int32_t _session_id
    cdef int32_t _session_epoch
    cdef bint _is_committed
    cdef bint _has_rack
    cdef object _client_id
    cdef PartitionRead[MOST_FETCH_PARTITIONS] _reads
    cdef int[MOST_FETCH_PARTITIONS] _sequence    # the reads in their order
    cdef list _partitions           # `FetchedPartition`s
    cdef list _cached               # of the session; empty where there is none
    cdef list _data                 # what was read, or None
    cdef list _aborted              # tuples of transactions, or None

    def __cinit__(self, *_):
        self._around = <uint8_t*> PyMem_RawMalloc(AROUND_BYTES)
        if self._around == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_RawFree(self._around)

    def __init__(self, gate, quotas, statistics_of, now_ns, time_bounds_ns, crc32c, internal_topics, topic_partition,
                 may_read, int max_version, impatient, unreadable, isolations):
        """`impatient` is what reads run within that must not wait for the disk, `unreadable` what they raise where
        Python has to read again, and `isolations` are those of read_uncommitted and read_committed.
        """
        self._open(FETCH_KEY, FIRST_FETCH_VERSION, max_version, gate, quotas, statistics_of, now_ns,
                   time_bounds_ns, crc32c, internal_topics, topic_partition, may_read)
        self._impatient = impatient
        self._unreadable = unreadable
        self._isolations = isolations

    cdef bint _answer(self, connection, uint8_t* frame, Py_ssize_t size, int version, int64_t now_ms,
                      bint may_wait) except -1:
        try:
            return self._fetch(connection, frame, size, version, now_ms)
        finally:
            # What was read is the connection's now.
            self._partitions = self._cached = self._data = self._aborted = None

    cdef bint _fetch(self, connection, uint8_t* frame, Py_ssize_t size, int version, int64_t now_ms) except -1:
        cdef int64_t limit
        cdef int64_t enough
        cdef int64_t read_bytes = -1
        cdef Py_ssize_t around
        broker = self._broker
        session = None
        self._refresh()
        self._number += 1
        self._partitions = []
        self._cached = []
        if connection.is_inter_broker or not self._parse(frame + 4, frame + size, version):
            return False
        if self._has_rack and broker.replication.selects_nearest:
            return False
        limit = min(<int64_t> self._max_bytes, <int64_t> broker.config.number("fetch.max.bytes"))
        # Python counts the frame before it asks how large the response may be.
        if limit < 0 or <int64_t> connection.pool.response_bytes() - size < limit:
            return False
        enough = min(<int64_t> self._min_bytes, limit)
        if self._session_id == 0 and self._session_epoch == -1:
            if not self._count_of_named:
                return False
        elif self._session_id > 0 and self._session_epoch > 0:
            session = self._session(connection, version)
            if session is None:
                return False
        else:
            return False
        if broker.authorizer is not None and not self._are_allowed(connection):
            return False
        if session is not None and not self._count_of_reads and self._max_wait_ms > 0 and enough > 0:
            return False
        self._data = [None] * self._count_of_reads
        self._aborted = [None] * self._count_of_reads
        try:
            with self._impatient:
                read_bytes = self._read_all(limit)
        except self._unreadable:
            return False
        if read_bytes < 0 or (self._max_wait_ms > 0 and read_bytes < enough):
            return False
        around = self._encode(session, version)
        if around < 0:
            return False
        # The response is there. From here on the request is done.
        if session is not None:
            self._continue_session(session, enough, now_ms)
        self._count_reads()
        self._send(connection, around, read_bytes)
        return True

    # The request

    cdef bint _parse(self, const uint8_t* p, const uint8_t* end, int version) except -1:
        """Read a request from its correlation id on; False if it is not whole or has something unusual."""
        cdef bint is_flexible = version >= FIRST_FLEXIBLE_FETCH_VERSION
        cdef bint by_id = version >= FIRST_FETCH_VERSION_WITH_IDS
        cdef bint has_sessions = version >= FIRST_FETCH_VERSION_WITH_SESSIONS
        cdef int16_t client_size
        cdef int64_t topics = 0
        cdef int64_t partitions = 0
        cdef int64_t name_size = 0
        cdef int64_t i
        cdef int64_t j
        cdef int count = 0
        cdef Py_ssize_t partition_bytes = 16
        cdef const uint8_t* client
        cdef PartitionRead* read
        cdef KnownTopic topic
        cdef FetchedPartition found
        if end - p < 6:
            return False
        self._correlation_id = get32(p)
        client_size = get16(p + 4)
        p += 6
        client = p
        if client_size > 0:
            if client_size > end - p or not is_ascii(p, client_size):
                return False
            p += client_size
        if is_flexible:
            if end - p < 1 or p[0] != 0:
                return False
            p += 1
            partition_bytes += 1
        self._client_id = client_id(client, client_size)
        if version < FIRST_FETCH_VERSION_WITH_REPLICA_STATE:
            if end - p < 4 or get32(p) != -1:
                return False
            p += 4
        if end - p < 13:
            return False
        self._max_wait_ms = get32(p)
        self._min_bytes = get32(p + 4)
        self._max_bytes = get32(p + 8)
        self._is_committed = p[12] == READ_COMMITTED
        p += 13
        self._session_id, self._session_epoch = 0, -1
        if has_sessions:
            if end - p < 8:
                return False
            self._session_id = get32(p)
            self._session_epoch = get32(p + 4)
            p += 8
        if version >= FIRST_FETCH_VERSION_WITH_LOG_START:
            partition_bytes += 8
        if version >= FIRST_FETCH_VERSION_WITH_EPOCHS:
            partition_bytes += 4
        if is_flexible:
            partition_bytes += 4
        if not read_count(&p, end, is_flexible, &topics) or topics > MOST_FETCH_PARTITIONS:
            return False
        for i in range(topics):
            if by_id:
                name_size = 16
            elif not read_string(&p, end, is_flexible, &name_size):
                return False
            if name_size > end - p:
                return False
            topic = self._topic_at(p, name_size, by_id)
            p += name_size
            if topic is None or not read_count(&p, end, is_flexible, &partitions):
                return False
            if partitions > MOST_FETCH_PARTITIONS - count or partitions * partition_bytes > end - p:
                return False
            for j in range(partitions):
                read = &self._reads[count]
                read.index = get32(p)
                p += 4
                read.current_leader_epoch = read.last_fetched_epoch = -1
                read.log_start = -1
                if version >= FIRST_FETCH_VERSION_WITH_EPOCHS:
                    read.current_leader_epoch = get32(p)
                    p += 4
                read.fetch_offset = get64(p)
                p += 8
                if is_flexible:
                    read.last_fetched_epoch = get32(p)
                    p += 4
                if version >= FIRST_FETCH_VERSION_WITH_LOG_START:
                    read.log_start = get64(p)
                    p += 8
                read.max_bytes = get32(p)
                p += 4
                if is_flexible:
                    if p[0] != 0:
                        return False
                    p += 1
                found = self._partition(topic, read.index)
                if found is None or found.requested == self._number:
                    return False
                found.requested = self._number
                self._partitions.append(found)
                self._sequence[count] = count
                count += 1
            if is_flexible:
                if end - p < 1 or p[0] != 0:
                    return False
                p += 1
        self._count_of_reads = self._count_of_named = count
        if has_sessions:
            if not read_count(&p, end, is_flexible, &topics) or topics:
                return False
        self._has_rack = False
        if version >= FIRST_FETCH_VERSION_WITH_RACKS:
            if not read_string(&p, end, is_flexible, &name_size) or name_size > end - p:
                return False
            if not is_ascii(p, <int32_t> name_size):
                return False
            self._has_rack = name_size > 0
            p += name_size
        if is_flexible:
            if end - p < 1 or p[0] != 0:
                return False
            p += 1
        return p == end

    cdef FetchedPartition _partition(self, KnownTopic topic, int32_t index):
        cdef FetchedPartition made
        if index < 0:
            return None
        found = topic.partitions.get(index)
        if found is not None:
            return <FetchedPartition> found
        partition = self._replicas.find(self._topic_partition(topic.name, index))
        if partition is None or (type(topic.key) is bytes and partition.topic_id != topic.key):
            return None
        made = FetchedPartition.__new__(FetchedPartition)
        made.partition = partition
        made.topic = topic
        made.key = (topic.key, index)
        topic.partitions[index] = made
        return made

    cdef bint _are_allowed(self, connection) except -1:
        """Whether the client may read all the topics."""
        cdef FetchedPartition found
        for each in self._partitions:
            found = <FetchedPartition> each
            if found.topic.allowed != self._number:
                if not self._is_allowed(connection, self._client_id, found.topic.name, 1):
                    return False
                found.topic.allowed = self._number
        return True

    cdef object _session(self, connection, int version):
        """The session that a request continues, and what is to be read of it besides what the request names, in its
        order; None if Python has to look.
        """
        cdef FetchedPartition found
        cdef PartitionRead* read
        cdef KnownTopic topic
        cdef int i
        cdef int j
        cdef int n
        sessions = self._broker.fetch_sessions
        session = sessions._sessions.get(self._session_id)
        if session is None:
            return None
        partitions = session.partitions
        if (
            session.epoch != self._session_epoch
            or session.by_id != (version >= FIRST_FETCH_VERSION_WITH_IDS)
            or session.readers != 0
            or session.privileged
            or session.counted != len(partitions)
            or not self._has_terms(session.terms, connection, version)
        ):
            return None
        for i in range(self._count_of_named):
            cached = partitions.get((<FetchedPartition> self._partitions[i]).key)
            if cached is None:
                return None
            self._reads[i].order = cached.order
            self._cached.append(cached)
        n = self._count_of_named
        for cached in session.dirty:
            key = cached.key
            topic = self._topic(key[0])
            if topic is None:
                return None
            found = self._partition(topic, key[1])
            if found is None:
                return None
            if found.requested == self._number:
                continue  # as the request names it
            if n == MOST_FETCH_PARTITIONS:
                return None
            read = &self._reads[n]
            requested = cached.requested
            read.index = key[1]
            read.current_leader_epoch = requested.current_leader_epoch
            read.last_fetched_epoch = requested.last_fetched_epoch
            read.max_bytes = requested.partition_max_bytes
            read.fetch_offset = requested.fetch_offset
            read.order = cached.order
            self._partitions.append(found)
            self._cached.append(cached)
            n += 1
        self._count_of_reads = n
        for i in range(n):
            j = i
            while j > 0 and self._reads[self._sequence[j - 1]].order > self._reads[i].order:
                self._sequence[j] = self._sequence[j - 1]
                j -= 1
            self._sequence[j] = i
        return session

    cdef bint _has_terms(self, terms, connection, int version) except -1:
        """Whether the last fetch of a session was made as this one is: else all its partitions are to be read."""
        if terms is None:
            return False
        authorizer = self._broker.authorizer
        permissions = None
        if authorizer is not None:
            permissions = authorizer.version, connection.principal, connection.peer[0]
        return (
            terms.isolation is self._isolations[self._is_committed]
            and terms.only_leader == (version < FIRST_FETCH_VERSION_WITH_RACKS)
            and terms.replica_id == -1
            and terms.replica_epoch == -1
            and not terms.is_stale
            and not terms.rack
            and not terms.listener
            and terms.brokers is None
            and terms.permissions == permissions
        )

    # Reading

    cdef int64_t _read_all(self, int64_t limit) except -2:
        """Read all partitions within `limit`; how many bytes that are, or -1 if Python has to."""
        cdef int64_t read_bytes = 0
        cdef PartitionRead* read
        cdef int n
        cdef int i
        for n in range(self._count_of_reads):
            i = self._sequence[n]
            read = &self._reads[i]
            if not self._read(i, min(<int64_t> read.max_bytes, max(0, limit - read_bytes)), read_bytes == 0):
                return -1
            read_bytes += read.size
        return read_bytes

    cdef bint _read(self, int i, int64_t max_bytes, bint min_one_batch) except -1:
        """Read a partition, as `Partition.fetch_records` and `UnifiedLog.read` do; False if Python has to."""
        cdef PartitionRead* read = &self._reads[i]
        cdef int64_t offset = read.fetch_offset
        cdef int64_t end
        cdef int64_t upper
        cdef Py_ssize_t segment_at
        cdef FoundBatches found
        cdef bytes chunk
        partition = (<FetchedPartition> self._partitions[i]).partition
        log = partition.log
        local = log.local_log
        state = log._producer_state
        if (
            partition.leader_id != partition.broker_id
            or (read.current_leader_epoch != -1 and read.current_leader_epoch != <int64_t> partition.leader_epoch)
            or read.last_fetched_epoch != -1
            or max_bytes < 0
            or state is None
            or log._lacks_producers
            or log._truncation is not None
            or log.is_closed
            or not log.directory.is_online
        ):
            return False
        read.high_watermark = log.high_watermark
        read.log_start_offset = log.log_start_offset
        end = local.log_end_offset
        if <int64_t> state.loaded_at > read.high_watermark:
            return False
        read.last_stable_offset = log.last_stable_offset if state._txns else read.high_watermark
        upper = min(read.last_stable_offset if self._is_committed else read.high_watermark, end)
        if not read.log_start_offset <= offset <= end:
            return False
        read.at = read.size = 0
        if self._is_committed:
            self._aborted[i] = ()
        if offset >= upper:
            return True
        segments = <tuple> local._segments
        bases = <tuple> local._bases
        segment_at = segment_below(bases, offset)
        if segment_at < 0:
            return False
        chunk = read_sound(
            log, segments, bases, segment_at, offset, max_bytes, min_one_batch, upper, end, self._crc32c, &found
        )
        if chunk is None:
            return False
        if not min_one_batch and found.size == max_bytes and 0 < found.size < found.batch_size:
            self._aborted[i] = None  # not even the first batch is whole
            return True
        self._data[i] = chunk
        read.at = found.at
        read.size = found.size
        if read.size and self._is_committed and not has_no_aborted(segments, segment_at):
            records = chunk[read.at:read.at + read.size]
            self._aborted[i] = partition._aborted_transactions(offset, read.last_stable_offset, records)
        return True

    # The response

    cdef Py_ssize_t _encode(self, session, int version) except -2:
        """Write what is around the records of the response, and decide which partitions it has. Return its size;
        -1 if that is too much.
        """
        cdef bint is_flexible = version >= FIRST_FLEXIBLE_FETCH_VERSION
        cdef bint has_sessions = version >= FIRST_FETCH_VERSION_WITH_SESSIONS
        cdef bint by_id = version >= FIRST_FETCH_VERSION_WITH_IDS
        cdef uint8_t* out = self._around + 4
        cdef uint8_t* end = self._around + AROUND_BYTES
        cdef PartitionRead* read
        cdef KnownTopic topic
        cdef bytes name
        cdef int n
        cdef int m
        cdef int groups = 0
        cdef int64_t records = 0
        topic = None
        for n in range(self._count_of_reads):
            read = &self._reads[self._sequence[n]]
            if session is not None:
                cached = self._cached[self._sequence[n]]
                read.is_included = (
                    read.size > 0
                    or read.high_watermark != <int64_t> cached.high_watermark
                    or read.log_start_offset != <int64_t> cached.log_start_offset
                )
            else:
                read.is_included = True
            if read.is_included:
                records += read.size
                if (<FetchedPartition> self._partitions[self._sequence[n]]).topic is not topic:
                    topic = (<FetchedPartition> self._partitions[self._sequence[n]]).topic
                    groups += 1
        if records > INT32_MAX - AROUND_BYTES:
            return -1
        put32(out, self._correlation_id)
        out += 4
        if is_flexible:
            out[0] = 0
            out += 1
        put32(out, 0)  # not throttled
        out += 4
        if has_sessions:
            out[0], out[1] = 0, 0
            put32(out + 2, self._session_id)
            out += 6
        out = put_count(out, groups, is_flexible)
        topic = None
        for n in range(self._count_of_reads):
            read = &self._reads[self._sequence[n]]
            if not read.is_included:
                continue
            aborted = self._aborted[self._sequence[n]]
            if end - out < MOST_AROUND_RECORDS + (0 if aborted is None else 17 * len(<tuple> aborted)):
                return -1
            if (<FetchedPartition> self._partitions[self._sequence[n]]).topic is not topic:
                if topic is not None and is_flexible:
                    out[0] = 0
                    out += 1
                topic = (<FetchedPartition> self._partitions[self._sequence[n]]).topic
                name = topic.key if by_id else topic.name.encode()
                if len(name) > 249:
                    return -1
                if is_flexible and not by_id:
                    out = put_length(out, <uint32_t> len(name))
                elif not by_id:
                    out[0], out[1] = 0, <uint8_t> len(name)
                    out += 2
                memcpy(out, PyBytes_AS_STRING(name), len(name))
                out += len(name)
                groups = 0
                for m in range(n, self._count_of_reads):
                    if self._reads[self._sequence[m]].is_included:
                        if (<FetchedPartition> self._partitions[self._sequence[m]]).topic is not topic:
                            break
                        groups += 1
                out = put_count(out, groups, is_flexible)
            put32(out, read.index)
            out[4], out[5] = 0, 0
            put64(out + 6, read.high_watermark)
            put64(out + 14, read.last_stable_offset)
            out += 22
            if version >= FIRST_FETCH_VERSION_WITH_LOG_START:
                put64(out, read.log_start_offset)
                out += 8
            out = put_aborted(out, aborted, is_flexible)
            if version >= FIRST_FETCH_VERSION_WITH_RACKS:
                put32(out, -1)  # no preferred replica
                out += 4
            out = put_count(out, <int> read.size, is_flexible)
            # The records are put in between when it is sent.
            read.behind = out - self._around
            if is_flexible:
                out[0] = 0
                out += 1
        if is_flexible:
            if topic is not None:
                out[0] = 0
                out += 1
            out[0] = 0
            out += 1
        put32(self._around, <int32_t> (out - self._around - 4 + records))
        return out - self._around

    cdef int _send(self, connection, Py_ssize_t around, int64_t records) except -1:
        """Add the response to those that go out next: in one piece if it is small, else without a copy of the
        records.
        """
        cdef Py_ssize_t size = around + records
        cdef Py_ssize_t done = 0
        cdef PartitionRead* read
        cdef uint8_t* out
        cdef int n
        cdef bytes data
        self._response_bytes += size
        if size > LANE_RESPONSE_BYTES - self._out_size:
            self._hand_over(connection)
        if size <= LANE_RESPONSE_BYTES:
            out = self._out + self._out_size
            for n in range(self._count_of_reads):
                read = &self._reads[self._sequence[n]]
                if read.is_included and read.size:
                    memcpy(out, self._around + done, read.behind - done)
                    out += read.behind - done
                    done = read.behind
                    data = <bytes> self._data[self._sequence[n]]
                    memcpy(out, PyBytes_AS_STRING(data) + read.at, read.size)
                    out += read.size
            memcpy(out, self._around + done, around - done)
            self._out_size += size
            return 0
        for n in range(self._count_of_reads):
            read = &self._reads[self._sequence[n]]
            if read.is_included and read.size:
                connection.add_responses(
                    PyBytes_FromStringAndSize(<char*> self._around + done, read.behind - done)
                )
                done = read.behind
                data = <bytes> self._data[self._sequence[n]]
                connection.add_responses(
                    data if read.size == len(data) else data[read.at:read.at + read.size]
                )
        connection.add_responses(PyBytes_FromStringAndSize(<char*> self._around + done, around - done))
        return 0

    # What a fetch changes

    cdef int _count_reads(self) except -1:
        cdef PartitionRead* read
        cdef int i
        for i in range(self._count_of_reads):
            read = &self._reads[i]
            if read.size:
                statistics = (<FetchedPartition> self._partitions[i]).partition.statistics
                statistics.fetches += 1
                statistics.bytes_out += read.size
        return 0

    cdef int _continue_session(self, session, int64_t enough, int64_t now_ms) except -1:
        """Do to the session what `new_context`, the reads and the response of `FetchReader` would do."""
        cdef PartitionRead* read
        cdef int64_t read_bytes = 0
        cdef int n
        cdef int i
        sessions = self._broker.fetch_sessions._sessions
        dirty = session.dirty
        for i in range(self._count_of_named):
            read = &self._reads[i]
            cached = self._cached[i]
            requested = cached.requested
            requested.current_leader_epoch = read.current_leader_epoch
            requested.fetch_offset = read.fetch_offset
            requested.last_fetched_epoch = read.last_fetched_epoch
            requested.log_start_offset = read.log_start
            requested.partition_max_bytes = read.max_bytes
            dirty[cached] = None
        session.used_ms = session.last_fetch_ms = now_ms
        sessions[self._session_id] = sessions.pop(self._session_id)
        session.epoch = 1 if self._session_epoch == INT32_MAX else self._session_epoch + 1
        session.moved.clear()
        session.grown = 0
        for n in range(self._count_of_reads):
            i = self._sequence[n]
            read = &self._reads[i]
            read_bytes += read.size
            if not read.size:
                self._cached[i].mark_without_records((<FetchedPartition> self._partitions[i]).partition)
            elif read_bytes < enough:
                self._cached[i].mark((<FetchedPartition> self._partitions[i]).partition)
        for n in range(self._count_of_reads):
            i = self._sequence[n]
            read = &self._reads[i]
            if read.is_included:
                cached = self._cached[i]
                cached.high_watermark = read.high_watermark
                cached.log_start_offset = read.log_start_offset
                if read.size:
                    cached.order = session.next_order()
        return 0


cdef inline bint read_count(const uint8_t** at, const uint8_t* end, bint is_compact, int64_t* out) noexcept nogil:
    """The length of an array; False where it is null or no proper one."""
    if is_compact:
        return read_length(at, end, out)
    if end - at[0] < 4:
        return False
    out[0] = get32(at[0])
    at[0] += 4
    return out[0] >= 0


cdef inline bint read_string(const uint8_t** at, const uint8_t* end, bint is_compact, int64_t* out) noexcept nogil:
    """The length of a string; False where it is null or no proper one."""
    if is_compact:
        return read_length(at, end, out)
    if end - at[0] < 2:
        return False
    out[0] = get16(at[0])
    at[0] += 2
    return out[0] >= 0


cdef inline uint8_t* put_count(uint8_t* p, int count, bint is_compact) noexcept nogil:
    """Write the length of an array, or of records."""
    if is_compact:
        return put_length(p, <uint32_t> count)
    put32(p, count)
    return p + 4


cdef uint8_t* put_aborted(uint8_t* p, aborted, bint is_flexible) except NULL:
    """Write aborted transactions; None where the isolation is not read_committed."""
    if aborted is None:
        if is_flexible:
            p[0] = 0
            return p + 1
        put32(p, -1)
        return p + 4
    p = put_count(p, len(<tuple> aborted), is_flexible)
    for txn in <tuple> aborted:
        put64(p, txn.producer_id)
        put64(p + 8, txn.first_offset)
        p += 16
        if is_flexible:
            p[0] = 0
            p += 1
    return p


cdef bint has_no_aborted(tuple segments, Py_ssize_t at) except -1:
    """Whether it is known that no transaction was aborted from a segment on."""
    for segment in segments[at:]:
        index = segment._txn_index
        if index is None or not index.is_known_empty:
            return False
    return True

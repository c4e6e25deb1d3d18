# The lane for Produce requests that are nothing but plain batches: all of a request is checked, then appended.

cdef enum:
    PRODUCE_KEY = 0
    FIRST_PRODUCE_VERSION = 9       # the first flexible one
    FIRST_PRODUCE_VERSION_WITH_IDS = 13
    MOST_PRODUCE_PARTITIONS = 32    # of a request; more are appended in turns
    RESPONSE_OF_A_PARTITION = 33
    MAX_RELATIVE_OFFSET = 0x7FFF_FFFF


@cython.final
cdef class LedPartition:
    """A partition as the lane has found it, and the numbers of the settings that were in force when it last
    looked; the objects are replaced with every change, so their identity says whether the numbers are those
    of now.
    """

    cdef object partition
    cdef object config
    cdef object segment
    cdef bint is_plain              # whether the settings let a batch be stored as its producer made it
    cdef bint compact
    cdef int64_t before_max_ms
    cdef int64_t after_max_ms
    cdef int64_t max_message_bytes
    cdef int64_t segment_bytes
    cdef int64_t flush_due_messages
    cdef int64_t index_interval_bytes
    cdef int64_t max_segment_ms     # of the segment, without its jitter
    cdef int64_t base_offset        # of the segment

    cdef int look_at_config(self, config) except -1:
        self.compact = config.compact
        self.before_max_ms = config.message_timestamp_before_max_ms
        self.after_max_ms = config.message_timestamp_after_max_ms
        self.max_message_bytes = config.max_message_bytes
        self.segment_bytes = config.segment_bytes
        self.flush_due_messages = config.flush_due_messages
        self.index_interval_bytes = config.index_interval_bytes
        target = config.target_codec
        self.is_plain = (
            config.message_timestamp_type is CREATE_TIME and (target is None or target is Codec.NONE)
        )
        self.segment = None
        self.config = config
        return 0

    cdef int look_at_segment(self, segment) except -1:
        self.max_segment_ms = self.config.max_segment_ms - segment.roll_jitter_ms
        self.base_offset = segment.base_offset
        self.segment = segment
        return 0


@cython.final
cdef class ProduceLane(RequestLane):
    """Answers the Produce requests that need nothing special.

    Unusual, and so for Python, are a transaction, compression, a partition that another broker leads, a roll, a
    duplicate, an error of any kind.

    If a write fails, the batches before it are in the log. Then the frame is for the handler, too, with
    `appended`: the offsets of those, which it answers with instead of appending them again.

    A request that comes while no other of its connection is in progress, and need not wait, is taken from the
    receive buffer (`RequestLanes.take`). `answer` takes one request, whose response may have to wait for replicas
    (`waiting`).
    """

    cdef object _invariants
    cdef readonly object appended
    cdef readonly list waiting
    cdef readonly int timeout_ms

    def __init__(self, gate, quotas, statistics_of, now_ns, time_bounds_ns, crc32c, internal_topics, topic_partition,
                 may_write, int max_version, invariants):
        self._open(PRODUCE_KEY, FIRST_PRODUCE_VERSION, max_version, gate, quotas, statistics_of, now_ns,
                   time_bounds_ns, crc32c, internal_topics, topic_partition, may_write)
        self._invariants = invariants

    def answer(self, connection, frame):
        """Answer one frame, without its size: the response, empty where there is none to send; None if the
        frame is for the handler. If `waiting` is set then, the response has to wait until each partition's high
        watermark has reached an offset: (partition, offset, its place in the request), or `timeout_ms` is over.
        """
        cdef Py_buffer view
        cdef uint8_t* data
        cdef int version
        self.appended = None
        self.waiting = None
        if not self._bind():
            return None
        PyObject_GetBuffer(frame, &view, PyBUF_WRITABLE)
        try:
            data = <uint8_t*> view.buf
            if view.len < 8 or self._is_metered():
                return None
            version = get16(data + 2)
            if version < self._first_version or version > self._max_version:
                return None
            self._out_size = 0
            if not self._answer(connection, data, view.len, version, self._wall_ms(), True):
                return None
            return PyBytes_FromStringAndSize(<char*> self._out, self._out_size)
        finally:
            PyBuffer_Release(&view)

    cdef bint _answer(self, connection, uint8_t* frame, Py_ssize_t size, int version, int64_t now_ms,
                      bint may_wait) except -1:
        """Append what a request has, and add its response; False, with nothing changed, if it is for Python.
        The exception is a write that failed: see `appended`.
        """
        cdef const uint8_t* p = frame + 4
        cdef const uint8_t* end = frame + size
        cdef bint by_id = version >= FIRST_PRODUCE_VERSION_WITH_IDS
        cdef int32_t correlation_id = get32(p)
        cdef int16_t acks
        cdef int64_t length
        cdef int64_t topics
        cdef int64_t partitions
        cdef int64_t count = 0
        cdef const uint8_t* name
        cdef int64_t name_size
        cdef const uint8_t* client
        cdef int16_t client_size
        cdef uint8_t* out = self._out + self._out_size
        cdef uint8_t* out_end = self._out + LANE_RESPONSE_BYTES
        cdef uint8_t* start = out
        cdef int64_t i
        cdef int64_t j
        cdef int32_t index
        cdef LedPartition led
        cdef BatchHeader header
        cdef list found = []
        cdef list headers = []
        cdef (uint8_t*)[MOST_PRODUCE_PARTITIONS] batches
        cdef (uint8_t*)[MOST_PRODUCE_PARTITIONS] answers
        cdef KnownTopic topic
        broker = self._broker
        if broker.logs.new_logs:
            return False
        # The header: correlation id, client id, no tagged fields.
        p += 4
        if end - p < 2:
            return False
        client_size = get16(p)
        p += 2
        client = p
        if client_size > 0:
            if client_size > end - p or not is_ascii(p, client_size):
                return False
            p += client_size
        # No tagged fields, no transaction; acks, a time-out and the topics.
        if end - p < 10 or p[0] != 0 or p[1] != 0:
            return False
        acks = get16(p + 2)
        self.timeout_ms = get32(p + 4)
        if acks < -1 or acks > 1:
            return False
        p += 8
        if not read_length(&p, end, &topics) or topics < 1 or topics > MOST_PRODUCE_PARTITIONS:
            return False
        if out_end - out < 32:
            return False
        put32(out + 4, correlation_id)
        out[8] = 0
        out = put_length(out + 9, <uint32_t> topics)
        self._refresh()
        for i in range(topics):
            if by_id:
                name_size = 16
            elif not read_length(&p, end, &name_size):
                return False
            if name_size > end - p:
                return False
            name = p
            p += name_size
            topic = self._topic_at(name, name_size, by_id)
            if topic is None or topic.is_internal:
                return False
            if not read_length(&p, end, &partitions) or partitions < 1 or partitions > MOST_PRODUCE_PARTITIONS - count:
                return False
            if out_end - out < name_size + 16 + partitions * RESPONSE_OF_A_PARTITION:
                return False
            if not by_id:
                out = put_length(out, <uint32_t> name_size)
            memcpy(out, name, name_size)
            out = put_length(out + name_size, <uint32_t> partitions)
            if broker.authorizer is not None and not self._is_allowed(
                connection, client_id(client, client_size), topic.name, partitions
            ):
                return False
            for j in range(partitions):
                if end - p < 5:
                    return False
                index = get32(p)
                p += 4
                if not read_length(&p, end, &length) or length >= end - p:
                    return False
                led = self._partition(topic, index)
                if led is None or led in found:
                    return False
                header = self._check(led, p, length, acks, now_ms, may_wait)
                if header is None:
                    return False
                found.append(led)
                headers.append(header)
                batches[count] = <uint8_t*> p
                put32(out, index)
                answers[count] = out
                out += RESPONSE_OF_A_PARTITION
                count += 1
                p += length
                if p[0] != 0:
                    return False
                p += 1
            if p >= end or p[0] != 0:
                return False
            p += 1
            out[0] = 0
            out += 1
        if end - p != 1 or p[0] != 0:
            return False
        # Everything is checked. From here on the request is done.
        for i in range(count):
            led = <LedPartition> found[i]
            header = <BatchHeader> headers[i]
            try:
                self._write(led, header, batches[i])
            except OSError:
                for j in range(i, count):
                    put64(batches[j], 0)
                    put32(batches[j] + 12, (<BatchHeader> headers[j]).leader_epoch)
                self.appended = [
                    (
                        (<BatchHeader> headers[j]).base_offset,
                        (<BatchHeader> headers[j]).base_offset + (<BatchHeader> headers[j]).count,
                        (<LedPartition> found[j]).partition.log.log_start_offset,
                    )
                    for j in range(i)
                ]
                return False
            self._note_append(led, header, now_ms)
            if acks == -1 and led.partition._remote_replicas:
                if self.waiting is None:
                    self.waiting = []
                self.waiting.append((led.partition, header.base_offset + header.last_offset_delta + 1, i))
            answers[i][4], answers[i][5] = 0, 0
            put64(answers[i] + 6, header.base_offset)
            put64(answers[i] + 14, -1)
            put64(answers[i] + 22, led.partition.log.log_start_offset)
            answers[i][30], answers[i][31], answers[i][32] = 1, 0, 0
        if acks:
            put32(out, 0)
            out[4] = 0
            out += 5
            put32(start, <int32_t> (out - start - 4))
            self._out_size += out - start
            self._response_bytes += out - start
        return True

    cdef LedPartition _partition(self, KnownTopic topic, int32_t index):
        cdef LedPartition led
        if index < 0:
            return None
        found = topic.partitions.get(index)
        if found is not None:
            return <LedPartition> found
        partition = self._replicas.find(self._topic_partition(topic.name, index))
        if partition is None:
            return None
        led = LedPartition.__new__(LedPartition)
        led.partition = partition
        topic.partitions[index] = led
        return led

    # Appending

    cdef BatchHeader _check(self, LedPartition led, const uint8_t* data, int64_t size, int acks, int64_t now_ms,
                            bint may_wait):
        """The header of a batch that can be appended now; None if Python has to say what becomes of it."""
        cdef BatchHeader header
        cdef Rules rules
        cdef int64_t held
        cdef int64_t first_ms
        cdef int64_t end_offset
        cdef int64_t last_offset
        cdef int64_t durable
        partition = led.partition
        log = partition.log
        local = log.local_log
        config = local.config
        if config is not led.config:
            led.look_at_config(config)
        if (
            not led.is_plain
            or size > led.max_message_bytes
            or size > led.segment_bytes
            or partition.leader_id != partition.broker_id
            or partition._refused_sequences is not None
            or partition.rejects_appends_since_ms is not None
            or log._truncation is not None
            or log.is_closed
            or not log._end_verified
            or not log.directory.is_online
        ):
            return None
        if acks == -1:
            isr = partition._isr_state.isr
            if partition._remote_replicas:
                if not may_wait or len(isr) < <int64_t> partition.min_isr:
                    return None
            elif not isr:
                return None
        rules.keys_required = led.compact
        rules.create_time = True
        rules.now_ms = now_ms
        rules.before_max_ms = led.before_max_ms
        rules.after_max_ms = led.after_max_ms
        header = check_plain(data, size, self._crc32c, &rules)
        if header is None or header.attributes & TRANSACTIONAL_BIT:
            return None
        end_offset = local.log_end_offset
        last_offset = end_offset + header.last_offset_delta
        # Flushes that are due, the epoch's first record, the end of all offsets.
        durable = max(<int64_t> local.recovery_point, <int64_t> log.log_start_offset)
        epochs = log._leader_epochs
        if (
            last_offset + 1 - durable >= led.flush_due_messages
            or last_offset < end_offset
            or last_offset >= INT64_MAX - 1
            or epochs is None
            or epochs.latest_epoch != partition.leader_epoch
        ):
            return None
        # A segment that takes it.
        segments = <tuple> local._segments
        segment = segments[len(segments) - 1]
        if segment is not led.segment:
            if segment._config is not config:
                return None
            led.look_at_segment(segment)
        indexes = segment._indexes
        held = segment._size
        if (
            indexes is None
            or indexes.are_full
            or held < 0
            or held > led.segment_bytes - size
            or last_offset - led.base_offset > MAX_RELATIVE_OFFSET
        ):
            return None
        if held > 0:
            first = segment._first_timestamp
            if first is None:
                return None
            first_ms = first
            if first_ms >= 0:
                if header.max_timestamp - first_ms > led.max_segment_ms:
                    return None
            elif now_ms - <int64_t> segment.created_ms > led.max_segment_ms:
                return None
        if header.producer_id != -1 and not self._follows(log, header):
            return None
        return header

    cdef bint _follows(self, log, BatchHeader header) except -1:
        """Whether the batch of an idempotent producer is the next one of its epoch."""
        state = log._producer_state
        if (
            state is None
            or log._lacks_producers
            or not 0 <= header.producer_id < <int64_t> FIRST_BROKER_PRODUCER_ID
        ):
            return False
        entry = state._producers.get(header.producer_id)
        if (
            entry is None
            or entry.producer_epoch != header.producer_epoch
            or entry.current_txn_first_offset is not None
            or header.producer_id in state._verifications
        ):
            return False
        batches = entry.batches
        if not batches:
            return False
        return header.base_sequence == sequence_at(batches[len(batches) - 1].last_sequence, 1)

    cdef int _write(self, LedPartition led, BatchHeader header, uint8_t* data) except -1:
        """Write a batch that was checked behind the last one. OSError if the disk does not take it."""
        partition = led.partition
        put64(data, <int64_t> partition.log.local_log.log_end_offset)
        put32(data + 12, <int32_t> partition.leader_epoch)
        segment = led.segment
        segment._log.for_write().pwrite(
            PyMemoryView_FromMemory(<char*> data, OVERHEAD_BYTES + <int64_t> header.batch_length, PyBUF_READ),
            segment._size,
        )
        header.base_offset = get64(data)
        header.leader_epoch = get32(data + 12)
        return 0

    cdef int _note_append(self, LedPartition led, BatchHeader header, int64_t now_ms) except -1:
        """Take a batch into the state of the partition: it is in the log."""
        cdef int64_t size = OVERHEAD_BYTES + <int64_t> header.batch_length
        cdef int64_t last_offset = header.base_offset + header.last_offset_delta
        cdef int64_t position
        cdef int64_t since
        partition = led.partition
        log = partition.log
        local = log.local_log
        segment = led.segment
        indexes = segment._indexes
        position = segment._size
        if position == 0:
            segment._first_timestamp = header.max_timestamp
        since = indexes.since_entry
        if since > led.index_interval_bytes:
            indexes.add(position, header, led.index_interval_bytes)
        else:
            if header.max_timestamp > <int64_t> indexes.greatest_timestamp:
                indexes.greatest_timestamp = header.max_timestamp
                indexes.greatest_offset = last_offset
            indexes.since_entry = since + size
        segment._size = position + size
        local.log_end_offset = last_offset + 1
        if indexes.flush_due:
            local.flush_active_indexes()
        producers = log._producer_state
        if producers is not None:
            if header.producer_id != -1:
                producers.append_next(header)
            producers.map_end_offset = last_offset + 1
        statistics = partition.statistics
        statistics.produces += 1
        statistics.bytes_in += size
        statistics.messages_in += header.count
        if partition._remote_replicas or (producers is not None and producers._completed):
            partition._maybe_increment_high_watermark(now_ms)
        else:
            log.high_watermark = last_offset + 1
            log.directory.high_watermarks.moved[log] = None
            if self._invariants.thorough:
                log._check_offsets()
        partition._on_progress()
        return 0

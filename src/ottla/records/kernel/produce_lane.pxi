# The lane: Produce requests that are nothing but plain batches, from the bytes of their frame to those of
# their response, in one call.

cdef enum:
    PRODUCE_KEY = 0
    FIRST_LANE_VERSION = 9          # the first flexible one
    FIRST_VERSION_WITH_IDS = 13
    MOST_LANE_PARTITIONS = 32       # of a request; more are appended in turns
    MOST_LANE_FRAMES = 256          # of a call
    MOST_TIME_BOUNDS = 64
    RESPONSE_BYTES = 64 * 1024
    RESPONSE_OF_A_PARTITION = 33
    TURN_NS = 2_000_000
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


cdef inline bint read_length(const uint8_t** at, const uint8_t* end, int64_t* out) noexcept nogil:
    """The length of a compact string or array; False where it is null or no proper one."""
    cdef uint64_t raw = 0
    if read_raw(at, end, 28, &raw) != SOUND or raw == 0 or raw > INT32_MAX:
        return False
    out[0] = <int64_t> raw - 1
    return True


cdef inline uint8_t* put_length(uint8_t* p, uint32_t length) noexcept nogil:
    cdef uint32_t left = length + 1
    while left > 0x7F:
        p[0] = <uint8_t> (left & 0x7F) | 0x80
        left >>= 7
        p += 1
    p[0] = <uint8_t> left
    return p + 1


@cython.final
cdef class ProduceLane:
    """Answers the Produce requests of a listener that need nothing special; Python answers all others.

    A request is parsed and all of it is checked before anything is changed. What is unusual in any part of it
    (another version, a transaction, compression, a partition that another broker leads, a roll, a duplicate, an error of any kind) makes it a request for the handler
    in Python as a whole, which finds everything as it was. The lane keeps no state of a partition: it reads
    and writes the attributes of `Partition`, `UnifiedLog` and `LogSegment`, and appends by the same file of
    the same disk.

    If a write fails, the batches before it are in the log. Then the frame is for the handler, too, with
    `appended`: the offsets of those, which it answers with instead of appending them again.

    `take` answers what comes while no request of a connection is in progress, and need not wait. `answer` takes
    one request, whose response may have to wait for replicas (`waiting`).
    """

    cdef object _gate
    cdef object _quotas
    cdef object _statistics_of
    cdef object _now_ns
    cdef object _crc32c
    cdef object _internal_topics
    cdef object _may_write
    cdef object _topic_partition
    cdef object _invariants
    cdef int _max_version
    cdef object _broker
    cdef object _replicas
    cdef object _wall_ms
    cdef object _image
    cdef object _version
    cdef dict _led
    cdef int64_t[MOST_TIME_BOUNDS] _bounds
    cdef int _bound_count
    cdef uint8_t* _out
    cdef Py_ssize_t _out_size
    cdef int64_t[MOST_LANE_FRAMES] _started_ns
    cdef int64_t[MOST_LANE_FRAMES] _ready_ns
    cdef readonly object appended
    cdef readonly list waiting
    cdef readonly int timeout_ms

    def __cinit__(self):
        self._out = <uint8_t*> PyMem_RawMalloc(RESPONSE_BYTES)
        if self._out == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_RawFree(self._out)

    def __init__(self, gate, quotas, statistics_of, now_ns, time_bounds_ns, crc32c, internal_topics, topic_partition,
                 invariants, may_write, int max_version):
        self._gate = gate
        self._quotas = quotas
        self._statistics_of = statistics_of
        self._now_ns = now_ns
        self._crc32c = crc32c
        self._internal_topics = internal_topics
        self._topic_partition = topic_partition
        self._invariants = invariants
        self._may_write = may_write
        self._max_version = max_version
        self._led = {}
        if len(time_bounds_ns) > MOST_TIME_BOUNDS:
            raise ValueError(f"{len(time_bounds_ns)} classes of times are more than {<int> MOST_TIME_BOUNDS}")
        self._bound_count = len(time_bounds_ns)
        for i, bound in enumerate(time_bounds_ns):
            self._bounds[i] = bound

    def take(self, connection, data, Py_ssize_t position, int64_t room, int64_t received_ns):
        """Answer the frames from `position` on, up to the first that is for Python; return the position behind
        them. Responses go to `connection.add_responses`. `room` is the memory that a frame may take, and `data`
        is written to.
        """
        cdef Py_buffer view
        self.appended = None
        if self._broker is None and not self._bind():
            return position
        PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
        try:
            return self._take(connection, <uint8_t*> view.buf, position, view.len, room, received_ns)
        finally:
            PyBuffer_Release(&view)

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
        if self._broker is None and not self._bind():
            return None
        PyObject_GetBuffer(frame, &view, PyBUF_WRITABLE)
        try:
            data = <uint8_t*> view.buf
            if view.len < 8 or is_metered(self._quotas):
                return None
            version = get16(data + 2)
            if version < FIRST_LANE_VERSION or version > self._max_version:
                return None
            self._out_size = 0
            if not self._answer(connection, data, view.len, version, self._wall_ms(), True):
                return None
            return PyBytes_FromStringAndSize(<char*> self._out, self._out_size)
        finally:
            PyBuffer_Release(&view)

    cdef bint _bind(self) except -1:
        services = self._gate.services
        if services is None or services.broker is None:
            return False
        self._broker = services.broker
        self._replicas = self._broker.replicas
        self._wall_ms = self._broker.runtime.clock.wall_ms
        return True

    cdef Py_ssize_t _take(self, connection, uint8_t* data, Py_ssize_t position, Py_ssize_t end, int64_t room,
                          int64_t received_ns) except -1:
        cdef int64_t size
        cdef int64_t began_ns = self._now_ns()
        cdef int64_t now_ns = began_ns
        cdef int64_t now_ms = self._wall_ms()
        cdef int64_t request_bytes = 0
        cdef int version = -1
        cdef int frames = 0
        cdef int taken
        cdef Py_ssize_t written_before
        self._out_size = 0
        quotas = self._quotas
        try:
            while end - position >= 12 and frames < MOST_LANE_FRAMES:
                size = get32(data + position)
                if size < 8 or size > end - position - 4 or size > room or get16(data + position + 4) != PRODUCE_KEY:
                    break
                if version < 0:
                    version = get16(data + position + 6)
                    if version < FIRST_LANE_VERSION or version > self._max_version or is_metered(quotas):
                        break
                elif get16(data + position + 6) != version:
                    break
                written_before = self._out_size
                taken = self._answer(connection, data + position + 4, size, version, now_ms, False)
                if not taken:
                    self._out_size = written_before
                    break
                position += size + 4
                request_bytes += size
                self._started_ns[frames] = now_ns
                now_ns = self._now_ns()
                self._ready_ns[frames] = now_ns
                frames += 1
                if now_ns - began_ns > TURN_NS:
                    break
        finally:
            # What was appended is answered, whatever happened behind it.
            if frames:
                if self._out_size:
                    connection.add_responses(PyBytes_FromStringAndSize(<char*> self._out, self._out_size))
                self._count(version, frames, request_bytes, received_ns)
        return position

    cdef int _count(self, int version, int frames, int64_t request_bytes, int64_t received_ns) except -1:
        """Count requests as those that go through Python are; their responses go out now."""
        cdef int64_t queue_ns = 0
        cdef int64_t local_ns = 0
        cdef int64_t send_ns = 0
        cdef int64_t sent_ns = self._ready_ns[frames - 1]
        cdef int64_t total_ns = sent_ns - received_ns
        cdef int i
        cdef int low = 0
        cdef int high = self._bound_count
        statistics = self._statistics_of(version)
        if statistics is None:
            return 0
        for i in range(frames):
            queue_ns += self._started_ns[i] - received_ns
            local_ns += self._ready_ns[i] - self._started_ns[i]
            send_ns += sent_ns - self._ready_ns[i]
        while low < high:  # the class whose end is the first that is not below
            i = (low + high) // 2
            if self._bounds[i] < total_ns:
                low = i + 1
            else:
                high = i
        statistics.count += frames
        statistics.request_bytes += request_bytes
        statistics.response_bytes += self._out_size
        statistics.queue_ns += queue_ns
        statistics.local_ns += local_ns
        statistics.send_ns += send_ns
        statistics.times[low] += frames
        return 0

    cdef bint _answer(self, connection, uint8_t* frame, Py_ssize_t size, int version, int64_t now_ms,
                      bint may_wait) except -1:
        """Append what a request has, and add its response; False, with nothing changed, if it is for Python.
        The exception is a write that failed: see `appended`.
        """
        cdef const uint8_t* p = frame + 4
        cdef const uint8_t* end = frame + size
        cdef bint by_id = version >= FIRST_VERSION_WITH_IDS
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
        cdef uint8_t* out_end = self._out + RESPONSE_BYTES
        cdef uint8_t* start = out
        cdef int64_t i
        cdef int64_t j
        cdef int32_t index
        cdef LedPartition led
        cdef BatchHeader header
        cdef list found = []
        cdef list headers = []
        cdef (uint8_t*)[MOST_LANE_PARTITIONS] batches
        cdef (uint8_t*)[MOST_LANE_PARTITIONS] answers
        cdef dict of_topic
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
        if not read_length(&p, end, &topics) or topics < 1 or topics > MOST_LANE_PARTITIONS:
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
            of_topic = self._topic(name, name_size, by_id)
            if of_topic is None:
                return False
            if not read_length(&p, end, &partitions) or partitions < 1 or partitions > MOST_LANE_PARTITIONS - count:
                return False
            if out_end - out < name_size + 16 + partitions * RESPONSE_OF_A_PARTITION:
                return False
            if not by_id:
                out = put_length(out, <uint32_t> name_size)
            memcpy(out, name, name_size)
            out = put_length(out + name_size, <uint32_t> partitions)
            if broker.authorizer is not None and not self._may_write(
                connection, client_id(client, client_size), of_topic[None], partitions
            ):
                return False
            for j in range(partitions):
                if end - p < 5:
                    return False
                index = get32(p)
                p += 4
                if not read_length(&p, end, &length) or length >= end - p:
                    return False
                led = self._partition(of_topic, index)
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
        return True

    # Partitions

    cdef int _refresh(self) except -1:
        """Forget what was found, if topics or partitions have changed since."""
        image = self._broker.metadata.image
        version = self._replicas.partitions_version
        if image is not self._image or version != self._version:
            self._led = {}
            self._image = image
            self._version = version
        return 0

    cdef dict _topic(self, const uint8_t* name, Py_ssize_t size, bint by_id):
        """The partitions of a topic that were found so far, by index, and its name at None; nothing if Python has
        to look.
        """
        cdef bytes key = PyBytes_FromStringAndSize(<const char*> name, size)
        found = self._led.get(key)
        if found is not None:
            return <dict> found
        if by_id:
            topic = self._image.topics.by_id.get(key)
            if topic is None:
                return None
            text = topic.name
        else:
            if not is_ascii(name, <int32_t> size):
                return None
            text = key.decode()
            # What is looked for in vain is not kept: a client may ask for any name.
            if text not in self._image.topics.by_name:
                return None
        if text in self._internal_topics:
            return None
        self._led[key] = made = {None: text}
        return made

    cdef LedPartition _partition(self, dict of_topic, int32_t index):
        cdef LedPartition led
        if index < 0:
            return None
        found = of_topic.get(index)
        if found is not None:
            return <LedPartition> found
        partition = self._replicas.find(self._topic_partition(of_topic[None], index))
        if partition is None:
            return None
        led = LedPartition.__new__(LedPartition)
        led.partition = partition
        of_topic[index] = led
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


cdef inline object client_id(const uint8_t* data, int16_t size):
    return None if size < 0 else PyUnicode_DecodeUTF8(<const char*> data, size, NULL)


cdef inline bint is_metered(quotas) except -1:
    """Whether the Produce requests of some client count for a quota."""
    return quotas.is_active and <int> PRODUCE_KEY in quotas.metered

# The lane: requests that need nothing special, from the bytes of their frame to those of their response, in
# one call. This is what the lanes for Produce and for Fetch have in common.

cdef enum:
    MOST_LANE_FRAMES = 256          # of a call
    MOST_TIME_BOUNDS = 64
    LANE_RESPONSE_BYTES = 64 * 1024
    # Responses of a call after which the connection sees whether its client reads them.
    LANE_TURN_BYTES = 256 * 1024
    TURN_NS = 2_000_000


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


cdef inline object client_id(const uint8_t* data, int16_t size):
    return None if size < 0 else PyUnicode_DecodeUTF8(<const char*> data, size, NULL)


@cython.final
cdef class KnownTopic:
    """A topic that requests have named, and those of its partitions that a lane has found."""

    cdef object key                 # its id, or its name, as requests name it
    cdef object name
    cdef bint is_internal
    cdef dict partitions            # by index
    cdef int64_t allowed            # the number of the request for which that was asked last


cdef class RequestLane:
    """Answers the requests of one API of a listener that need nothing special; Python answers all others.

    A request is parsed and all of it is checked before anything is changed. What is unusual in any part of it
    makes it a request for the handler in Python as a whole, which finds everything as it was. A lane keeps no
    state of a partition: it reads and writes the attributes of the objects that have it, and uses the same
    files of the same disk. What it remembers are partitions that it has found, until the image of the
    metadata or the partitions that this broker hosts are others.
    """

    cdef int _key
    cdef int _first_version
    cdef int _max_version
    cdef object _gate
    cdef object _quotas
    cdef object _statistics_of
    cdef object _now_ns
    cdef object _crc32c
    cdef object _internal_topics
    cdef object _topic_partition
    cdef object _is_allowed
    cdef object _broker
    cdef object _replicas
    cdef object _wall_ms
    cdef object _image
    cdef object _version
    cdef dict _topics               # by id or name
    cdef int64_t[MOST_TIME_BOUNDS] _bounds
    cdef int _bound_count
    cdef uint8_t* _out
    cdef Py_ssize_t _out_size
    cdef int64_t _response_bytes    # of the responses of a call
    cdef int64_t[MOST_LANE_FRAMES] _started_ns
    cdef int64_t[MOST_LANE_FRAMES] _ready_ns

    def __cinit__(self, *_):
        self._out = <uint8_t*> PyMem_RawMalloc(LANE_RESPONSE_BYTES)
        if self._out == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_RawFree(self._out)

    cdef int _open(self, int key, int first_version, int max_version, gate, quotas, statistics_of, now_ns,
                   time_bounds_ns, crc32c, internal_topics, topic_partition, is_allowed) except -1:
        self._key = key
        self._first_version = first_version
        self._max_version = max_version
        self._gate = gate
        self._quotas = quotas
        self._statistics_of = statistics_of
        self._now_ns = now_ns
        self._crc32c = crc32c
        self._internal_topics = internal_topics
        self._topic_partition = topic_partition
        self._is_allowed = is_allowed
        self._topics = {}
        if len(time_bounds_ns) > MOST_TIME_BOUNDS:
            raise ValueError(f"{len(time_bounds_ns)} classes of times are more than {<int> MOST_TIME_BOUNDS}")
        self._bound_count = len(time_bounds_ns)
        for i, bound in enumerate(time_bounds_ns):
            self._bounds[i] = bound
        return 0

    cdef bint _bind(self) except -1:
        if self._broker is not None:
            return True
        services = self._gate.services
        if services is None or services.broker is None:
            return False
        self._broker = services.broker
        self._replicas = self._broker.replicas
        self._wall_ms = self._broker.runtime.clock.wall_ms
        return True

    cdef bint _is_metered(self) except -1:
        """Whether the requests of some client count for a quota."""
        quotas = self._quotas
        return quotas.is_active and self._key in quotas.metered

    cdef bint _answer(self, connection, uint8_t* frame, Py_ssize_t size, int version, int64_t now_ms,
                      bint may_wait) except -1:
        """Do what a request asks for, and add its response; False, with nothing changed, if it is for Python."""
        raise NotImplementedError

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
        self._response_bytes = 0
        try:
            while end - position >= 12 and frames < MOST_LANE_FRAMES and self._response_bytes < LANE_TURN_BYTES:
                size = get32(data + position)
                if size < 8 or size > end - position - 4 or size > room or get16(data + position + 4) != self._key:
                    break
                if version < 0:
                    version = get16(data + position + 6)
                    if version < self._first_version or version > self._max_version or self._is_metered():
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
            # What was done is answered, whatever happened behind it.
            if frames:
                self._hand_over(connection)
                self._count(version, frames, request_bytes, received_ns)
        return position

    cdef int _hand_over(self, connection) except -1:
        """Let the responses that were written go out next."""
        if self._out_size:
            connection.add_responses(PyBytes_FromStringAndSize(<char*> self._out, self._out_size))
            self._out_size = 0
        return 0

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
        statistics.response_bytes += self._response_bytes
        statistics.queue_ns += queue_ns
        statistics.local_ns += local_ns
        statistics.send_ns += send_ns
        statistics.times[low] += frames
        return 0

    # Topics

    cdef int _refresh(self) except -1:
        """Forget what was found, if topics or partitions have changed since."""
        image = self._broker.metadata.image
        version = self._replicas.partitions_version
        if image is not self._image or version != self._version:
            self._topics = {}
            self._image = image
            self._version = version
        return 0

    cdef KnownTopic _topic(self, key):
        """The topic of an id (bytes) or a name; nothing if Python has to look. What is looked for in vain is not
        kept: a client may ask for any name.
        """
        cdef KnownTopic made
        found = self._topics.get(key)
        if found is not None:
            return <KnownTopic> found
        if type(key) is bytes:
            topic = self._image.topics.by_id.get(key)
            if topic is None:
                return None
            name = topic.name
        elif key in self._image.topics.by_name:
            name = key
        else:
            return None
        made = KnownTopic.__new__(KnownTopic)
        made.key = key
        made.name = name
        made.is_internal = name in self._internal_topics
        made.partitions = {}
        self._topics[key] = made
        return made

    cdef KnownTopic _topic_at(self, const uint8_t* name, Py_ssize_t size, bint by_id):
        """The topic that a request names by these bytes."""
        if by_id:
            return self._topic(PyBytes_FromStringAndSize(<const char*> name, size))
        if not is_ascii(name, <int32_t> size):
            return None
        return self._topic(PyUnicode_DecodeUTF8(<const char*> name, size, NULL))


@cython.final
cdef class RequestLanes:
    """The lanes of a listener, as its connections see them."""

    cdef ProduceLane _produce
    cdef FetchLane _fetch

    def __init__(self, ProduceLane produce, FetchLane fetch):
        self._produce = produce
        self._fetch = fetch

    @property
    def appended(self):
        return self._produce.appended

    def take(self, connection, data, Py_ssize_t position, int64_t room, int64_t received_ns):
        """Answer the frames from `position` on, up to the first that is for Python; return the position behind
        them. Responses go to `connection.add_responses`. `room` is the memory that a frame may take, and `data`
        is written to.
        """
        cdef Py_buffer view
        cdef uint8_t* frame
        cdef int16_t key
        cdef RequestLane lane
        self._produce.appended = None
        PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
        try:
            if view.len - position < 12:
                return position
            frame = <uint8_t*> view.buf + position
            key = get16(frame + 4)
            if key == PRODUCE_KEY:
                lane = self._produce
            elif key == FETCH_KEY:
                lane = self._fetch
            else:
                return position
            if not lane._bind():
                return position
            return lane._take(connection, <uint8_t*> view.buf, position, view.len, room, received_ns)
        finally:
            PyBuffer_Release(&view)

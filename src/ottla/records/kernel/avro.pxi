# Data in Avro into columns in Arrow's memory layout, by a tree of columns that is made of a schema.

cdef enum AvroKind:
    AVRO_NULL = 0
    AVRO_BOOLEAN = 1
    AVRO_INT = 2
    AVRO_LONG = 3
    AVRO_FLOAT = 4
    AVRO_DOUBLE = 5
    AVRO_BYTES = 6
    AVRO_STRING = 7
    AVRO_FIXED = 8
    AVRO_ENUM = 9
    AVRO_DECIMAL = 10
    AVRO_ARRAY = 11
    AVRO_MAP = 12
    AVRO_RECORD = 13
    AVRO_UNION = 14
    AVRO_NULLABLE = 15
    AVRO_REFUSED = 16

AVRO_KINDS = {
    "null": <int> AVRO_NULL,
    "boolean": <int> AVRO_BOOLEAN,
    "int": <int> AVRO_INT,
    "long": <int> AVRO_LONG,
    "float": <int> AVRO_FLOAT,
    "double": <int> AVRO_DOUBLE,
    "bytes": <int> AVRO_BYTES,
    "string": <int> AVRO_STRING,
    "fixed": <int> AVRO_FIXED,
    "enum": <int> AVRO_ENUM,
    "decimal": <int> AVRO_DECIMAL,
    "array": <int> AVRO_ARRAY,
    "map": <int> AVRO_MAP,
    "record": <int> AVRO_RECORD,
    "union": <int> AVRO_UNION,
    "nullable": <int> AVRO_NULLABLE,
    "refused": <int> AVRO_REFUSED,
}

cdef enum AvroFault:
    AVRO_SOUND = 0
    AVRO_ENDS = 1
    AVRO_LONG_NUMBER = 2
    AVRO_OUT_OF_RANGE = 3
    AVRO_NO_BOOLEAN = 4
    AVRO_NO_TEXT = 5
    AVRO_NO_BRANCH = 6
    AVRO_NO_SYMBOL = 7
    AVRO_TOO_MANY = 8
    AVRO_LARGE_DECIMAL = 9
    AVRO_UNRESOLVED = 10
    AVRO_TRAILING = 11

AVRO_FAULTS = (
    "",
    "the data end inside of a value",
    "a number has more than 64 bits",
    "a number is out of the range of its type",
    "a boolean is neither 0 nor 1",
    "a string is no UTF-8",
    "a union has a branch that its schema does not have",
    "an enum has a symbol that the schema does not have",
    "the data have too many values",
    "a decimal has more digits than its type",
    "the reader's schema has no type for the value",
    "bytes are left after the value",
)

cdef enum:
    # Some values take no bytes, and those around a value none of their own; one byte makes a null of many
    # columns.
    AVRO_VALUES_OF_A_BYTE = 8
    AVRO_EMPTY_VALUES = 1_000
    AVRO_NULLS_OF_A_BYTE = 32
    AVRO_EMPTY_NULLS = 20_000
    AVRO_MAX_VALUES = 16_000_000


cdef struct AvroInput:
    const uint8_t* p
    const uint8_t* end
    int64_t values                  # that may still come
    int64_t nulls                   # that may still be filled in
    int64_t written                 # bytes of columns, about


cdef inline AvroFault read_avro_long(AvroInput* given, int64_t* found) noexcept nogil:
    cdef uint64_t number = 0
    cdef int shift = 0
    cdef uint8_t byte
    while given.p != given.end:
        byte = given.p[0]
        given.p += 1
        if shift == 63 and byte > 1:
            return AVRO_LONG_NUMBER
        number |= (<uint64_t> (byte & 0x7F)) << shift
        if byte < 0x80:
            found[0] = <int64_t> ((number >> 1) ^ (0 - (number & 1)))
            return AVRO_SOUND
        shift += 7
    return AVRO_ENDS


cdef inline AvroFault read_avro_count(AvroInput* given, int64_t* count) noexcept nogil:
    """The number of items of a block; 0 at the end."""
    cdef int64_t size
    cdef AvroFault fault = read_avro_long(given, count)
    if fault == AVRO_SOUND and count[0] < 0:
        if count[0] == INT64_MIN:
            return AVRO_TOO_MANY
        count[0] = -count[0]
        fault = read_avro_long(given, &size)  # of the block in bytes, which is not needed
    if fault == AVRO_SOUND and count[0] > given.values:
        return AVRO_TOO_MANY
    return fault


@cython.final
cdef class AvroColumn:
    """The values of one type of a schema, with the columns of what is inside of it.

    One that is not kept reads over its values. A nullable has no column of its own: a null is one of what is
    inside. `low` and `high` limit numbers; `size` is the bytes of a fixed, or those of the decimals of one (-1
    for decimals of any number of bytes); `null_branch` is the place of null in a nullable's union, of
    `branches` types, and `may_be_null` whether the reader takes it; `allowed` has a byte for each symbol of an
    enum that is not 0 if the reader has it.
    """

    cdef int kind
    cdef bint kept
    cdef readonly list children
    cdef int64_t low
    cdef int64_t high
    cdef int64_t size
    cdef int null_branch
    cdef int branches
    cdef bint may_be_null
    cdef bytes allowed
    cdef uint64_t decimal_high
    cdef uint64_t decimal_low
    cdef Block valid
    cdef Block offsets
    cdef Block data
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t null_count
    cdef Py_ssize_t rows_before
    cdef Py_ssize_t nulls_before
    cdef Py_ssize_t data_before

    def __init__(self, int kind, list children, *, bint kept=True, int64_t low=INT64_MIN, int64_t high=INT64_MAX,
                 int64_t size=0, int null_branch=-1, int branches=0, bint may_be_null=True, bytes allowed=b"",
                 object decimal_limit=0):
        self.kind = kind
        self.kept = kept
        self.children = children
        self.low = low
        self.high = high
        self.size = size
        self.null_branch = null_branch
        self.branches = branches
        self.may_be_null = may_be_null
        self.allowed = allowed
        self.decimal_high = decimal_limit >> 64
        self.decimal_low = decimal_limit & 0xFFFFFFFFFFFFFFFF
        if kept and kind != AVRO_NULLABLE:
            self.valid = Block(recycled=True)
            self.data = Block(recycled=True)
            self.offsets = Block(recycled=True)
            if self.has_offsets():
                self.offsets.reserve(sizeof(int32_t))
                put_int32(self.offsets, 0)
        if kind in (AVRO_ARRAY, AVRO_NULLABLE) and len(children) != 1 or kind == AVRO_MAP and len(children) != 2:
            raise ValueError("a column has another number of children than its kind")

    def buffers(self):
        """A byte for each row that is 0 where it is null (None if no row is); offsets; data."""
        return self.valid if self.null_count else None, self.offsets, self.data

    cdef inline bint has_offsets(self) noexcept:
        return self.kind in (AVRO_BYTES, AVRO_STRING, AVRO_FIXED, AVRO_ARRAY, AVRO_MAP)

    cdef inline int add_row(self, AvroInput* given, bint is_valid, Py_ssize_t width) except -1:
        self.valid.reserve(1)
        self.valid.data[self.valid.size] = is_valid
        self.valid.size += 1
        self.rows += 1
        self.null_count += not is_valid
        given.written += width + 1
        return 0

    cdef inline int add_fixed(self, AvroInput* given, const void* data, Py_ssize_t width, bint is_valid) except -1:
        self.data.reserve(width)
        memcpy(self.data.data + self.data.size, data, width)
        self.data.size += width
        return self.add_row(given, is_valid, width)

    cdef inline int add_offset(self, AvroInput* given, Py_ssize_t end, bint is_valid) except -1:
        if end > INT32_MAX:
            raise OverflowError("a column cannot hold more than 2 GiB; decode fewer records at once")
        self.offsets.reserve(sizeof(int32_t))
        put_int32(self.offsets, <int32_t> end)
        return self.add_row(given, is_valid, sizeof(int32_t))

    cdef inline AvroColumn child(self, Py_ssize_t place):
        return <AvroColumn> self.children[place]

    cdef int put_null(self, AvroInput* given) except -1:
        """A row that is null, in this column and in those inside of it that have a row for each of its own."""
        cdef Py_ssize_t i
        cdef int fault
        cdef uint64_t[2] nothing
        if not self.kept:
            return AVRO_SOUND
        given.nulls -= 1
        if given.nulls < 0:
            return AVRO_TOO_MANY
        if self.kind == AVRO_NULLABLE:
            return self.child(0).put_null(given)
        if self.kind == AVRO_RECORD or self.kind == AVRO_UNION:
            for i in range(len(self.children)):
                fault = self.child(i).put_null(given)
                if fault:
                    return fault
            self.add_row(given, False, 0)
        elif self.kind == AVRO_ARRAY or self.kind == AVRO_MAP:
            self.add_offset(given, self.child(0).inner_rows(), False)
        elif self.has_offsets():
            self.add_offset(given, self.data.size, False)
        else:
            nothing[0] = nothing[1] = 0
            self.add_fixed(given, nothing, self.width(), False)
        return AVRO_SOUND

    cdef inline Py_ssize_t inner_rows(self):
        """The rows of this column, or of the one that a nullable stands for."""
        cdef AvroColumn found = self
        while found.kind == AVRO_NULLABLE:
            found = <AvroColumn> found.children[0]
        return found.rows

    cdef inline Py_ssize_t width(self) noexcept:
        if self.kind == AVRO_DECIMAL:
            return 16
        if self.kind == AVRO_LONG or self.kind == AVRO_DOUBLE:
            return 8
        if self.kind == AVRO_INT or self.kind == AVRO_FLOAT or self.kind == AVRO_ENUM:
            return 4
        return self.kind == AVRO_BOOLEAN

    cdef int read(self, AvroInput* given) except -1:
        """Read a value into a row. The fault that it has, or 0."""
        cdef int64_t number = 0
        cdef int32_t small
        cdef int fault
        cdef int kind = self.kind
        given.values -= 1
        if given.values < 0:
            return AVRO_TOO_MANY
        if kind == AVRO_INT or kind == AVRO_LONG:
            fault = read_avro_long(given, &number)
            if fault:
                return fault
            if number < self.low or number > self.high:
                return AVRO_OUT_OF_RANGE
            if not self.kept:
                return AVRO_SOUND
            if kind == AVRO_LONG:
                return self.add_fixed(given, &number, 8, True)
            small = <int32_t> number
            return self.add_fixed(given, &small, 4, True)
        if kind == AVRO_NULLABLE:
            fault = read_avro_long(given, &number)
            if fault:
                return fault
            if number < 0 or number >= self.branches:
                return AVRO_NO_BRANCH
            if number != self.null_branch:
                return self.child(0).read(given)
            return self.child(0).put_null(given) if self.may_be_null else AVRO_UNRESOLVED
        if kind == AVRO_STRING or kind == AVRO_BYTES:
            fault = read_avro_long(given, &number)
            return fault if fault else self.read_bytes(given, number)
        if kind == AVRO_RECORD:
            return self.read_record(given)
        if kind == AVRO_DOUBLE or kind == AVRO_FLOAT:
            number = 8 if kind == AVRO_DOUBLE else 4
            if given.end - given.p < number:
                return AVRO_ENDS
            given.p += number
            return self.add_fixed(given, given.p - number, number, True) if self.kept else AVRO_SOUND
        if kind == AVRO_FIXED:
            return self.read_bytes(given, self.size)
        if kind == AVRO_DECIMAL:
            return self.read_decimal(given)
        if kind == AVRO_ENUM:
            fault = read_avro_long(given, &number)
            if fault:
                return fault
            if number < 0 or number >= len(self.allowed):
                return AVRO_NO_SYMBOL
            if not self.kept:
                return AVRO_SOUND
            if not <uint8_t> self.allowed[number]:
                return AVRO_UNRESOLVED
            small = <int32_t> number
            return self.add_fixed(given, &small, 4, True)
        if kind == AVRO_BOOLEAN:
            if given.p == given.end:
                return AVRO_ENDS
            if given.p[0] > 1:
                return AVRO_NO_BOOLEAN
            given.p += 1
            return self.add_fixed(given, given.p - 1, 1, True) if self.kept else AVRO_SOUND
        if kind == AVRO_UNION:
            return self.read_union(given)
        if kind == AVRO_ARRAY or kind == AVRO_MAP:
            return self.read_items(given)
        if kind == AVRO_NULL:
            return self.add_row(given, False, 0) if self.kept else AVRO_SOUND
        return AVRO_UNRESOLVED

    cdef int read_bytes(self, AvroInput* given, int64_t size) except -1:
        cdef const uint8_t* data = given.p
        if size < 0 or size > given.end - data:
            return AVRO_ENDS
        given.p += size
        if not self.kept:
            return AVRO_SOUND
        if self.kind == AVRO_STRING and not is_ascii(data, <int32_t> size):
            try:
                PyUnicode_DecodeUTF8(<const char*> data, size, NULL)
            except UnicodeDecodeError:
                return AVRO_NO_TEXT
        self.data.reserve(size)
        memcpy(self.data.data + self.data.size, data, size)
        self.data.size += size
        given.written += size
        return self.add_offset(given, self.data.size, True)

    cdef int read_decimal(self, AvroInput* given) except -1:
        """A whole number in two's complement, the largest byte first, of any size."""
        cdef int64_t size = self.size
        cdef uint64_t[2] found          # the lower half first, as in Arrow
        cdef uint64_t low
        cdef uint64_t high
        cdef uint8_t sign
        cdef int64_t i
        cdef int fault
        if size < 0:
            fault = read_avro_long(given, &size)
            if fault:
                return fault
        if size < 0 or size > given.end - given.p:
            return AVRO_ENDS
        given.p += size
        if not self.kept:
            return AVRO_SOUND
        sign = 0xFF if size and given.p[-size] & 0x80 else 0
        low = high = 0 - <uint64_t> (sign & 1)
        for i in range(size):
            if i < size - 16:
                if given.p[i - size] != sign:
                    return AVRO_LARGE_DECIMAL
                continue
            high = (high << 8) | (low >> 56)
            low = (low << 8) | given.p[i - size]
        if (high >> 63) != (sign & 1):
            return AVRO_LARGE_DECIMAL
        found[0] = low
        found[1] = high
        if sign:
            low = 0 - low
            high = ~high + (low == 0)
        if high > self.decimal_high or (high == self.decimal_high and low >= self.decimal_low):
            return AVRO_LARGE_DECIMAL
        return self.add_fixed(given, found, 16, True)

    cdef int read_record(self, AvroInput* given) except -1:
        cdef Py_ssize_t i
        cdef int fault
        for i in range(len(self.children)):
            fault = self.child(i).read(given)
            if fault:
                return fault
        return self.add_row(given, True, 0) if self.kept else AVRO_SOUND

    cdef int read_union(self, AvroInput* given) except -1:
        cdef int64_t branch
        cdef Py_ssize_t i
        cdef int fault = read_avro_long(given, &branch)
        if fault:
            return fault
        if branch < 0 or branch >= len(self.children):
            return AVRO_NO_BRANCH
        for i in range(len(self.children)):
            fault = self.child(i).read(given) if i == branch else self.child(i).put_null(given)
            if fault:
                return fault
        return self.add_row(given, self.child(branch).kept, 0) if self.kept else AVRO_SOUND

    cdef int read_items(self, AvroInput* given) except -1:
        cdef int64_t count
        cdef int fault
        while True:
            fault = read_avro_count(given, &count)
            if fault:
                return fault
            if not count:
                break
            while count:
                fault = self.child(0).read(given)
                if not fault and self.kind == AVRO_MAP:
                    fault = self.child(1).read(given)
                if fault:
                    return fault
                count -= 1
        return self.add_offset(given, self.child(0).inner_rows(), True) if self.kept else AVRO_SOUND

    cdef void remember(self):
        cdef Py_ssize_t i
        if self.kept and self.kind != AVRO_NULLABLE:
            self.rows_before = self.rows
            self.nulls_before = self.null_count
            self.data_before = self.data.size
        for i in range(len(self.children)):
            self.child(i).remember()

    cdef void restore(self):
        cdef Py_ssize_t i
        if self.kept and self.kind != AVRO_NULLABLE:
            self.rows = self.rows_before
            self.null_count = self.nulls_before
            self.data.size = self.data_before
            self.valid.size = self.rows
            if self.has_offsets():
                self.offsets.size = (self.rows + 1) * sizeof(int32_t)
        for i in range(len(self.children)):
            self.child(i).restore()


def read_avro(AvroColumn column, BinaryInput values, Py_ssize_t start, Py_ssize_t head, int64_t most_bytes):
    """Read the values from row `start` on, each after its first `head` bytes, until there are about
    `most_bytes` of columns. The row after the last one, and (row, fault) of those that do not parse, which
    are null, as are those without a value.
    """
    cdef AvroInput given
    cdef const uint8_t* data = NULL
    cdef int64_t size
    cdef Py_ssize_t row = start
    cdef int fault
    faults = []
    given.written = 0
    while row < values.rows and given.written < most_bytes:
        given.nulls = AVRO_MAX_VALUES
        if not values.get(row, &data, &size):
            raise ValueError("a row of a column lies outside of its data")
        if size < 0:
            column.put_null(&given)
            row += 1
            continue
        given.p = data
        given.end = given.p + size
        fault = AVRO_ENDS
        column.remember()
        if size >= head:
            given.p += head
            given.values = min(size * AVRO_VALUES_OF_A_BYTE + AVRO_EMPTY_VALUES, AVRO_MAX_VALUES)
            given.nulls = min(size * AVRO_NULLS_OF_A_BYTE + AVRO_EMPTY_NULLS, AVRO_MAX_VALUES)
            fault = column.read(&given)
            if fault == AVRO_SOUND and given.p != given.end:
                fault = AVRO_TRAILING
        if fault:
            column.restore()
            given.nulls = AVRO_MAX_VALUES
            column.put_null(&given)
            faults.append((row, fault))
        row += 1
    return row, faults


# Columns to data in Avro.


@cython.final
cdef class AvroSource:
    """A column in Arrow's layout, and the type of a schema that its values are written as.

    `valid` has a bit for each row from `first` on; `offsets` and `data` are those of the layout of its kind:
    int32, int64, float and so on, decimals of 16 bytes, enums as int32, booleans as bits. A constant has the bytes of
    each value. A nullable has one child, which is what is null; `null_branch` and `branch` are the places in its union.
    A union has a child for each type but null, of which one is not null.
    """

    cdef int kind
    cdef list children
    cdef const uint8_t[::1] valid
    cdef const uint8_t[::1] offsets
    cdef const uint8_t[::1] data
    cdef Py_ssize_t first
    cdef Py_ssize_t rows
    cdef int64_t size
    cdef int null_branch
    cdef int branch
    cdef bytes branches

    def __init__(self, int kind, list children, valid=None, offsets=None, data=None, *, Py_ssize_t first=0,
                 Py_ssize_t rows=0, int64_t size=0, int null_branch=-1, int branch=0, bytes branches=b""):
        cdef Py_ssize_t width = 0
        self.kind = kind
        self.children = children
        self.valid = None if valid is None else memoryview(valid).cast("B")
        self.offsets = None if offsets is None else memoryview(offsets).cast("B")
        self.data = None if data is None else memoryview(data).cast("B")
        self.first = first
        self.rows = rows
        self.size = size
        self.null_branch = null_branch
        self.branch = branch
        self.branches = branches
        if valid is not None and self.valid.shape[0] * 8 < first + rows:
            raise ValueError("the validity of a column is shorter than the column")
        if kind in (AVRO_BYTES, AVRO_STRING, AVRO_FIXED, AVRO_ARRAY, AVRO_MAP):
            if offsets is None or rows and self.offsets.shape[0] // 4 < first + rows + 1:
                raise ValueError("the offsets of a column are shorter than the column")
        elif kind == AVRO_BOOLEAN:
            if data is None or self.data.shape[0] * 8 < first + rows:
                raise ValueError("the data of a column are shorter than the column")
        else:
            if kind in (AVRO_INT, AVRO_FLOAT, AVRO_ENUM):
                width = 4
            elif kind in (AVRO_LONG, AVRO_DOUBLE):
                width = 8
            elif kind == AVRO_DECIMAL:
                width = 16
            if width and (data is None or self.data.shape[0] // width < first + rows):
                raise ValueError("the data of a column are shorter than the column")

    cdef inline AvroSource child(self, Py_ssize_t place):
        return <AvroSource> self.children[place]

    cdef inline bint is_null(self, Py_ssize_t row) noexcept:
        row += self.first
        return self.valid is not None and not self.valid[row >> 3] & (1 << (row & 7))

    cdef int write(self, Block out, Py_ssize_t row) except -1:
        """Write the value of a row; 1 if it is none of the type."""
        cdef int32_t start
        cdef int32_t end
        cdef int32_t small
        cdef int64_t number
        cdef Py_ssize_t i
        cdef int kind = self.kind
        if row < 0 or row >= self.rows:
            return 1
        if kind == AVRO_NULLABLE:
            if self.child(0).is_null(row):
                put_avro_long(out, self.null_branch)
                return 0
            put_avro_long(out, self.branch)
            return self.child(0).write(out, row)
        if kind == AVRO_NULL:  # a constant
            put_avro_bytes(out, <const uint8_t*> PyBytes_AS_STRING(self.branches), len(self.branches))
            return 0
        if self.is_null(row):
            if kind == AVRO_UNION and self.null_branch >= 0:
                put_avro_long(out, self.null_branch)
                return 0
            return 1
        if kind == AVRO_RECORD:
            for i in range(len(self.children)):
                if self.child(i).write(out, row):
                    return 1
            return 0
        if kind == AVRO_UNION:
            for i in range(len(self.children)):
                if not self.child(i).is_null(row):
                    put_avro_long(out, self.branches[i])
                    return self.child(i).write(out, row)
            if self.null_branch < 0:
                return 1
            put_avro_long(out, self.null_branch)
            return 0
        row += self.first
        if kind == AVRO_INT or kind == AVRO_ENUM:
            memcpy(&small, &self.data[row * 4], 4)
            put_avro_long(out, small)
            return 0
        if kind == AVRO_LONG:
            memcpy(&number, &self.data[row * 8], 8)
            put_avro_long(out, number)
            return 0
        if kind == AVRO_DOUBLE:
            put_avro_bytes(out, &self.data[row * 8], 8)
            return 0
        if kind == AVRO_FLOAT:
            put_avro_bytes(out, &self.data[row * 4], 4)
            return 0
        if kind == AVRO_BOOLEAN:
            out.reserve(1)
            out.data[out.size] = (self.data[row >> 3] >> (row & 7)) & 1
            out.size += 1
            return 0
        if kind == AVRO_DECIMAL:
            return self.write_decimal(out, &self.data[row * 16])
        memcpy(&start, &self.offsets[row * 4], 4)
        memcpy(&end, &self.offsets[row * 4 + 4], 4)
        if start < 0 or end < start:
            return 1
        if kind == AVRO_ARRAY or kind == AVRO_MAP:
            if end > start:
                put_avro_long(out, end - start)
            for i in range(start, end):
                if self.child(0).write(out, i) or (kind == AVRO_MAP and self.child(1).write(out, i)):
                    return 1
            put_avro_long(out, 0)
            return 0
        if end > start and (self.data is None or end > self.data.shape[0]):
            return 1
        if kind == AVRO_FIXED:
            if end - start != self.size:
                return 1
        else:
            put_avro_long(out, end - start)
        if end > start:
            put_avro_bytes(out, &self.data[start], end - start)
        return 0

    cdef int write_decimal(self, Block out, const uint8_t* number) except -1:
        """The fewest bytes that have the number, or `size` of them, the largest first."""
        cdef int64_t count = 16
        cdef int64_t i
        cdef uint8_t sign = 0xFF if number[15] & 0x80 else 0
        while count > 1 and number[count - 1] == sign and (number[count - 2] & 0x80) == (sign & 0x80):
            count -= 1
        if self.size >= 0:
            if count > self.size:
                return 1
            out.reserve(self.size)
            memset(out.data + out.size, sign, self.size - count)
            out.size += self.size - count
        else:
            put_avro_long(out, count)
        out.reserve(count)
        for i in range(count):
            out.data[out.size + i] = number[count - 1 - i]
        out.size += count
        return 0


cdef inline int put_avro_long(Block out, int64_t number) except -1:
    cdef uint64_t left = (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)
    out.reserve(10)
    while left > 0x7F:
        out.data[out.size] = <uint8_t> (left | 0x80)
        out.size += 1
        left >>= 7
    out.data[out.size] = <uint8_t> left
    out.size += 1
    return 0


cdef inline int put_avro_bytes(Block out, const uint8_t* data, Py_ssize_t size) except -1:
    out.reserve(size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


def write_avro(AvroSource source, bytes prefix, Py_ssize_t rows):
    """Write each row after `prefix`; nothing for one that is null. The offsets and the data of a column of
    bytes, or None if a value is none of its type.
    """
    cdef Block offsets = Block((rows + 1) * sizeof(int32_t), recycled=True)
    cdef Block out = Block(recycled=True)
    cdef Py_ssize_t row
    put_int32(offsets, 0)
    for row in range(rows):
        if not source.is_null(row):
            put_avro_bytes(out, <const uint8_t*> PyBytes_AS_STRING(prefix), len(prefix))
            if source.write(out, row):
                return None
            if out.size > INT32_MAX:
                raise OverflowError("a column cannot hold more than 2 GiB; encode fewer records at once")
        put_int32(offsets, <int32_t> out.size)
    return offsets, out

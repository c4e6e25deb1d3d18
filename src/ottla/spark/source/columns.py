"""The columns of the source: Spark's names and types, and the kernel's Arrow batches converted to them.

Spark takes a batch only if its Arrow schema is exactly the Arrow form of the data source's schema: every
field nullable, timestamps in microseconds. The kernel decodes what is in the bytes; topic and partition are
the same for a whole batch and are repeated from arrays that are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField, StructType


COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""All columns in the order of Spark's own source."""
ERROR = "_error"
"""Why a typed key or value does not parse; null where both do."""
_NONE: Mapping[str, StructField] = MappingProxyType({})
_CONSTANT = frozenset({"topic", "partition"})


def spark_schema(columns: Sequence[str], typed: Mapping[str, StructField] = _NONE) -> StructType:
    """The columns in Spark. `typed` are the keys and values that are not bytes."""
    from pyspark.sql import types as t

    header = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    kinds = {
        "key": t.BinaryType(),
        "value": t.BinaryType(),
        "topic": t.StringType(),
        "partition": t.IntegerType(),
        "offset": t.LongType(),
        "timestamp": t.TimestampType(),
        "timestampType": t.IntegerType(),
        "headers": t.ArrayType(header),
        "keyBytes": t.BinaryType(),
        "valueBytes": t.BinaryType(),
        ERROR: t.StringType(),
    }
    return t.StructType([typed.get(name) or t.StructField(name, kinds[name]) for name in columns])


@lru_cache(maxsize=16)
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The Arrow form of `spark_schema`, built without Spark."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    kinds = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.field("element", header)),
    }
    return pa.schema([pa.field(name, kinds[name]) for name in columns])


class BatchShaper:
    """Converts the kernel's batches of one partition to the schema that Spark expects."""

    def __init__(self, columns: Sequence[str], topic: str, partition: int) -> None:
        self.schema = arrow_schema(tuple(columns))
        self.decoded = [name for name in columns if name not in _CONSTANT]
        """The columns that the kernel has to fill."""
        self._values = {"topic": topic, "partition": partition}
        self._repeated: dict[str, Any] = {}

    def shape(self, batch: pa.RecordBatch, rows: int) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = []
        for field in self.schema:
            if field.name in _CONSTANT:
                arrays.append(self._constant(field, rows))
                continue
            array = batch.column(field.name)
            arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(self, field: pa.Field, rows: int) -> pa.Array:
        import pyarrow as pa

        kept = self._repeated.get(field.name)
        if kept is None or len(kept) < rows:
            kept = pa.repeat(pa.scalar(self._values[field.name], field.type), rows)
            self._repeated[field.name] = kept
        return kept.slice(0, rows)

"""Schemas that are made of Spark's columns, for a sink that registers them.

Every field may be null, and has null as its default, so that columns may come and go under all rules of
compatibility, whatever Spark knows of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_AVRO = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_JSON: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    **{name: {"type": "integer"} for name in ("tinyint", "smallint", "int", "bigint")},
    **{name: {"type": "number"} for name in ("float", "double")},
}


def avro_schema(kind: DataType, name: str) -> Any:
    """The Avro schema of a column. Records are named after the fields that they are in."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        fields = [
            {
                "name": each.name,
                "type": ["null", avro_schema(each.dataType, f"{name}_{each.name}")],
                "default": None,
            }
            for each in kind.fields
        ]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": ["null", avro_schema(kind.elementType, name)]}
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise ValueError(f"{name}: a map of Avro has texts as names, not {kind.keyType.simpleString()}")
        return {"type": "map", "values": ["null", avro_schema(kind.valueType, name)]}
    if isinstance(kind, DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    found = _AVRO.get(kind.simpleString())
    if found is None:
        raise ValueError(f"{name}: Avro has no type for {kind.simpleString()}")
    return found


def json_schema(kind: DataType) -> dict[str, Any]:
    """The JSON Schema of a column."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return {
            "type": "object",
            "properties": {each.name: json_schema(each.dataType) for each in kind.fields},
        }
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": json_schema(kind.elementType)}
    if isinstance(kind, MapType):
        return {"type": "object", "additionalProperties": json_schema(kind.valueType)}
    found = _JSON.get(kind.simpleString())
    return found if found is not None else {} if kind.typeName() == "decimal" else {"type": "string"}

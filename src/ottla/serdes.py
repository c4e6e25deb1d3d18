"""Typed records for `Producer`, `Consumer` and `ShareConsumer`, by the schemas of a registry.

from ottla.serdes import Avro

orders = Avro("http://127.0.0.1:9644/schema-registry", schema)
Producer(value_serializer=orders)
Consumer(value_deserializer=orders)
"""

from ottla.client.serdes.avro import Avro
from ottla.client.serdes.json_schema import JsonSchema
from ottla.client.serdes.protobuf import Protobuf
from ottla.client.serdes.schema_serde import SchemaSerde, SerdeError, Undecoded
from ottla.schemas.errors import WrongData
from ottla.schemas.parsed import SchemaReference
from ottla.schemas.registry_client import RegistryClient

__all__ = [
    "Avro",
    "JsonSchema",
    "Protobuf",
    "RegistryClient",
    "SchemaReference",
    "SchemaSerde",
    "SerdeError",
    "Undecoded",
    "WrongData",
]

"""Typed records: keys and values in Avro, Protobuf or JSON as columns of their fields."""

"""Schemas of messages: Avro, Protobuf and JSON Schema, from files or a registry."""

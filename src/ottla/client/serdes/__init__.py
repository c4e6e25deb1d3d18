"""Records with the schemas of a registry: Avro, Protobuf and JSON Schema in Confluent's framing."""

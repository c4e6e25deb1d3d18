"""The configuration of a node: Kafka's settings by name, their types, rules, defaults and descriptions."""

"""Kafka's metadata in ZooKeeper, as Kafka 2.8 to 3.9 kept it."""

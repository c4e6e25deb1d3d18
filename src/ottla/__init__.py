"""Ottla: a durable, distributed commit log that speaks Kafka, in Python."""

__version__ = "0.1.0.dev0"

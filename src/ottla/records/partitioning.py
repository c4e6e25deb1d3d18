"""Java's murmur2 of a key, by which all of Kafka's clients agree on a key's partition."""

from __future__ import annotations

from ottla.records._kernel import murmur2, partition_for

__all__ = ["murmur2", "partition_for"]

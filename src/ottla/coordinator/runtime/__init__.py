"""The coordinator runtime: shards over the partitions of an internal topic, their timers and writes."""

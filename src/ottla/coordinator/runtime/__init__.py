"""The coordinator runtime: shards over an internal topic's partitions, their loading, timers and writes."""

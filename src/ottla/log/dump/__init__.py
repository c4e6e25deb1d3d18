"""Show the files of a partition and of a data directory as rows, as Kafka's `DumpLogSegments` does."""

"""Record batches: the unit in which Kafka moves, stores and compresses records."""

"""A partition on disk: segments and their indexes, and what keeps them true across crashes.

`LogManager` owns the log directories and their partitions; `UnifiedLog` is one partition. Below it:
`LocalLog` (which files there are), `LogSegment` (one file of batches with its indexes),
`ProducerStateManager` (who may append), `LeaderEpochCache` (who wrote what), `LogCleaner` (compaction).
`load_log` opens a partition, after a crash too.
"""

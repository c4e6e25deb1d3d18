"""A partition on disk: segments and their indexes, and what keeps them consistent across crashes.

`LogManager` owns the log directories and their partitions; `UnifiedLog` is one partition. Below it:
`LocalLog` (which files there are), `LogSegment` (one file of batches with its indexes),
`ProducerStateManager` (which producer may append), `LeaderEpochCache` (which leader wrote what). Beside it:
`LogLoader` (load a partition, also after a crash) and `LogCleaner` (compaction).
"""

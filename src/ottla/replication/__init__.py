"""The replicas of this broker: leaders and followers, in-sync sets, the high watermark, replication.

* `partition`: one partition as this broker hosts it, a deterministic object over its log; `Replica` and
  `IsrState` are a leader's view of its followers,
* `replica_manager`: all partitions of the broker, following the metadata image,
* `replica_fetcher_manager`, `replica_fetcher`, `partition_fetch_state`, `replica_fetch_session`: how a
  follower fetches from leaders, truncates and appends,
* `alter_partition_manager`: sends changes of in-sync sets to the controller,
* `replication_quota_manager`: throttles of replication,
* `purgatory`: requests that wait for the progress of partitions,
* `list_offsets`: offsets by time,
* `log_flush_scheduler`: flushes in the background.

A partition reads no clock; `now_ms` is passed in.
"""

"""The cluster's metadata: the records of `__cluster_metadata`, the image they build, the controller that
writes them.

Nothing about a cluster is only in memory. A change is a list of metadata records; the records are appended to
the metadata log; once committed they are replayed into an immutable `MetadataImage`, and every handler of a
node reads from the newest image. From the bottom up:

* `features`, `records`: the feature levels of Kafka 4.3, and the record versions that they allow,
* `image/`: the entities that records describe, and how a `MetadataDelta` of records makes the next image,
* `log/`: the records on disk, in Kafka's files: `MetadataLog` appends to the quorum, `MetadataLoader` replays
  what is committed and publishes images, `SnapshotGenerator` writes them as snapshots,
* `controller/`: requests in, records and a response out, without I/O and without a clock; `QuorumController`
  drives it: decide, append, wait for the commit, answer.
"""

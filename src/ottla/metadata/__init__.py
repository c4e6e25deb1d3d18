"""The cluster's metadata: the records of ``__cluster_metadata``, the image they build, the controller that
writes them.

Nothing about a cluster is "just in memory". A change is a list of metadata records; the records are
appended to the metadata log; once committed they are replayed into an immutable `MetadataImage`, and every
handler of a node reads from the newest image. The way through the room:

* ``features``: the feature levels of Kafka 4.3 and which record versions they allow,
* ``entities``, ``image``, ``delta``: what the records describe, and how a batch of them makes the next
  image,
* ``replay``: batches and metadata transactions in, images out,
* ``controller`` and the ``control_*`` modules: requests in, records and a response out; no I/O and no
  clock,
* ``storage``, ``snapshots``, ``metadata_log``: the same records on disk, in Kafka's files,
* ``quorum_controller``: decide, append, wait for the commit, answer.
"""

"""A partition's replicas: who leads, who is in sync, what is committed, and who waits for it.

* ``partition``: one partition as this broker hosts it, a deterministic object over its log,
* ``follower``, ``isr``: what a leader knows of its followers, and changes of the in-sync set under way,
* ``list_offsets``: offsets by time,
* ``purgatory``: requests that wait for a partition to move on,
* ``replica_manager``: all partitions of the broker, following the metadata image.

Nothing here reads a clock; ``now_ms`` is passed in.
"""

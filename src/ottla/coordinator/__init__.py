"""Coordinators: groups and transactions, each a state machine over its own compacted topic.

* `runtime`: loads a partition, gives its shard one event at a time, appends and replays records, and replies
  when the high watermark has passed them,
* `group`: classic and consumer groups and committed offsets, over `__consumer_offsets`,
* `transaction`: transactional producers, over `__transaction_state`.

The shards know no I/O, no clock and no asyncio.
"""

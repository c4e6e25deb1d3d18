"""Coordinators: groups, transactions and share partitions, each a state machine over its own topic.

* `runtime`: loads a partition, gives its shard one event at a time, appends and replays records, and replies
  when the high watermark has passed them,
* `group`: classic and consumer groups and committed offsets, over `__consumer_offsets`,
* `transaction`: transactional producers, over `__transaction_state`,
* `share`: the progress of share groups in partitions, over `__share_group_state`.

The shards know no I/O, no clock and no asyncio.
"""

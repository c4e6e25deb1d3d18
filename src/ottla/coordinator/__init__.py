"""Coordinators: groups and transactions, each a state machine over its own compacted topic.

* ``engine``: what they share: loading a partition, one event at a time, records appended and replayed,
  answers when the high watermark has passed them,
* ``engine_effects``, ``engine_timers``: the words that machines and engine speak, and deadlines,
* ``group``: classic and consumer groups and committed offsets, over ``__consumer_offsets``,
* ``transaction``: transactional producers, over ``__transaction_state``.

The machines know no I/O, no clock and no asyncio.
"""

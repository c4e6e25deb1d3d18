"""Transactions, over ``__transaction_state``: who may write in which transaction, and how each one ends.

* ``state``, ``transaction``: the states of a transactional id, what is known of it, and its steps,
* ``end_rules``: what EndTxn means in which state, as tables,
* ``records``: the form on disk, Kafka's to the byte,
* ``machine``: one partition of the topic, requests in, records and markers out; ``table`` is its state,
  ``initialization`` and ``ending`` are its parts,
* ``markers``: writes the markers that end a transaction, until every partition has confirmed its own,
* ``service``: the shards of a node, and what handlers ask.

Invariant: a transaction that was prepared to commit, or to abort, ends that way in every partition, whoever
coordinates it by then: the decision is in the log before the first marker is written, and markers are driven
again from the log until all are confirmed.
"""

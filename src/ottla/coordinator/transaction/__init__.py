"""The transaction coordinator, over `__transaction_state`: which producer may write, how transactions end.

* `transaction_metadata`: the states of a transactional id, its metadata, and its steps,
* `end_txn_rules`: what EndTxn means in which state, as tables,
* `transaction_log`: the records on disk, Kafka's to the byte,
* `transaction_coordinator`: one partition of the topic: operations in, records and markers out,
* `pending_markers`: has markers written until every partition has confirmed its own,
* `service`: the coordinator of a broker, which handlers use.

Invariant: a transaction that was prepared to commit, or to abort, ends that way in every partition, even if
its coordinator changes: the decision is in the log before the first marker is written, and markers are sent
again from the log until all are confirmed.
"""

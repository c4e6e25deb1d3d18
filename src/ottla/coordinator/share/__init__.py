"""The share coordinator, over `__share_group_state`: the progress of share groups in partitions.

* `persister`: what the group coordinator and the leaders of share partitions ask of it, wherever it runs,
* `service`: the coordinator of a broker,
* `share_coordinator_shard`: one partition of the topic,
* `share_group_offset`: the state of one share partition, and its form on disk,
* `persister_state_batch_combiner`: how the batches of states are combined,
* `requests`, `config`: operations, settings.
"""

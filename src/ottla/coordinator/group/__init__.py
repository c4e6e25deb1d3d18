"""The group coordinator, over `__consumer_offsets`: groups of consumers and their committed offsets.

* `service`: the coordinator of a broker, which handlers use,
* `group_coordinator_shard`: one partition of the topic; the managers below are its parts,
* `group_metadata_manager`: the table of groups, their replay and listing,
* `classic_group_manager`: groups whose members assign partitions themselves,
* `consumer_group_manager`: groups whose partitions the coordinator assigns,
* `migration`: the conversion between the two, while clients are upgraded,
* `offset_metadata_manager`: committed offsets,
* `classic`, `consumer`: the state of one group of each kind, and the assignors,
* `requests`, `records`, `config`: operations, the form on disk, settings.
"""

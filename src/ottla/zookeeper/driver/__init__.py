"""The legacy driver of the metadata log: an election in ZooKeeper, decisions stored as Kafka's znodes.

* `metadata_stream`: the records of one controller epoch, in memory, for those who follow its controller
* `znode_reader`, `znode_writer`: znodes to records when a controller starts, records to znodes after that
* `zookeeper_log_driver`: elects, commits, follows; beside `ottla.raft.driver`
* `zookeeper_controller`: the active controller, which watches the znodes of brokers and of operators
* `broker_znode`: the ephemeral znode of a broker
"""

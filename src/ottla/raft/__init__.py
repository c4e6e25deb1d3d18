"""The quorum: the replicas that elect the leader of the metadata log and commit its records.

All of this package but `driver` is a state machine without I/O: `ottla.raft.machine.KafkaRaftMachine` takes
inputs (a message came, the log is durable up to an offset, time passed), each with its `now_ms`, and returns
effects; nothing in it awaits, reads a clock or opens a file. `ottla.raft.driver` runs it over the log on disk
and over connections: other packages use its `KafkaRaftClient` and see the machine as a `RaftStatus`. The
protocol and the formats are Kafka's: Vote, Fetch and the other requests of the quorum, `quorum-state`, the
control records of leaders and voters, the names and frames of snapshots. A node alone is a quorum of one
voter.
"""

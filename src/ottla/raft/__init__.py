"""The quorum: who leads the metadata log, and how far its voters agree.

:class:`~ottla.raft.machine.Raft` is told what happened (a message came, the log is durable up to an offset,
time went by) and says what follows; it does no I/O and reads no clock. `RaftClient`
runs it over the log on disk and over connections. The protocol and the formats are Kafka's: Vote, Fetch and
their kin, ``quorum-state``, the control records of leaders and voters, the names and frames of snapshots. A
node alone is a quorum of one voter.
"""

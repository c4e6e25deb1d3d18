"""The quorum: who leads the metadata log, and how far its voters agree.

Nothing here does I/O or reads a clock. :class:`~ottla.raft.quorum.Quorum` is told what happened (a vote is
durable, the log is durable up to an offset) and says what follows; :mod:`ottla.metadata.metadata_log`
carries it out. The formats are Kafka's: ``quorum-state``, the control records of leaders and voters, the
names and frames of snapshots. A node alone is a quorum of one voter.
"""

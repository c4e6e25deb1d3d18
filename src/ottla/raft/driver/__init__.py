"""The driver of the quorum: runs the state machine of `ottla.raft` over disk, connections and a clock."""

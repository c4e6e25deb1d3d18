"""The driver of the quorum: runs the pure state machine over disk, connections and a clock."""

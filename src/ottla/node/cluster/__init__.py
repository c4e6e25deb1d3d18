"""A node's place in its cluster: the quorum member, the controller channel, the broker lifecycle, peers."""

"""From a stopped cluster on ZooKeeper to the same cluster on a quorum of controllers."""

"""The metadata log: append to the quorum, replay committed records into images, write snapshots."""

"""The state of a share group, its assignor, and the records that hold it."""

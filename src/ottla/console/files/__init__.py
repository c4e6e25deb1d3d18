"""The files of partitions on this machine, read as they are."""

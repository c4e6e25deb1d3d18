"""Recovery: load a partition after a clean shutdown or a crash, and report damage that it finds."""

"""The leaders of share partitions: records in delivery, share sessions, and the state that is persisted."""

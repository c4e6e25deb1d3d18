"""The metrics of a node: what Prometheus sees of its requests, logs, replicas, groups and of its process."""

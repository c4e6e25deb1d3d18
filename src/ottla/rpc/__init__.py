"""Requests to other nodes: one connection, one channel to a broker, and batching of requests per broker."""

"""Benchmarks against a peer, in one run on one machine; docs/benchmarks.md has the results."""

"""Measurements beside a peer, in one run on one machine; see docs/benchmarks.md for what they showed."""

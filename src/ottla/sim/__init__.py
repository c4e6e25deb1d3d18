"""Deterministic simulation: the code of production on simulated machines, from one seed.

`loop`, `clock`, `network` and `disk` replace the parts of `ottla.runtime`; `world` puts them together into
machines, and `nemesis` injects faults. `quorum`, `node_run` and `cluster` run a scenario of their own each,
with a workload, faults and a checker; `log` drives logs on a simulated disk.
"""

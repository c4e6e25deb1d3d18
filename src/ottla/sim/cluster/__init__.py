"""Simulated runs of a whole cluster: nodes, clients, faults, and the check of what clients were promised."""

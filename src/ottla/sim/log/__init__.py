"""Logs on a simulated disk: harnesses, workloads and the checks of what a crash leaves."""

"""The simulator: the doors of `ottla.runtime` as deterministic objects with faults, replayed from a seed."""

"""Tests of a user's pipeline, for `ottla pipeline test`: cases, runs, kills and a report."""

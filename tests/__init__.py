"""Ottla's tests: one folder a room of `src/ottla`, shared helpers in `tests.support`."""

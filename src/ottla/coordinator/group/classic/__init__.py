"""The state of a classic group."""

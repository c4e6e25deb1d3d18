"""The settings of a log."""

"""The broker's part in topics as tables."""

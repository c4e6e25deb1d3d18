"""The definitions of all settings with their defaults, one module for each area."""

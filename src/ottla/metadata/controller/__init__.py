"""The controller: pure decisions that turn requests into metadata records, a module for each concern."""

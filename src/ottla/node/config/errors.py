"""Errors that end the start or the run of a node."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting cannot be used; the text names it and says what is expected."""


class NodeFailed(Exception):
    """The node cannot start or continue; the text is one line for the operator who started it."""

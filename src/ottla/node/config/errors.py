"""The error that ends the start or the run of a node."""

from __future__ import annotations


class NodeFailed(Exception):
    """The node cannot start or continue; the text is one line for the operator who started it."""

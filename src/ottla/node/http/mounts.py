"""Who may ask for what is mounted at a node's HTTP listener, on an address that other machines reach."""

from __future__ import annotations

from enum import Enum


class MountAccess(Enum):
    SUMMARY = "summary"
    """Every client; one that has not logged in gets no details."""
    LOGIN = "login"
    """Clients that have logged in and may describe the cluster."""
    USER = "user"
    """Clients that have logged in; what is mounted decides what each of them may do."""
    OWN = "own"
    """It asks for a login itself; on a connection without TLS it is not there."""

"""Scripts of requests for the differential tests, one module a family of APIs.

A script creates what it needs under names of its own, so that all of them can run against one broker in any
order; `SCRIPTS` holds them by name.
"""

from __future__ import annotations

from importlib import import_module

from tests.kafka.scripts.kit import SCRIPTS

__all__ = ["SCRIPTS"]

for _family in (
    "connection",
    "metadata",
    "topics",
    "configs",
    "quotas",
    "produce",
    "fetch",
    "offsets",
    "cluster",
    "groups",
    "transactions",
    "share_state",
    "share_groups",
    "share_fetch",
    "membership",
    "streams_groups",
    "repeats",
    "random_walk",
):
    import_module(f"tests.kafka.scripts.{_family}")

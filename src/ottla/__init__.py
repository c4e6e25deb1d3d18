"""Ottla: a durable, distributed commit log that speaks Kafka, in Python."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036 - in a checkout, which no installer has checked
    raise ImportError(
        "Ottla needs Python 3.11 or newer, and this is {}.{}: install one, as with "
        "`uv python install 3.13`".format(*sys.version_info)
    )

if TYPE_CHECKING:
    from ottla import blocking as blocking
    from ottla.client.admin import Admin as Admin
    from ottla.client.bulk import read_topic as read_topic
    from ottla.client.bulk import write_topic as write_topic
    from ottla.client.consumer import Consumer as Consumer
    from ottla.client.producer import Producer as Producer
    from ottla.client.share import AcknowledgeType as AcknowledgeType
    from ottla.client.share import ShareConsumer as ShareConsumer
    from ottla.testing.local_cluster import LocalCluster as LocalCluster
    from ottla.testing.local_node import LocalNode as LocalNode

__version__ = "0.1.0"

# Where each name lives: nothing is imported before it is asked for.
_LAZY = {
    "AcknowledgeType": "ottla.client.share",
    "Admin": "ottla.client.admin",
    "Consumer": "ottla.client.consumer",
    "LocalCluster": "ottla.testing.local_cluster",
    "LocalNode": "ottla.testing.local_node",
    "Producer": "ottla.client.producer",
    "ShareConsumer": "ottla.client.share",
    "blocking": "ottla.blocking",
    "read_topic": "ottla.client.bulk",
    "write_topic": "ottla.client.bulk",
}

__all__ = [
    "AcknowledgeType",
    "Admin",
    "Consumer",
    "LocalCluster",
    "LocalNode",
    "Producer",
    "ShareConsumer",
    "__version__",
    "blocking",
    "read_topic",
    "write_topic",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'ottla' has no attribute {name!r}")
    from importlib import import_module

    return import_module(module) if module.endswith("." + name) else getattr(import_module(module), name)


def __dir__() -> list[str]:
    """So that a prompt can complete what is not imported yet."""
    return __all__

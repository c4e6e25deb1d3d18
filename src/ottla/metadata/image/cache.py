"""The source from which the parts of a node read metadata: Kafka's `MetadataCache`."""

from __future__ import annotations

from typing import Protocol

from ottla.metadata.image.image import MetadataImage


class MetadataCache(Protocol):
    """The newest published metadata; the metadata log of the node is one."""

    @property
    def image(self) -> MetadataImage:
        """The newest committed image that this node has applied. It is replaced, never modified."""
        ...

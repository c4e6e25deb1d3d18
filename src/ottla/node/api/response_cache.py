"""Responses that are kept: the same request about the same metadata has the same bytes as its answer.

A hundred clients that come back together after a restart all ask for the same topics. Their responses follow
from the topics, brokers, features and settings in the metadata image, the version, the address that they
connected to, the body of the request and what the client may do, and from nothing else. So a response is
built and encoded once, and again only when one of these has been replaced. An image that differs in its
offset alone leaves the cache as it is: controllers write records without effect twice a second. The cache is
bounded: the oldest responses make room, and a response that is too large by itself is not kept.

A response that takes several turns of the event loop to make is made once too: those who ask for the same
meanwhile wait for it.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

from ottla.metadata.image.image import MetadataImage

CacheKey: TypeAlias = tuple[int, tuple[str, int], bytes, tuple[int, str, str, str] | None]
"""Version, the address of this node that the client connected to, the body of the request; where an
authorizer decides, its version and the principal and host of the client."""

MAX_CACHE_BYTES: Final = 8 * 1024 * 1024
MAX_REQUEST_BYTES: Final = MAX_CACHE_BYTES // 8
# The dict entry, the tuple and the objects' headers.
_ENTRY_OVERHEAD_BYTES: Final = 512


class ResponseCache:
    """Encoded responses of one API on one listener, all of them as `_image` gives them."""

    __slots__ = ("_free_bytes", "_image", "_in_work", "_responses")

    def __init__(self) -> None:
        self._image: MetadataImage | None = None
        self._responses: dict[CacheKey, bytes] = {}  # the oldest first
        self._free_bytes = MAX_CACHE_BYTES  # what `_responses` leaves of the limit; never negative
        self._in_work: dict[CacheKey, tuple[MetadataImage, asyncio.Future[bytes | None]]] = {}

    def get(self, image: MetadataImage, key: CacheKey) -> bytes | None:
        return self._responses.get(key) if self._is_current(image) else None

    def put(self, image: MetadataImage, key: CacheKey, response: bytes) -> None:
        if not self._is_current(image):
            self._image = image
            self._responses = {}
            self._free_bytes = MAX_CACHE_BYTES
        size = _entry_bytes(key, response)
        if size > MAX_CACHE_BYTES or key in self._responses:
            return
        while self._free_bytes < size:
            oldest = next(iter(self._responses))
            self._free_bytes += _entry_bytes(oldest, self._responses.pop(oldest))
        self._responses[key] = response
        self._free_bytes -= size
        assert self._free_bytes >= 0, f"the cache exceeds its {MAX_CACHE_BYTES} bytes by {-self._free_bytes}"

    def in_work(self, image: MetadataImage, key: CacheKey) -> asyncio.Future[bytes | None] | None:
        """The same response, if it is being made; its result is None if that fails."""
        found = self._in_work.get(key)
        return found[1] if found is not None and _gives_the_same(found[0], image) else None

    def begin(self, image: MetadataImage, key: CacheKey) -> asyncio.Future[bytes | None]:
        """Note that a response is being made; `end` has to follow."""
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._in_work[key] = image, future
        return future

    def end(self, key: CacheKey, future: asyncio.Future[bytes | None], response: bytes | None) -> None:
        """Give a response that was begun to those who wait for it, or None if it failed."""
        future.set_result(response)
        found = self._in_work.get(key)
        if found is not None and found[1] is future:
            del self._in_work[key]

    def _is_current(self, image: MetadataImage) -> bool:
        """Whether this image gives the same responses as those that are kept."""
        before = self._image
        if image is before:
            return True
        if before is None or not _gives_the_same(before, image):
            return False
        self._image = image  # the next request comes with this one, and the other one can go
        return True


def _gives_the_same(one: MetadataImage, other: MetadataImage) -> bool:
    """Whether two images differ at most in what no response is made of."""
    return (
        one.topics is other.topics
        and one.cluster is other.cluster
        and one.features is other.features
        and one.configs is other.configs
    )


def _entry_bytes(key: CacheKey, response: bytes) -> int:
    return len(key[2]) + len(response) + _ENTRY_OVERHEAD_BYTES

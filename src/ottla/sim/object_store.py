"""A model of an object store, which all machines of a simulated cluster share.

It keeps what it has acknowledged. A request takes effect at one moment, and its answer comes later: a request
may fail before its effect or after it, and the effect may come when the process that asked is gone. Large
objects are uploaded in parts, which are no object before the last request, and may stay behind. The store can
be away, slow, throttle or fail, for all machines, and a machine can be cut off from it; lists may be stale.

`is_late` tells which keys were written for a process that was gone by then: no protocol can prevent that.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, Final, TypeVar

from ottla.runtime.object_store import (
    ObjectNotFound,
    ObjectStore,
    ObjectStoreError,
    ObjectStoreSettings,
    StoredObject,
)
from ottla.sim.loop import Process, current_process
from ottla.sim.world import World

T = TypeVar("T")

_WAY_S: Final = 0.01
_WORK_S: Final = 0.02
# How long a client waits at most for a store that it does not reach.
_TIMEOUT_S: Final = 2.0
_THROTTLED: Final = 0.7


class SimObjectStore:
    """The objects and the faults. `open` is what machines open it with."""

    def __init__(self, world: World, *, part_bytes: int = 1 << 20, error_rate: float = 0.0) -> None:
        self._world = world
        # Apart from the other draws, so that the same seed without a store has the same ones.
        self._random = random.Random(f"{world.seed}/store")
        self._part_bytes = part_bytes
        self._base_error_rate = error_rate
        self.objects: dict[str, bytes] = {}
        # What uploads in parts have brought so far, by key and the number of the upload.
        self.parts: dict[tuple[str, int], bytes] = {}
        self._uploads = 0
        self._late: dict[str, None] = {}
        # (time, key, size or None) of each change, for lists that are stale.
        self._changes: list[tuple[float, str, int | None]] = []
        # Called with a key after its object was deleted, or after a process has written to it.
        self.on_deleted: Callable[[str], None] = lambda _key: None
        self.on_written: Callable[[str, Process], None] = lambda _key, _process: None
        # Faults.
        self.is_away = False
        self.throttles = False
        self.slowness = 1.0
        self.error_rate = error_rate
        self.stale_s = 0.0
        self.cut_off: dict[str, None] = {}

    def open(self, _settings: ObjectStoreSettings) -> ObjectStore:
        return _SimStoreClient(self)

    def heal(self) -> None:
        """Remove all faults, also those that single requests have by chance."""
        self.is_away = self.throttles = False
        self.slowness, self.error_rate, self.stale_s = 1.0, 0.0, 0.0
        self.cut_off.clear()

    def calm(self) -> None:
        """Fail as often as before `error_rate` was changed."""
        self.error_rate = self._base_error_rate

    def is_late(self, key: str) -> bool:
        return key in self._late

    # Requests

    async def request(self, what: str, effect: Callable[[], T], *, key: str = "") -> T:
        """Have the store do something for the process that runs now."""
        loop, process = self._world.loop, current_process()
        answer: Any = loop.create_future()

        def is_gone() -> bool:
            return answer.cancelled() or (process is not None and process.dead)

        def arrive() -> None:
            if self._is_unreachable(process):
                later(self._random.random() * _TIMEOUT_S, fail, "the store cannot be reached")
            elif self.throttles and self._random.random() < _THROTTLED:
                later(self._way_s(), fail, "503 Slow Down")
            elif not (is_gone() and self._random.random() < 0.5):
                later(self._random.random() * _WORK_S * self.slowness, take_effect)

        def take_effect() -> None:
            fails = self._random.random() < self.error_rate
            if fails and self._random.random() < 0.5:
                later(self._way_s(), fail, "500 Internal Server Error")
                return
            if is_gone() and key:
                self._late[key] = None
                self._world.coverage["store: a request of a process that is gone"] += 1
            try:
                outcome = effect()
            except ObjectStoreError as error:
                later(self._way_s(), fail, str(error), type(error))
                return
            if key and process is not None:
                self.on_written(key, process)
            self._world.trace.add("store", what if process is None else f"{what} for {process.name}")
            if fails or self._is_unreachable(process):
                self._world.coverage["store: failed after its effect"] += 1
                later(self._way_s(), fail, "500 Internal Server Error")
            else:
                later(self._way_s(), succeed, outcome)

        def succeed(outcome: T) -> None:
            if not answer.done():
                answer.set_result(outcome)

        def fail(text: str, kind: type[ObjectStoreError] = ObjectStoreError) -> None:
            if not is_gone() and not answer.done():
                self._world.coverage["store: failed"] += kind is ObjectStoreError
                answer.set_exception(kind(f"{what}: {text}"))

        def later(delay_s: float, callback: Callable[..., None], *args: Any) -> None:
            loop.call_later(delay_s, callback, *args, context=loop.world.context)

        later(self._way_s(), arrive)
        result: T = await answer
        return result

    def _way_s(self) -> float:
        return self._random.random() * _WAY_S

    def _is_unreachable(self, process: Process | None) -> bool:
        return self.is_away or (process is not None and process.name in self.cut_off)

    # Effects

    def write(self, key: str, data: bytes) -> None:
        before = self.objects.get(key)
        if before is not None and before != data:
            self._world.coverage["store: an object has new content"] += 1
        self.objects[key] = data
        self._changes.append((self._world.loop.time(), key, len(data)))

    def begin_upload(self) -> int:
        self._uploads += 1
        return self._uploads

    def write_part(self, key: str, upload: int, data: bytes) -> None:
        self.parts[key, upload] = self.parts.get((key, upload), b"") + data

    def complete(self, key: str, upload: int) -> None:
        data = self.parts.pop((key, upload), None)
        if data is None:
            raise ObjectStoreError(f"{key}: 404 NoSuchUpload")
        self.write(key, data)

    def abort(self, key: str, upload: int) -> None:
        """Forget the parts of an upload, or leave them, as where its client cannot say so any more."""
        if self._random.random() < 0.5:
            self.parts.pop((key, upload), None)
        self._world.coverage["store: an upload ends in the middle"] += 1

    def delete(self, key: str) -> None:
        for part in [part for part in self.parts if part[0] == key]:
            del self.parts[part]
        if self.objects.pop(key, None) is not None:
            self._changes.append((self._world.loop.time(), key, None))
            self.on_deleted(key)

    def read(self, key: str, start: int, end: int | None) -> bytes:
        if key not in self.objects:
            raise ObjectNotFound(f"there is no object {key}")
        return self.objects[key][start:end]

    def listed(self, prefix: str) -> list[StoredObject]:
        """The objects now, or as they were some time ago."""
        until = self._world.loop.time() - self._random.random() * self.stale_s
        sizes = {key: size for time, key, size in self._changes if time <= until}
        return sorted(
            StoredObject(key, size)
            for key, size in sizes.items()
            if size is not None and key.startswith(prefix)
        )

    @property
    def part_bytes(self) -> int:
        return self._part_bytes


class _SimStoreClient:
    """`ObjectStore` of one process."""

    __slots__ = ("_store",)

    def __init__(self, store: SimObjectStore) -> None:
        self._store = store

    async def put(self, key: str, chunks: AsyncIterable[bytes], size: int) -> None:
        store = self._store
        data = b"".join([chunk async for chunk in chunks])
        if len(data) != size:
            raise ObjectStoreError(f"{key} should have {size} bytes, and its source has {len(data)}")
        if size <= store.part_bytes:
            await store.request(f"put {key}", lambda: store.write(key, data), key=key)
            return
        upload = store.begin_upload()
        try:
            for at in range(0, size, store.part_bytes):
                await self._put_part(key, upload, data[at : at + store.part_bytes])
            await store.request(f"complete {key}", lambda: store.complete(key, upload), key=key)
        except ObjectStoreError:
            store.abort(key, upload)
            raise

    async def _put_part(self, key: str, upload: int, data: bytes) -> None:
        store = self._store
        await store.request(f"part of {key}", lambda: store.write_part(key, upload, data), key=key)

    async def get(self, key: str) -> bytes:
        store = self._store
        return await store.request(f"get {key}", lambda: store.read(key, 0, None))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        store = self._store
        return await store.request(f"get {key} {start}-{end}", lambda: store.read(key, start, end))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self._delete(key)

    async def _delete(self, key: str) -> None:
        store = self._store
        await store.request(f"delete {key}", lambda: store.delete(key))

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        store = self._store
        return await store.request(f"list {prefix}", lambda: store.listed(prefix))

    def close(self) -> None:
        """Nothing is held."""

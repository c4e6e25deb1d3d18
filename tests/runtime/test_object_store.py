"""Object stores keep whole objects, forget what was cut off, and say nothing of credentials."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.runtime.disk import File, RealDisk, sorted_in_pieces
from ottla.runtime.object_store import (
    CloudStore,
    DirectoryStore,
    FileContent,
    MemoryStore,
    ObjectNotFound,
    ObjectStore,
    ObjectStoreError,
    ObjectStoreKind,
    ObjectStoreSettings,
    StoredObject,
    _without_secrets,
    open_object_store,
)
from ottla.runtime.pool import InlinePool, ThreadPool


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def broken(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    raise OSError(5, "the disk failed", "/data/log")


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return MemoryStore()
    return DirectoryStore(str(tmp_path / "new" / "store"), RealDisk(), InlinePool())


async def test_an_object_comes_back_as_it_was_put(store: ObjectStore) -> None:
    await store.put("a/b/one", pieces(b"12", b"345"), 5)
    assert await store.get("a/b/one") == b"12345"
    assert await store.get_range("a/b/one", 1, 3) == b"23"
    assert await store.get_range("a/b/one", 3, 100) == b"45"
    assert await store.get_range("a/b/one", 5, 100) == b""
    await store.put("a/b/one", pieces(b"other"), 5)
    assert await store.get("a/b/one") == b"other"
    await store.put("a/empty", pieces(), 0)
    assert await store.get("a/empty") == b""


async def test_objects_are_listed_by_a_prefix_that_may_end_in_a_name(store: ObjectStore) -> None:
    for key in ("topic-a/0/1.log", "topic-a/0/2.log", "topic-a/1/1.log", "topic-b/0/1.log", "z"):
        await store.put(key, pieces(b"x"), 1)
    assert await store.list_objects("topic-a/0/") == [
        StoredObject("topic-a/0/1.log", 1),
        StoredObject("topic-a/0/2.log", 1),
    ]
    assert [each.key for each in await store.list_objects("topic-")] == [
        "topic-a/0/1.log",
        "topic-a/0/2.log",
        "topic-a/1/1.log",
        "topic-b/0/1.log",
    ]
    assert len(await store.list_objects("")) == 5
    assert await store.list_objects("nothing/") == []


async def test_deleting_what_is_not_there_is_no_error(store: ObjectStore) -> None:
    await store.put("a/one", pieces(b"x"), 1)
    await store.delete(["a/one", "a/two", "b/three"])
    await store.delete(["a/one"])
    assert await store.list_objects("") == []
    for read in (store.get("a/one"), store.get_range("a/one", 0, 1)):
        with pytest.raises(ObjectNotFound):
            await read


async def test_an_object_of_the_wrong_size_does_not_appear(store: ObjectStore) -> None:
    with pytest.raises(ObjectStoreError, match="should have 3 bytes, and its source has 2"):
        await store.put("a", pieces(b"12"), 3)
    assert await store.list_objects("") == []


def content_of(path: Path, data: bytes, size: int) -> FileContent:
    path.write_bytes(data)
    disk = RealDisk()
    return FileContent(lambda: disk.open(str(path), writable=False), size, InlinePool())


def no_copy_in_kernel(*_: int) -> int:
    raise OSError(errno.EXDEV, "these are different file systems")


@pytest.mark.parametrize("in_kernel", [True, False])
@pytest.mark.parametrize("size", [0, 1, 4095, 10_000])
async def test_a_file_becomes_an_object(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, in_kernel: bool
) -> None:
    """A directory copies it in steps; other stores get it in chunks."""
    monkeypatch.setattr("ottla.runtime.object_store._COPIED_BYTES", 4096)
    monkeypatch.setattr("ottla.runtime.object_store._CHUNK_BYTES", 4096)
    monkeypatch.setattr("ottla.runtime.disk._COPIED_BYTES", 1000)
    if not in_kernel:
        monkeypatch.setattr("ottla.runtime.disk._copy_in_kernel", no_copy_in_kernel)
    data = random.Random(size).randbytes(size)
    # Records that are written behind what is copied are no part of it.
    content = content_of(tmp_path / "file", data + b"later", size)
    steps: list[None] = []
    content.on_progress = lambda: steps.append(None)
    await store.put("one", content, size)
    assert await store.get("one") == data
    assert len(steps) == -(-size // 4096)
    assert await store.list_objects("") == [StoredObject("one", size)]


async def test_a_kernel_that_copies_less_is_helped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(1).randbytes(10_000)
    left = [3000, 2000, 0]

    def copy_some(source: int, target: int, size: int, offset: int) -> int:
        wanted = min(size, left.pop(0))
        return os.pwrite(target, os.pread(source, wanted, offset), offset)

    monkeypatch.setattr("ottla.runtime.disk._copy_in_kernel", copy_some)
    store = DirectoryStore(str(tmp_path / "store"), RealDisk(), InlinePool())
    await store.put("one", content_of(tmp_path / "file", data, len(data)), len(data))
    assert await store.get("one") == data
    assert not left


@pytest.mark.parametrize(("call", "named"), [("pread", "the-log"), ("pwrite", "one.part")])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_the_disk_that_fails_while_it_copies_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, call: str, named: str
) -> None:
    """The kernel does not say which of the two it is."""

    def fail(*_: int) -> int:
        raise OSError(error, os.strerror(error))

    def fail_with_path(file: Any, *_: object) -> None:
        raise OSError(error, os.strerror(error), file.path)

    monkeypatch.setattr("ottla.runtime.disk._copy_in_kernel", fail)
    monkeypatch.setattr(f"ottla.runtime.disk._RealFile.{call}", fail_with_path)
    store = DirectoryStore(str(tmp_path / "store"), RealDisk(), InlinePool())
    with pytest.raises(ObjectStoreError, match=f"{named}: {os.strerror(error)}"):
        await store.put("one", content_of(tmp_path / "the-log", b"12", 2), 2)
    assert await store.list_objects("") == []


async def test_a_kernel_that_fails_to_copy_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("ottla.runtime.disk._copy_in_kernel", fail)
    monkeypatch.setattr("ottla.runtime.disk._drop_cached", fail)
    store = DirectoryStore(str(tmp_path / "store"), RealDisk(), InlinePool())
    await store.put("one", content_of(tmp_path / "file", b"12", 2), 2)
    assert await store.get("one") == b"12"


async def test_a_file_that_became_shorter_is_no_object(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(ObjectStoreError, match="should have 3 bytes, and its source has 2"):
        await store.put("a", content_of(tmp_path / "file", b"12", 3), 3)
    assert await store.list_objects("") == []


async def test_an_upload_that_was_cut_off_is_no_object_and_is_deleted_with_its_key(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path), RealDisk(), InlinePool())
    with pytest.raises(ObjectStoreError, match="the disk failed"):
        await store.put("topic/0/one", broken(b"12"), 4)
    assert (tmp_path / "topic/0/one.part").read_bytes() == b"12"
    assert await store.list_objects("") == []
    with pytest.raises(ObjectNotFound):
        await store.get("topic/0/one")
    await store.delete(["topic/0/one"])
    assert names_in(tmp_path) == []


async def test_empty_directories_go_with_their_last_object(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path), RealDisk(), InlinePool())
    await store.put("topic/0/one", pieces(b"1"), 1)
    await store.put("topic/1/two", pieces(b"2"), 1)
    await store.delete(["topic/0/one"])
    assert names_in(tmp_path / "topic") == ["1"]
    await store.delete(["topic/1/two"])
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("key", ["", "../up", "a/../../up", "a//b", "/root", "a/."])
async def test_a_key_does_not_leave_the_directory(tmp_path: Path, key: str) -> None:
    store = DirectoryStore(str(tmp_path / "store"), RealDisk(), InlinePool())
    with pytest.raises(ObjectStoreError, match="not the key of an object"):
        await store.put(key, pieces(b"x"), 1)


async def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = DirectoryStore(str(tmp_path / "file"), RealDisk(), InlinePool())
    with pytest.raises(ObjectStoreError, match="file"):
        await store.put("a", pieces(b"x"), 1)


S3 = ObjectStoreSettings(
    ObjectStoreKind.S3,
    "bucket",
    endpoint="http://127.0.0.1:9",
    region="nowhere",
    path_style=True,
    max_retries=0,
    credentials={"access_key_id": "the-key-id", "secret_access_key": "the-secret"},
)


async def test_credentials_are_in_no_text() -> None:
    pytest.importorskip("obstore")
    store = CloudStore(S3)
    assert "the-secret" not in f"{S3!r} {S3} {store!r}"
    assert "the-key-id" not in f"{S3!r} {S3} {store!r}"
    for work in (store.put("a", pieces(b"x"), 1), store.get("a"), store.delete(["a"])):
        with pytest.raises(ObjectStoreError) as failure:
            await work
        assert "s3://bucket/a" in str(failure.value)
        assert "the-secret" not in str(failure.value)
        assert "the-key-id" not in str(failure.value)


def test_credentials_come_from_the_file_of_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    profiles = tmp_path / "credentials"
    settings = ObjectStoreSettings(ObjectStoreKind.S3, "bucket", credentials_file=str(profiles))
    with pytest.raises(ObjectStoreError, match="does not exist"):
        CloudStore(settings)
    profiles.write_text("[default]\naws_access_key_id=a\naws_secret_access_key=%b\n")
    CloudStore(settings)
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(ObjectStoreError, match="no profile other"):
        CloudStore(settings)
    profiles.write_text("no profile")
    with pytest.raises(ObjectStoreError, match="cannot be read"):
        CloudStore(settings)


def test_the_kind_of_store_is_chosen_by_its_settings(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    for kind, expected in (
        (ObjectStoreKind.DIRECTORY, DirectoryStore),
        (ObjectStoreKind.MEMORY, MemoryStore),
        (ObjectStoreKind.S3, CloudStore),
    ):
        settings = ObjectStoreSettings(kind, str(tmp_path), region="nowhere")
        assert isinstance(open_object_store(settings, RealDisk(), InlinePool()), expected)


@pytest.mark.parametrize("step", ["write", "copy", "finish"])
async def test_an_upload_to_a_directory_that_hangs_can_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("ottla.runtime.object_store._CLOSE_SECONDS", 0.1)
    answers, hangs = threading.Event(), threading.Event()

    class HangingPool(ThreadPool):
        async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
            def hang() -> Any:
                hangs.set()
                answers.wait()
                return fn(*args)

            hangs_here = getattr(fn, "__name__", "") == step
            return await super().run(hang) if hangs_here else await super().run(fn, *args)

    pool = HangingPool(2)
    try:
        store = DirectoryStore(str(tmp_path / "store"), RealDisk(), pool)
        content = content_of(tmp_path / "file", b"12", 2) if step == "copy" else pieces(b"12")
        upload = asyncio.ensure_future(store.put("one", content, 2))
        await asyncio.to_thread(hangs.wait)
        upload.cancel()
        done, _ = await asyncio.wait({upload}, timeout=60)
        assert done
    finally:
        answers.set()
        pool.close()
    assert not await DirectoryStore(str(tmp_path / "store"), RealDisk(), InlinePool()).list_objects("")


@pytest.mark.parametrize("step", ["open", "opened", "copy"])
async def test_an_upload_that_was_given_up_does_not_touch_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A store that hung, as a file server does that was gone, goes on with what it was asked long ago."""
    monkeypatch.setattr("ottla.runtime.object_store._CLOSE_SECONDS", 0.1)
    monkeypatch.setattr("ottla.runtime.object_store._COPIED_BYTES", 4096)
    answers, hangs = threading.Event(), threading.Event()
    steps = {"open": False, "opened": False, "copy": False, step: True}

    def hang_at(at: str) -> None:
        if steps[at]:
            steps[at] = False
            hangs.set()
            answers.wait()

    class HangingDisk(RealDisk):
        def open(self, path: str, **options: Any) -> File:
            is_part = path.endswith(".part")
            if is_part:
                hang_at("open")
            file = super().open(path, **options)
            if is_part:
                hang_at("opened")
            return file

    def copy(source: int, target: int, size: int, offset: int) -> int:
        hang_at("copy")
        return os.pwrite(target, os.pread(source, size, offset), offset)

    monkeypatch.setattr("ottla.runtime.disk._copy_in_kernel", copy)
    pool = ThreadPool(4)
    store = DirectoryStore(str(tmp_path / "store"), HangingDisk(), pool)
    data = random.Random(step).randbytes(10_000)
    is_given_up = False
    try:
        content = content_of(tmp_path / "file", bytes(10_000), 10_000)
        upload = asyncio.ensure_future(store.put("one", content, 10_000))
        await asyncio.to_thread(hangs.wait)
        upload.cancel()
        await asyncio.wait({upload}, timeout=60)
        is_given_up = upload.done()
        await store.put("one", content_of(tmp_path / "next", data, 10_000), 10_000)
    finally:
        answers.set()
        pool.close()
    assert is_given_up
    assert (tmp_path / "store" / "one").read_bytes() == data


def test_a_store_without_credentials_says_so() -> None:
    """Libraries ask the machine then, at an address that explains nothing to users."""
    asked = "Error performing PUT http://169.254.169.254/latest/api/token in 5 ms: Connection refused"
    assert "no credentials were found" in _without_secrets(ValueError(asked), ())
    assert "credentials" not in _without_secrets(ValueError("http://127.0.0.1:9000/bucket: 503"), ())


class CountedKey(str):
    """A key that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: str) -> bool:
        CountedKey.compared += 1
        return str.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        CountedKey.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class ListingLibrary:
    """As much of `obstore` as lists objects, fifty at a time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.exceptions = SimpleNamespace(BaseError=ValueError)
        self._keys = keys

    async def list(self, store: object, prefix: str | None) -> AsyncIterator[list[dict[str, Any]]]:
        for at in range(0, len(self._keys), 50):
            await asyncio.sleep(0)
            yield [{"path": CountedKey(key), "size": 1} for key in self._keys[at : at + 50]]


@pytest.mark.parametrize("order", ["ascending", "descending", "two lists", "none"])
async def test_a_long_list_is_brought_into_order_in_turns(order: str) -> None:
    pytest.importorskip("obstore")
    keys = [f"topic/{number:05d}" for number in range(20_000)]
    wanted = list(keys)
    if order == "descending":
        keys.reverse()
    elif order == "two lists":
        keys = keys[10_000:] + keys[:10_000]
    elif order == "none":
        random.Random(1).shuffle(keys)
    store = CloudStore(ObjectStoreSettings(ObjectStoreKind.S3, "bucket", region="nowhere"))
    store._library = ListingLibrary(keys)
    listing = asyncio.ensure_future(store.list_objects("topic/"))
    most = before = CountedKey.compared = 0
    while not listing.done():
        await asyncio.sleep(0)
        most, before = max(most, CountedKey.compared - before), CountedKey.compared
    assert [each.key for each in await listing] == wanted
    # A sort of all would be 40,000 at least.
    assert most < 20_000


def test_no_piece_of_a_sort_in_a_thread_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def observed(items: list[str]) -> list[str]:
        lengths.append(len(items))
        return sorted(items)

    monkeypatch.setattr("ottla.runtime.disk.sorted", observed, raising=False)
    names = [f"{number:05d}" for number in range(10_000)]
    shuffled = random.Random(1).sample(names, len(names))
    assert sorted_in_pieces(shuffled) == names
    assert max(lengths) <= 2_048
    assert sorted_in_pieces(["b", "a"]) == ["a", "b"]


async def test_a_deletion_does_not_list_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have hundreds of thousands of objects."""
    store = DirectoryStore(str(tmp_path), RealDisk(), InlinePool())
    for key in ("topic/0/a", "topic/0/b"):
        await store.put(key, pieces(b"1"), 1)

    def list_dir(self: RealDisk, path: str) -> list[str]:
        raise AssertionError(f"{path} is listed")

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "list_dir", list_dir)
        await store.delete(["topic/0/a"])
        assert (tmp_path / "topic/0/b").exists()
        await store.delete(["topic/0/b"])
    assert names_in(tmp_path) == []

"""Object stores: the operations that tiered storage needs of one, and the stores that there are.

An object appears whole or not at all, and once `put` has returned it survives a crash of this machine: only
then may the local copy go. Deleting what is not there is no error. Keys are texts with `/` between their
parts.

`DirectoryStore` keeps objects as files of a directory, which may be shared between the nodes of a cluster;
`CloudStore` is S3, Google Cloud Storage or Azure by `obstore`, which is imported when such a store is opened;
`MemoryStore` is for tests. Credentials are taken from where the store's own tools take them, unless settings
name others, and are in no message and no `repr`.
"""

from __future__ import annotations

import asyncio
import configparser
import errno
import heapq
import os
import posixpath
import re
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from ottla.runtime.disk import Disk, File, copy_range, drop_cached, read_file, sorted_in_pieces
from ottla.runtime.pool import Pool

_PART_SUFFIX: Final = ".part"
DEFAULT_PART_BYTES: Final = 8 * 1024 * 1024
_PARTS_AT_ONCE: Final = 2
_CLOSE_SECONDS: Final = 10
# What a directory takes of a file in one call of a thread, and the chunks in which other stores get it.
_COPIED_BYTES: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
# Objects of a list that are brought into order in one turn of the event loop.
_MERGED_AT_ONCE: Final = 256


class ObjectStoreError(Exception):
    """The store did not do what it was asked for."""


class ObjectNotFound(ObjectStoreError):
    """The store has no object with this key."""


class StoredObject(NamedTuple):
    key: str
    size: int


class FileContent:
    """The first `size` bytes of a file as the content of an object: chunks, which are read as they are asked
    for. A store that keeps objects as files copies the file instead.
    """

    __slots__ = ("_pool", "file", "on_progress", "size")

    def __init__(self, file: Callable[[], File], size: int, pool: Pool) -> None:
        """`file` returns the open file, for one operation."""
        self.file = file
        self.size = size
        self._pool = pool
        # Called when a part of it was taken.
        self.on_progress: Callable[[], None] = lambda: None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        position = 0
        while position < self.size:
            chunk = await self._pool.run(self._read, position, min(_CHUNK_BYTES, self.size - position))
            if not chunk:
                return  # the file is shorter; the store sees that, and refuses it
            self.on_progress()
            yield chunk
            position += len(chunk)

    def _read(self, position: int, size: int) -> bytes:
        return self.file().pread(size, position)


class ObjectStore(Protocol):
    async def put(self, key: str, chunks: AsyncIterable[bytes], size: int) -> None:
        """Store an object of `size` bytes, which come in chunks. It replaces one with the same key."""

    async def get(self, key: str) -> bytes:
        """Return a whole object. For small ones."""

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`, fewer at the object's end."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects, and what an interrupted `put` has left of them."""

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        """Return the objects whose keys begin with this prefix, by key."""

    def close(self) -> None:
        """Release what the store holds. Closing twice is harmless."""


class ObjectStoreKind(Enum):
    DIRECTORY = "file"
    S3 = "s3"
    GCS = "gs"
    AZURE = "az"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class ObjectStoreSettings:
    """Which store, and how it is reached. What is None is taken from the environment by the store's rules."""

    kind: ObjectStoreKind
    location: str
    """A directory, a bucket or a container."""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    part_bytes: int = DEFAULT_PART_BYTES
    """Larger objects are uploaded in parts of this size."""
    request_timeout_ms: int = 60_000
    max_retries: int = 3
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By the names of `obstore`; never shown."""
    credentials_file: str | None = None
    """For S3, a file with profiles, as the tools of AWS have it."""


def open_object_store(settings: ObjectStoreSettings, disk: Disk, pool: Pool) -> ObjectStore:
    """Open a store; `ObjectStoreError` if its settings, or a missing package, do not allow it. It is not
    asked anything yet.
    """
    match settings.kind:
        case ObjectStoreKind.DIRECTORY:
            return DirectoryStore(settings.location, disk, pool)
        case ObjectStoreKind.MEMORY:
            return MemoryStore()
        case _:
            return CloudStore(settings)


class MemoryStore:
    """Objects in the memory of this process."""

    __slots__ = ("objects",)

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put(self, key: str, chunks: AsyncIterable[bytes], size: int) -> None:
        self.objects[key] = await _joined(key, chunks, size)

    async def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectNotFound(f"there is no object {key}") from None

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return (await self.get(key))[start:end]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        return [
            StoredObject(key, len(self.objects[key]))
            for key in sorted(self.objects)
            if key.startswith(prefix)
        ]

    def close(self) -> None:
        """Nothing is held."""


class _PartFile:
    """An object that is being written, to a file beside its own. Its methods are for a thread, one after the
    other. A call goes on in its thread when its upload is cancelled; the file is not closed before, and the
    object does not appear.
    """

    __slots__ = ("_disk", "_file", "_lock", "_path", "is_given_up")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        self._lock = threading.Lock()
        self.is_given_up = False

    def write(self, data: bytes, position: int) -> None:
        with self._lock:
            self._opened().pwrite(data, position)

    def copy(self, content: FileContent, position: int, size: int) -> int:
        """Copy bytes of a file, and return how many there were; with the last of them the object is
        there.
        """
        with self._lock:
            copied = copy_range(content.file(), self._opened(), position, size)
            if position + copied == content.size:
                self._finish()
        return copied

    def finish(self) -> None:
        """Make what was written the object."""
        with self._lock:
            self._finish()

    def _finish(self) -> None:
        file = self._opened()
        file.sync()
        # Objects are read again rarely: memory is for what is.
        drop_cached(file)
        file.close()
        if not self.is_given_up:
            self._disk.rename(self._path + _PART_SUFFIX, self._path)
            self._disk.sync_dir(posixpath.dirname(self._path))

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()

    def _opened(self) -> File:
        if self._file is None:
            if self.is_given_up:
                raise OSError(errno.ECANCELED, "the upload was given up", self._path + _PART_SUFFIX)
            self._file = self._open()
        return self._file

    def _open(self) -> File:
        """Make a file of its own: an upload that hung and was given up may still write to the one that it
        has left.
        """
        part, parent = self._path + _PART_SUFFIX, posixpath.dirname(self._path)
        # Another deletion may remove a directory that is empty between the steps.
        for last_try in (False, True):
            self._make_dirs(parent)
            with suppress(FileNotFoundError):
                self._disk.unlink(part)
            try:
                return self._disk.open(part, exclusive=True)
            except (FileNotFoundError, FileExistsError):
                if last_try:
                    raise
        raise AssertionError("the last try returns or raises")

    def _make_dirs(self, path: str) -> None:
        missing = []
        while path != "/" and not self._disk.is_dir(path):
            missing.append(path)
            path = posixpath.dirname(path)
        if missing:
            self._disk.make_dirs(missing[0])
            for each in missing:
                self._disk.sync_dir(posixpath.dirname(each))


class DirectoryStore:
    """Objects as files of a directory. An object is written to a file beside it, synced and renamed."""

    __slots__ = ("_disk", "_pool", "_root")

    def __init__(self, root: str, disk: Disk, pool: Pool) -> None:
        self._root = root.rstrip("/") or "/"
        self._disk = disk
        self._pool = pool

    def __repr__(self) -> str:
        return f"<object store {self._root}>"

    def _path(self, key: str) -> str:
        if not key or any(part in ("", ".", "..") for part in key.split("/")):
            raise ObjectStoreError(f"{key!r} is not the key of an object")
        return posixpath.join(self._root, key)

    async def put(self, key: str, chunks: AsyncIterable[bytes], size: int) -> None:
        part = _PartFile(self._disk, self._path(key))
        try:
            try:
                if isinstance(chunks, FileContent) and chunks.size == size > 0:
                    _check_size(key, await self._copy(part, chunks), size)
                else:
                    _check_size(key, await self._write(part, chunks), size)
                    await self._pool.run(part.finish)
            except BaseException:
                part.is_given_up = True
                # A write that hangs holds the file, and must not hold what has given it up.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_SECONDS):
                        await self._pool.run(part.close)
                raise
        except OSError as error:
            raise _disk_error(error) from error

    async def _write(self, part: _PartFile, chunks: AsyncIterable[bytes]) -> int:
        position = 0
        async for chunk in chunks:
            await self._pool.run(part.write, chunk, position)
            position += len(chunk)
        return position

    async def _copy(self, part: _PartFile, content: FileContent) -> int:
        position = 0
        while position < content.size:
            wanted = min(_COPIED_BYTES, content.size - position)
            copied = await self._pool.run(part.copy, content, position, wanted)
            position += copied
            content.on_progress()
            if copied < wanted:
                break
        return position

    async def get(self, key: str) -> bytes:
        return await self._read(key, lambda path: read_file(self._disk, path))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        def read(path: str) -> bytes:
            file = self._disk.open(path, writable=False)
            try:
                return file.pread(max(0, end - start), start)
            finally:
                file.close()

        return await self._read(key, read)

    async def _read(self, key: str, read: Any) -> bytes:
        try:
            data: bytes = await self._pool.run(read, self._path(key))
            return data
        except FileNotFoundError:
            raise ObjectNotFound(f"there is no object {key} in {self._root}") from None
        except OSError as error:
            raise _disk_error(error) from error

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        try:
            await self._pool.run(self._delete, paths)
        except OSError as error:
            raise _disk_error(error) from error

    def _delete(self, paths: Sequence[str]) -> None:
        parents = dict.fromkeys(posixpath.dirname(path) for path in paths)
        for path in paths:
            for each in (path, path + _PART_SUFFIX):
                if self._disk.exists(each):
                    try:
                        self._disk.unlink(each)
                    except FileNotFoundError:
                        continue
        for parent in parents:
            if self._disk.is_dir(parent):
                self._disk.sync_dir(parent)
                self._remove_empty(parent)

    def _remove_empty(self, path: str) -> None:
        """Remove the directory, and those above it, as far as they are empty and below the root."""
        while path != self._root and path.startswith(self._root):
            try:
                self._disk.remove_dir(path)
            except OSError:
                return
            path = posixpath.dirname(path)

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        try:
            return await self._pool.run(self._list, prefix)
        except OSError as error:
            raise _disk_error(error) from error

    def _list(self, prefix: str) -> list[StoredObject]:
        found: list[StoredObject] = []
        directories = [posixpath.dirname(prefix)]
        while directories:
            at = directories.pop()
            directory = posixpath.join(self._root, at) if at else self._root
            if not self._disk.is_dir(directory):
                continue
            for name in self._disk.list_dir(directory):
                key = posixpath.join(at, name)
                path = posixpath.join(directory, name)
                if self._disk.is_dir(path):
                    if key.startswith(prefix) or prefix.startswith(key):
                        directories.append(key)
                elif key.startswith(prefix) and not name.endswith(_PART_SUFFIX):
                    found.append(StoredObject(key, self._disk.size(path)))
        return sorted_in_pieces(found)

    def close(self) -> None:
        """Nothing is held."""


class CloudStore:
    """S3, Google Cloud Storage, Azure, and what speaks the protocol of one of them."""

    __slots__ = ("_library", "_name", "_part_bytes", "_secrets", "_store")

    def __init__(self, settings: ObjectStoreSettings) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError:
            raise ObjectStoreError(
                f"the package obstore is missing, which reaches {settings.kind.value}:// stores; "
                "install it with: pip install 'ottla[tiered]'"
            ) from None
        self._library: Any = obstore
        self._name = f"{settings.kind.value}://{settings.location}"
        self._part_bytes = settings.part_bytes
        credentials = _credentials(settings)
        self._secrets = _secrets_of(credentials)
        try:
            self._store: Any = _cloud_store(obstore.store, settings, credentials)
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise ObjectStoreError(f"{self._name}: {_without_secrets(error, self._secrets)}") from None

    def __repr__(self) -> str:
        return f"<object store {self._name}>"

    async def put(self, key: str, chunks: AsyncIterable[bytes], size: int) -> None:
        try:
            if size <= self._part_bytes:
                data = await _joined(key, chunks, size)
                await self._library.put_async(self._store, key, data, use_multipart=False)
                return
            await self._library.put_async(
                self._store,
                key,
                _checked(key, chunks, size),
                chunk_size=self._part_bytes,
                max_concurrency=_PARTS_AT_ONCE,
            )
        except self._library.exceptions.BaseError as error:
            raise self._error(key, error) from None

    async def get(self, key: str) -> bytes:
        try:
            answer = await self._library.get_async(self._store, key)
            return bytes(await answer.bytes_async())
        except (self._library.exceptions.NotFoundError, FileNotFoundError):
            raise ObjectNotFound(f"there is no object {key} in {self._name}") from None
        except self._library.exceptions.BaseError as error:
            raise self._error(key, error) from None

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        try:
            return bytes(await self._library.get_range_async(self._store, key, start=start, end=end))
        except (self._library.exceptions.NotFoundError, FileNotFoundError):
            raise ObjectNotFound(f"there is no object {key} in {self._name}") from None
        except self._library.exceptions.BaseError as error:
            raise self._error(key, error) from None

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                await self._library.delete_async(self._store, key)
            except (self._library.exceptions.NotFoundError, FileNotFoundError):
                continue
            except self._library.exceptions.BaseError as error:
                raise self._error(key, error) from None

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        # The library lists whole directories; a prefix may end in the middle of a name.
        directory = posixpath.dirname(prefix)
        runs: list[list[StoredObject]] = [[]]
        try:
            stream = self._library.list(self._store, prefix=directory or None)
            async for batch in stream:
                found = sorted(
                    StoredObject(meta["path"], meta["size"])
                    for meta in batch
                    if meta["path"].startswith(prefix)
                )
                if runs[-1] and found and found[0] < runs[-1][-1]:
                    runs.append([])
                runs[-1] += found
        except self._library.exceptions.BaseError as error:
            raise self._error(prefix, error) from None
        return await _merged(runs)

    def _error(self, key: str, error: Exception) -> ObjectStoreError:
        return ObjectStoreError(f"{self._name}/{key}: {_without_secrets(error, self._secrets)}")

    def close(self) -> None:
        """The library closes its connections with the store."""


def _cloud_store(library: Any, settings: ObjectStoreSettings, credentials: Mapping[str, str]) -> Any:
    client_options: dict[str, Any] = {
        "timeout": timedelta(milliseconds=settings.request_timeout_ms),
        "connect_timeout": timedelta(seconds=5),
    }
    if settings.endpoint is not None and settings.endpoint.startswith("http://"):
        client_options["allow_http"] = True
    retry_config = {
        "max_retries": settings.max_retries,
        "retry_timeout": timedelta(milliseconds=settings.request_timeout_ms),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        },
    }
    config: dict[str, Any] = dict(credentials)
    match settings.kind:
        case ObjectStoreKind.S3:
            if settings.endpoint is not None:
                config["endpoint"] = settings.endpoint
            if settings.region is not None:
                config["region"] = settings.region
            if settings.path_style:
                config["virtual_hosted_style_request"] = False
            make = library.S3Store
        case ObjectStoreKind.GCS:
            if settings.endpoint is not None:
                config["base_url"] = settings.endpoint
            make = library.GCSStore
        case _:
            if settings.endpoint is not None:
                config["endpoint"] = settings.endpoint
            make = library.AzureStore
    return make(settings.location, config=config, client_options=client_options, retry_config=retry_config)


# Values that are needed to find out what is wrong.
_NO_SECRETS: Final = frozenset({"account_name", "application_credentials"})
_SECRET_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)


def _credentials(settings: ObjectStoreSettings) -> dict[str, str]:
    """The credentials that are not left to the library to find."""
    found = dict(settings.credentials)
    if settings.kind is ObjectStoreKind.S3 and not (
        "access_key_id" in found or "AWS_ACCESS_KEY_ID" in os.environ
    ):
        found |= _profile_credentials(settings.credentials_file)
    return found


def _secrets_of(credentials: Mapping[str, str]) -> tuple[str, ...]:
    """The texts that no message may have: a store may name them in its answers."""
    given = [value for name, value in credentials.items() if name not in _NO_SECRETS]
    found = [*given, *(os.environ.get(name, "") for name in _SECRET_VARIABLES)]
    # Those that have others in them come first.
    return tuple(sorted(filter(None, found), key=len, reverse=True))


def _profile_credentials(path: str | None) -> dict[str, str]:
    """Read the credentials of the profile that the environment names, from the file of AWS's tools; none if
    there is no such file, as on a machine whose role has the permission.
    """
    named = path or os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    file = named or os.path.expanduser("~/.aws/credentials")
    parser = configparser.RawConfigParser()
    try:
        with open(file, encoding="utf-8") as text:
            parser.read_file(text)
    except FileNotFoundError:
        if path is None:
            return {}
        raise ObjectStoreError(f"the credentials file {file} does not exist") from None
    except (OSError, configparser.Error, UnicodeDecodeError) as error:
        raise ObjectStoreError(
            f"the credentials file {file} cannot be read: {type(error).__name__}"
        ) from None
    profile = os.environ.get("AWS_PROFILE", "default")
    if profile not in parser:
        if path is None:
            return {}
        raise ObjectStoreError(f"the credentials file {file} has no profile {profile}")
    section = parser[profile]
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    }
    return {ours: section[theirs] for theirs, ours in names.items() if theirs in section}


_QUERY: Final = re.compile(r"\?[^\s\"'<>]+")
_MAX_ERROR_TEXT: Final = 500
# Where machines of a cloud get their credentials: the last place where libraries look for some.
_MACHINE_CREDENTIALS: Final = (
    "//169.254.169.254/",
    "//metadata.google.internal",
    "//metadata/computeMetadata",
)


def _without_secrets(error: Exception, secrets: Sequence[str]) -> str:
    """The text of an error without queries of URLs, which may hold signatures, and without credentials."""
    text = _QUERY.sub("?...", " ".join(str(error).split("\n\nDebug source:")[0].split()))
    for secret in secrets:
        text = text.replace(secret, "...")
    hint = ""
    if any(address in text for address in _MACHINE_CREDENTIALS):
        hint = "no credentials were found in settings or environment, and the machine has none: "
    return f"{hint}{type(error).__name__}: {text[:_MAX_ERROR_TEXT]}"


def _disk_error(error: OSError) -> ObjectStoreError:
    return ObjectStoreError(f"{error.filename or 'the object store'}: {error.strerror or error}")


async def _merged(runs: Sequence[list[StoredObject]]) -> list[StoredObject]:
    """Merge lists that are in order, in turns; most stores list in order, so there is one."""
    if len(runs) == 1:
        return runs[0]
    found: list[StoredObject] = []
    for each in heapq.merge(*runs):
        found.append(each)
        if len(found) % _MERGED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


def _check_size(key: str, received: int, size: int) -> None:
    if received != size:
        raise ObjectStoreError(f"{key} should have {size} bytes, and its source has {received}")


async def _joined(key: str, chunks: AsyncIterable[bytes], size: int) -> bytes:
    data = b"".join([chunk async for chunk in chunks])
    _check_size(key, len(data), size)
    return data


async def _checked(key: str, chunks: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    received = 0
    async for chunk in chunks:
        received += len(chunk)
        yield chunk
    _check_size(key, received, size)

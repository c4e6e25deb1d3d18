"""The settings of the store that has the remote segments, by the names of Aiven's plugin.

A file that was made for the plugin works. `storage.url` is shorter: `file:///srv/tier`, `s3://bucket/prefix`,
`gs://bucket`, `az://container`. Brokers have these settings with the prefix `rsm.config.`, and so have
programs that read the store without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.remote.object_layout import DEFAULT_CHUNK_SIZE
from ottla.runtime.object_store import DEFAULT_PART_BYTES, ObjectStoreKind, ObjectStoreSettings

_KINDS: Final[Mapping[str, ObjectStoreKind]] = {
    "FileSystemStorage": ObjectStoreKind.DIRECTORY,
    "S3Storage": ObjectStoreKind.S3,
    "GcsStorage": ObjectStoreKind.GCS,
    "AzureBlobStorage": ObjectStoreKind.AZURE,
}
_LOCATIONS: Final[Mapping[ObjectStoreKind, str]] = {
    ObjectStoreKind.DIRECTORY: "storage.root",
    ObjectStoreKind.S3: "storage.s3.bucket.name",
    ObjectStoreKind.GCS: "storage.gcs.bucket.name",
    ObjectStoreKind.AZURE: "storage.azure.container.name",
}
_ENDPOINTS: Final[Mapping[ObjectStoreKind, str]] = {
    ObjectStoreKind.S3: "storage.s3.endpoint.url",
    ObjectStoreKind.GCS: "storage.gcs.endpoint.url",
    ObjectStoreKind.AZURE: "storage.azure.endpoint.url",
}
# Aiven's names, and those of the library.
_CREDENTIALS: Final[Mapping[ObjectStoreKind, Mapping[str, str]]] = {
    ObjectStoreKind.S3: {
        "storage.aws.access.key.id": "access_key_id",
        "storage.aws.secret.access.key": "secret_access_key",
        "storage.aws.session.token": "session_token",
    },
    ObjectStoreKind.GCS: {
        "storage.gcs.credentials.path": "application_credentials",
        "storage.gcs.credentials.json": "service_account_key",
    },
    ObjectStoreKind.AZURE: {
        "storage.azure.account.name": "account_name",
        "storage.azure.account.key": "account_key",
        "storage.azure.sas.token": "sas_key",
    },
}
_MIN_PART_BYTES: Final = 5 * 1024 * 1024
_MAX_PART_BYTES: Final = 1024 * 1024 * 1024
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RemoteStorageSettings:
    """Where segments go, and how they are laid out there."""

    store: ObjectStoreSettings
    prefix: str = ""
    chunk_size: int = DEFAULT_CHUNK_SIZE


class InvalidStoreSetting(ValueError):
    """A setting is missing, or has a value that cannot be used. The text names it, and no value."""


class MissingStoreSetting(InvalidStoreSetting):
    """The settings do not say which store."""


class PrefixedSettings:
    """The settings with a prefix, by their names without it. Errors name the whole setting."""

    def __init__(self, given: Mapping[str, str], prefix: str) -> None:
        self._prefix = prefix
        self._values = {
            name.removeprefix(prefix): text.strip() for name, text in given.items() if name.startswith(prefix)
        }

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise self.invalid(name, "it must be a whole number") from None
        if not low <= value <= high:
            raise self.invalid(name, f"it must be at least {low} and at most {high}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise self.invalid(name, "it must be true or false")
        return text.lower() == "true"

    def invalid(self, name: str, why: str) -> InvalidStoreSetting:
        # Not the value: it may be a secret that was put under the wrong name.
        return InvalidStoreSetting(f"Invalid value for configuration {self._prefix}{name}: {why}")

    def missing(self, *names: str) -> MissingStoreSetting:
        wanted = " or ".join(self._prefix + name for name in names)
        return MissingStoreSetting(f"the store of segments is not configured: set {wanted}")


def store_settings(given: PrefixedSettings) -> RemoteStorageSettings:
    """Read the settings of the store; `InvalidStoreSetting` names one that is missing or wrong."""
    for transformation in ("compression", "encryption"):
        if given.flag(f"{transformation}.enabled"):
            raise given.invalid(
                f"{transformation}.enabled",
                f"Ottla uploads segments without {transformation} of its own. Producers can compress; stores "
                "encrypt at rest",
            )
    kind, location, prefix = _place(given)
    prefix = prefix + (given.text("key.prefix") or "")
    credentials = {
        ours: value for theirs, ours in _CREDENTIALS.get(kind, {}).items() if (value := given.text(theirs))
    }
    credentials |= _connection_string(given) if kind is ObjectStoreKind.AZURE else {}
    endpoint = credentials.pop("endpoint", None) or given.text(_ENDPOINTS.get(kind, ""))
    store = ObjectStoreSettings(
        kind,
        location,
        endpoint=endpoint,
        region=given.text("storage.s3.region"),
        path_style=given.flag("storage.s3.path.style.access.enabled", endpoint is not None),
        part_bytes=given.number(
            "storage.s3.multipart.upload.part.size", DEFAULT_PART_BYTES, _MIN_PART_BYTES, _MAX_PART_BYTES
        ),
        request_timeout_ms=given.number("storage.s3.api.call.attempt.timeout", 60_000, 1, _INT_MAX),
        credentials=credentials,
        credentials_file=given.text("storage.aws.credentials.file"),
    )
    return RemoteStorageSettings(store, prefix, given.number("chunk.size", DEFAULT_CHUNK_SIZE, 1, _INT_MAX))


def _place(given: PrefixedSettings) -> tuple[ObjectStoreKind, str, str]:
    """The kind of store, its directory or bucket, and the prefix of its keys."""
    url = given.text("storage.url")
    if url is not None:
        return _place_of_url(given, url)
    name = given.text("storage.backend.class")
    if name is None:
        if given.text("storage.root") is None:
            raise given.missing("storage.url", "storage.backend.class")
        name = "FileSystemStorage"
    kind = _KINDS.get(name.rpartition(".")[2])
    if kind is None:
        raise given.invalid(
            "storage.backend.class", f"it must name one of the stores {', '.join(sorted(_KINDS))}"
        )
    location = given.text(_LOCATIONS[kind])
    if location is None:
        raise given.missing(_LOCATIONS[kind])
    if kind is ObjectStoreKind.DIRECTORY and not location.startswith("/"):
        raise given.invalid("storage.root", "it must be an absolute path")
    return kind, location, ""


def _place_of_url(given: PrefixedSettings, url: str) -> tuple[ObjectStoreKind, str, str]:
    scheme, separator, rest = url.partition("://")
    kinds = {kind.value: kind for kind in _LOCATIONS} | {"s3a": ObjectStoreKind.S3}
    kind = kinds.get(scheme.lower())
    if not separator or kind is None or "@" in rest.partition("/")[0] or "?" in rest:
        raise given.invalid(
            "storage.url", "it must be like file:///directory, s3://bucket, gs://bucket or az://container"
        )
    if kind is ObjectStoreKind.DIRECTORY:
        if not rest.startswith("/"):
            raise given.invalid("storage.url", "a directory is written as file:///absolute/path")
        return kind, rest, ""
    location, _, prefix = rest.partition("/")
    if not location:
        raise given.invalid("storage.url", "it names no bucket")
    return kind, location, prefix.rstrip("/") + "/" if prefix else ""


def _connection_string(given: PrefixedSettings) -> dict[str, str]:
    """The parts of an Azure connection string: an account, its key and perhaps its address."""
    text = given.text("storage.azure.connection.string")
    if text is None:
        return {}
    parts = dict(part.partition("=")[::2] for part in text.split(";") if part)
    names = {
        "AccountName": "account_name",
        "AccountKey": "account_key",
        "SharedAccessSignature": "sas_key",
        "BlobEndpoint": "endpoint",
    }
    return {ours: parts[theirs] for theirs, ours in names.items() if theirs in parts}

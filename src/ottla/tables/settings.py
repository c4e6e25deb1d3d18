"""Which catalog has the tables, and what the table of one topic is like. Plain values, which cross a pipe."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

CATALOG_PREFIX: Final = "table.catalog."
# What a broker says of a topic's table to those who ask it for the topic's setting of this name. It cannot be
# set, and is listed nowhere.
TABLE_STATUS: Final = "table.status"
# What a broker is asked for.
BROKER_SETTINGS: Final = (
    *(f"{CATALOG_PREFIX}{name}" for name in ("type", "uri", "warehouse", "name")),
    "table.namespace",
    "log.dirs",
    "log.dir",
)
# Of a key, a value or the headers in a table, unless the topic allows larger messages.
MAX_PART_BYTES: Final = 32 * 1024 * 1024
_SEPARATORS_IN_A_ROW: Final = re.compile("[._-]{2}")
# Those of the settings of this prefix that are not properties of pyiceberg's own.
_OWN: Final = frozenset(("type", "uri", "warehouse", "name"))


# Properties of pyiceberg that many set. There are others, so a name is wrong only if it is much like one of
# these.
_USUAL: Final = (
    "credential",
    "token",
    "s3.access-key-id",
    "s3.endpoint",
    "s3.force-virtual-addressing",
    "s3.region",
    "s3.secret-access-key",
    "s3.session-token",
    "adls.account-key",
    "adls.account-name",
    "gcs.oauth2.token",
    "gcs.project-id",
)


def meant_property(name: str) -> str | None:
    """The NAME of table.catalog.NAME that this one may be a misspelling of; None if it may be right.

    >>> meant_property("url"), meant_property("s3.endpont"), meant_property("s3.role-arn")
    ('uri', 's3.endpoint', None)
    """
    if name in _OWN or name in _USUAL:
        return None
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(_OWN), n=1) or get_close_matches(name, _USUAL, n=1, cutoff=0.9)
    return near[0] if near else None


def default_warehouse(log_dir: str) -> str:
    """The directory beside a data directory: Apache Kafka refuses to start with one inside that it does not
    know.
    """
    return f"{log_dir.rstrip('/')}-tables"


def table_name(topic: str) -> str:
    """The name of a topic's table, which no other topic has: engines of SQL take neither dots nor dashes
    without quotes. A dot is `_` and a dash `__`, as no cluster has topics that differ in `.` and `_` only.
    Where such characters follow each other, that does not say which they are: a hash of the topic does.

    >>> table_name("shop.orders"), table_name("shop-orders"), table_name("shop--orders")
    ('shop_orders', 'shop__orders', 'shop____orders___69295d2e1be18ab4')
    """
    name = topic.replace(".", "_").replace("-", "__")
    if _SEPARATORS_IN_A_ROW.search(topic) is None:
        return name
    return f"{name}___{hashlib.sha256(topic.encode()).hexdigest()[:16]}"


def older_table_name(topic: str) -> str:
    """The name of a table that an older release has made; several topics have one name."""
    return topic.replace(".", "_").replace("-", "_")


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """`warehouse` is a directory, a location of an object store, or the name that a REST catalog has for one;
    `properties` go to pyiceberg.
    """

    type: str = "sql"
    uri: str | None = None
    warehouse: str | None = None
    name: str = "ottla"
    namespace: str = "topics"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_settings(cls, given: Mapping[str, str], log_dir: str | None = None) -> CatalogSettings:
        """Read the settings of a node, as `server.properties` has them."""

        def text(name: str) -> str | None:
            return given.get(CATALOG_PREFIX + name) or None

        kind, warehouse = text("type") or "sql", text("warehouse")
        if kind == "sql":
            if warehouse is not None:
                warehouse = warehouse.removeprefix("file://")
            elif log_dir is not None:
                warehouse = default_warehouse(log_dir)
        return cls(
            type=kind,
            uri=text("uri"),
            warehouse=warehouse,
            name=text("name") or "ottla",
            namespace=given.get("table.namespace") or "topics",
            properties={
                name.removeprefix(CATALOG_PREFIX): value
                for name, value in given.items()
                if name.startswith(CATALOG_PREFIX) and name.removeprefix(CATALOG_PREFIX) not in _OWN
            },
        )

    @classmethod
    def from_broker(
        cls, described: Mapping[str, str | None], given: Mapping[str, str] | None = None
    ) -> CatalogSettings:
        """The catalog of a broker, by the settings that it shows. ValueError if it hides what is needed.

        `given` is what the user has set instead: the address that the broker hides, or another catalog, of
        which only the namespace and the name are as the broker's.
        """
        uri, kind, warehouse = (f"{CATALOG_PREFIX}{name}" for name in ("uri", "type", "warehouse"))
        shown = {name: value for name, value in described.items() if value is not None}
        if given:
            of_broker = ["table.namespace", f"{CATALOG_PREFIX}name"]
            if uri in given and kind not in given:
                of_broker += [kind, warehouse]
            return cls.from_settings({name: shown[name] for name in of_broker if name in shown} | dict(given))
        if uri in described:
            raise ValueError(f"the brokers have {uri} and do not show it")
        log_dir = shown.get("log.dirs") or shown.get("log.dir") or ""
        return cls.from_settings(shown, log_dir.partition(",")[0].strip() or None)

    @property
    def is_local(self) -> bool:
        """Whether the warehouse is a directory of this machine. A REST catalog may have names for its own."""
        if self.warehouse is None or "://" in self.warehouse:
            return False
        return self.type != "rest" or self.warehouse.startswith("/")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    target_bytes: int = 33_554_432
    min_files: int = 32
    snapshot_retention_ms: int = 86_400_000
    snapshot_max_count: int = 300
    orphan_min_age_ms: int = 86_400_000

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The topic of a table, and its settings. `metadata_offset` is where the metadata log was when the broker
    read them: of two brokers that disagree about the topic's id, the one with less is behind.
    """

    topic: str
    topic_id: str
    cluster_id: str
    metadata_offset: int = 0
    mode: str = "append"
    """append: a row for each record; latest: one for each key, with its latest value."""
    delete_retention_ms: int = 86_400_000
    """How long the log keeps a tombstone, at least."""
    max_part_bytes: int = MAX_PART_BYTES
    """Of a key, a value or the headers of a record."""
    partition_by: str = "none"
    schema_type: str = "none"
    schema: str = ""
    registry_url: str | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

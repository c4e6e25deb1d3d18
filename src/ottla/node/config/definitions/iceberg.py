"""The tables of topics: an extension of Ottla.

`table.catalog.NAME` of a name that is not here is a property of the catalog.
"""

from __future__ import annotations

from typing import Final

from ottla.node.config.definitions.config_def import (
    INT,
    LONG,
    LOW,
    MEDIUM,
    PASSWORD,
    STRING,
    ConfigKey,
    InRange,
    ValidString,
    config_def,
    key,
)

# fmt: off
ICEBERG: Final[dict[str, ConfigKey]] = config_def(
    key("table.catalog.type", STRING, "sql", MEDIUM,
        "The Iceberg catalog that has the tables of topics: sql (SQLite, PostgreSQL) or rest.",
        ValidString(("sql", "rest")), internal=True),
    key("table.catalog.uri", PASSWORD, None, MEDIUM,
        "The address of the catalog. Without one, an SQLite file in table.catalog.warehouse, which is then "
        "a directory that all brokers share.", internal=True),
    key("table.catalog.warehouse", STRING, None, MEDIUM,
        "Where the tables' files are: a directory, or a location such as s3://bucket/path. Without one, the "
        "directory beside the first of log.dirs whose name ends in -tables.", internal=True),
    key("table.catalog.name", STRING, "ottla", LOW,
        "The name of the catalog, which an SQL catalog has in its rows.", internal=True),
    key("table.namespace", STRING, "topics", LOW,
        "The namespace of the tables in the catalog.", internal=True),
    key("table.schema.registry.url", PASSWORD, None, LOW,
        "The schema registry of topics whose table.schema.type is registry.", internal=True),
    key("table.commit.max.bytes", LONG, 268_435_456, LOW,
        "How many bytes of records one commit to a table takes; what is left follows at once.",
        InRange(1_048_576), internal=True),
    key("table.file.target.bytes", LONG, 33_554_432, LOW,
        "The size that compaction gives the files of a table; smaller ones are merged.",
        InRange(1_048_576), internal=True),
    key("table.maintenance.interval.ms", LONG, 600_000, LOW,
        "How often small files are merged, old snapshots expire and files that no snapshot has are removed.",
        InRange(1_000), internal=True),
    key("table.compaction.min.files", INT, 32, LOW,
        "How many small files a partition of a table has before they are merged.", InRange(2), internal=True),
    key("table.snapshot.retention.ms", LONG, 86_400_000, LOW,
        "How long the snapshots of a table are kept.", InRange(60_000), internal=True),
    key("table.snapshot.max.count", INT, 300, LOW,
        "How many snapshots of a table are kept at most.", InRange(2), internal=True),
    key("table.orphan.min.age.ms", LONG, 86_400_000, LOW,
        "How old a file must be before it is removed because no snapshot has it.",
        InRange(60_000), internal=True),
)
# fmt: on

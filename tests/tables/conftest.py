"""Tables in a directory of the test, and batches of records as a broker has them in its log."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from ottla.tables.catalog import open_catalog
from ottla.tables.settings import CatalogSettings, TableSettings
from ottla.tables.topic_table import TopicTable
from tests.support.visible_records import build_batches_from_arrow

NOW_MS = 1_700_000_000_000
TOPIC_ID = "fbkF4xuRX65sh4U8Z651A"


def batches(values: Sequence[bytes | None], start: int = 0, timestamp_ms: int = NOW_MS) -> bytes:
    """Records with these values and keys k0, k1 and so on, at the offsets from `start`."""
    import pyarrow as pa

    keys = [f"k{n}".encode() for n in range(len(values))]
    data = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values, pa.binary())], ["key", "value"])
    found = b""
    for rows, batch in build_batches_from_arrow(data, default_timestamp=timestamp_ms):
        struct.pack_into(">q", batch, 0, start)
        start += rows
        found += bytes(batch)
    return found


class Warehouse:
    def __init__(self, path: Path) -> None:
        self.settings = CatalogSettings(warehouse=str(path))
        self.catalog = open_catalog(self.settings, create=True)

    def table(self, topic: str = "orders", topic_id: str = TOPIC_ID, on_step=lambda _: None, **settings):
        return TopicTable(
            self.catalog, self.settings, TableSettings(topic, topic_id, "cluster", **settings), on_step
        )

    def rows(self, name: str = "orders") -> list[dict]:
        table = self.catalog.load_table(("topics", name))
        found = table.scan().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
        return found.to_pylist()


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "warehouse")

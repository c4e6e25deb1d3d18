"""The process that keeps the tables of a broker: `python -m ottla.tables.worker`, started by the node.

pyiceberg takes a second to import, much memory and the interpreter; a node has none of that to spare. The
node sends what it read of its partitions, and this process decodes, writes and commits it. It has no state
that a restart would miss: what counts is in the tables.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from ottla.runtime import process
from ottla.runtime.child_process import serve_requests
from ottla.runtime.clock import SystemClock
from ottla.tables.catalog import open_catalog
from ottla.tables.errors import MissedDeletes, OffsetsMoved, TableError
from ottla.tables.secrets import Secrets
from ottla.tables.settings import CatalogSettings, MaintenanceSettings, TableSettings
from ottla.tables.topic_table import TopicTable

_log = logging.getLogger(__name__)
# Tables that are kept open; the one that was used longest ago goes.
_MAX_TABLES: Final = 64


class TableWorker:
    """Answers the requests of a node: configure, open, append, commit, maintain."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self._secrets: Final = secrets or Secrets()
        self._catalog_settings = CatalogSettings()
        self._catalog: Any = None
        self._tables: dict[str, TopicTable] = {}

    def answer(self, head: dict[str, Any], payload: bytes) -> dict[str, Any]:
        try:
            return {"ok": getattr(self, f"_on_{head['op']}")(head, payload)}
        except OffsetsMoved as error:
            self._tables.pop(str(head.get("topic")), None)
            return {"moved": self._secrets.hide(str(error))}
        except TableError as error:
            self._tables.pop(str(head.get("topic")), None)
            return {"error": self._secrets.hide(str(error))}
        except Exception as error:
            # The catalog may have gone, or come back as another one.
            self._tables.pop(str(head.get("topic")), None)
            self._catalog = None
            return {"error": f"{type(error).__name__}: {self._secrets.hide(str(error))[:500]}"}

    def _on_configure(self, head: dict[str, Any], _: bytes) -> None:
        self._catalog_settings = CatalogSettings(**head["catalog"])
        self._secrets.learn(self._catalog_settings)

    def _on_open(self, head: dict[str, Any], _: bytes) -> dict[str, int]:
        settings = TableSettings(**head["table"])
        self._secrets.learn_url(settings.registry_url)
        if self._catalog is None:
            self._catalog = open_catalog(self._catalog_settings, create=True)
            self._tables.clear()
        table = self._tables.pop(settings.topic, None)
        # Where the metadata log was is of interest for a new table only.
        if table is None or _without_offset(table.settings) != _without_offset(settings):
            table = TopicTable(self._catalog, self._catalog_settings, settings)
        self._tables[settings.topic] = table
        while len(self._tables) > _MAX_TABLES:
            del self._tables[next(iter(self._tables))]
        return {str(partition): offset for partition, offset in table.open(head.get("now_ms", 0)).items()}

    def _on_append(self, head: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """`rebuild`: nothing was taken, and the partition is wanted again from the start of its log."""
        aborted = [(int(producer), int(first)) for producer, first in head["aborted"]]
        table = self._tables[head["topic"]]
        try:
            following = table.append(
                head["partition"],
                head["offset"],
                payload,
                aborted,
                is_rebuilt=head["rebuild"],
                now_ms=head["now_ms"],
            )
        except MissedDeletes as error:
            _log.warning("%s: its rows are built again", error)
            return {"rebuild": True}
        return {"next": following, "full": table.is_full}

    def _on_commit(self, head: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Commit; without rows only if `always`: offsets that no row stands behind can wait."""
        table = self._tables[head["topic"]]
        if not table.has_rows and not head["always"]:
            return {"rows": 0, "files": 0, "bytes": 0}
        result = table.commit(head["complete"])
        import pyarrow as pa

        # Some kilobytes that inflate to hundreds of megabytes would be held for good.
        pa.default_memory_pool().release_unused()
        return {"rows": result.rows, "files": result.files, "bytes": result.bytes}

    def _on_maintain(self, head: dict[str, Any], _: bytes) -> dict[str, Any]:
        from ottla.tables.maintenance import maintain

        table = self._tables[head["topic"]].table
        return maintain(table.refresh(), MaintenanceSettings(**head["settings"]), SystemClock().wall_ms())


def _without_offset(settings: TableSettings) -> dict[str, Any]:
    values = settings.to_json()
    del values["metadata_offset"]
    return values


def main() -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s tables: %(message)s"
    )
    secrets = Secrets()
    for handler in logging.getLogger().handlers:
        handler.addFilter(secrets)
    process.lower_priority()
    serve_requests(TableWorker(secrets).answer)


if __name__ == "__main__":
    main()

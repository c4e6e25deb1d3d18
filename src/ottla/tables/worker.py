"""The process that keeps the tables of a broker: `python -m ottla.tables.worker`, started by the node.

pyiceberg takes a second to import, much memory and the interpreter; a node has none of that to spare. The
node sends what it read of its partitions, and this process decodes, writes and commits it. It has no state
that a restart would miss: what counts is in the tables.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, cast

from ottla.runtime import process
from ottla.runtime.child_process import serve_requests
from ottla.runtime.clock import SystemClock
from ottla.tables.catalog import open_catalog
from ottla.tables.errors import MissedDeletes, OffsetsMoved, TableError
from ottla.tables.secrets import Secrets
from ottla.tables.settings import CatalogSettings, MaintenanceSettings, TableSettings
from ottla.tables.topic_table import TopicTable
from ottla.tables.worker_messages import (
    Append,
    AppendAnswer,
    Commit,
    CommitAnswer,
    Configure,
    Maintain,
    Offsets,
    Open,
    WorkerRequest,
)

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
            return {"ok": self._answer(cast("WorkerRequest", head), payload)}
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

    def _answer(self, request: WorkerRequest, records: bytes) -> object:
        if request["op"] == "configure":
            self._configure(request)
            return None
        if request["op"] == "open":
            return self._open(request)
        if request["op"] == "append":
            return self._append(request, records)
        if request["op"] == "commit":
            return self._commit(request)
        if request["op"] == "maintain":
            return self._maintain(request)
        raise TableError(f"the worker knows no request {request!r:.100}")

    def _configure(self, request: Configure) -> None:
        self._catalog_settings = CatalogSettings(**request["catalog"])
        self._secrets.learn(self._catalog_settings)

    def _open(self, request: Open) -> Offsets:
        settings = TableSettings(**request["table"])
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
        return {str(partition): offset for partition, offset in table.open(request.get("now_ms", 0)).items()}

    def _append(self, request: Append, records: bytes) -> AppendAnswer:
        aborted = [(int(producer), int(first)) for producer, first in request["aborted"]]
        table = self._tables[request["topic"]]
        try:
            following = table.append(
                request["partition"],
                request["offset"],
                records,
                aborted,
                is_rebuilt=request["rebuild"],
                now_ms=request["now_ms"],
            )
        except MissedDeletes as error:
            _log.warning("%s: its rows are built again", error)
            return {"rebuild": True}
        return {"next": following, "full": table.is_full}

    def _commit(self, request: Commit) -> CommitAnswer:
        table = self._tables[request["topic"]]
        if not table.has_rows and not request["always"]:
            return {"rows": 0, "files": 0, "bytes": 0}
        result = table.commit(request["complete"])
        import pyarrow as pa

        # Some kilobytes that inflate to hundreds of megabytes would be held for good.
        pa.default_memory_pool().release_unused()
        return {"rows": result.rows, "files": result.files, "bytes": result.bytes}

    def _maintain(self, request: Maintain) -> dict[str, Any]:
        from ottla.tables.maintenance import maintain

        table = self._tables[request["topic"]].table
        return maintain(table.refresh(), MaintenanceSettings(**request["settings"]), SystemClock().wall_ms())


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

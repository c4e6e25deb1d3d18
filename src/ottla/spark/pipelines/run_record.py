"""The record of a pipeline's runs, in files of the project: for `ottla console`, and for people.

While a run lasts, its file is written again every few seconds, so that a run that was killed is recognized by
its age. It is replaced as a whole. How runs have ended is a line for each in another file, which keeps the
last ones; the end of one that was killed is noted when the next begins.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from ottla.spark.pipelines.progress import Flow, PipelineProgress

FILE: Final = "progress.json"
WRITE_SECONDS: Final = 2.0
STALE_SECONDS: Final = 30.0
HISTORY: Final = "runs.jsonl"
MAX_RUNS: Final = 200
_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_ERROR: Final = 500
_KILLED: Final = "the run was killed: it has left no end"


@contextlib.contextmanager
def record_run(progress: PipelineProgress, state: Path, name: str, *, mode: str) -> Iterator[None]:
    """Keep the progress of a run in `state` during the block, and how the run ended. A file that cannot be
    written stops no run.
    """
    record = _RunRecord(progress, state, name, mode)
    record.note_killed()
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(WRITE_SECONDS):
            record.write("running")

    record.write("running")
    thread = threading.Thread(target=write, name="record of the run", daemon=True)
    thread.start()
    outcome, error = "failed", None
    try:
        yield
        outcome = "failed" if progress.failed else "completed"
    except KeyboardInterrupt:
        outcome = "stopped"
        raise
    except BaseException as failure:
        error = str(failure)
        raise
    finally:
        stop.set()
        thread.join()
        record.write(outcome, error)
        record.note_end(outcome, error)


class _RunRecord:
    def __init__(self, progress: PipelineProgress, state: Path, name: str, mode: str) -> None:
        self._progress: Final = progress
        self._file: Final = state / FILE
        self._history: Final = state / HISTORY
        self._name: Final = name
        self._mode: Final = mode
        self._started_ms: Final = time.time_ns() // 1_000_000

    def write(self, state: str, error: str | None = None) -> None:
        document = self._document(state, error)
        draft = self._file.with_name(f"{FILE}.tmp")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps(document))
            draft.replace(self._file)

    def _document(self, state: str, error: str | None) -> dict[str, Any]:
        return {
            "version": 1,
            "name": self._name,
            "mode": self._mode,
            "state": state,
            "startedMs": self._started_ms,
            "updatedMs": time.time_ns() // 1_000_000,
            "error": error,
            "flows": flow_documents(self._progress),
        }

    def note_killed(self) -> None:
        """Note the end of a run that has left none: this one has the lock, so that one is over."""
        before = load_record(self._file.parent, time.time_ns() // 1_000_000)
        if before is not None and (before["state"] == "running" or before.get("error") == _KILLED):
            self._append({**before, "state": "stopped", "error": _KILLED})

    def note_end(self, state: str, error: str | None) -> None:
        """Note how the run has ended; of repeated runs only those that have done something."""
        if self._mode == "repeated" and state == "completed" and not self._progress.rows:
            return
        self._append(self._document(state, error))

    def _append(self, document: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            lines = _lines(self._history)
            lines = [*lines[1 - MAX_RUNS :], json.dumps(_shortened(document))]
            draft = self._history.with_name(f"{HISTORY}.tmp")
            draft.write_text("".join(f"{line}\n" for line in lines))
            draft.replace(self._history)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines() if file.stat().st_size <= _MAX_BYTES else []
    except (OSError, ValueError):
        return []


def _shortened(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the beginnings of its errors: two hundred stack traces are too much."""
    flows = [{**flow, "error": (flow.get("error") or "")[:_MAX_ERROR] or None} for flow in document["flows"]]
    return {**document, "error": (document["error"] or "")[:_MAX_ERROR] or None, "flows": flows}


def load_runs(state: Path, limit: int = MAX_RUNS) -> list[dict[str, Any]]:
    """How the last runs have ended, the newest first."""
    found: list[dict[str, Any]] = []
    for line in reversed(_lines(state / HISTORY)):
        if len(found) == limit:
            break
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            found.append(_run(json.loads(line)))
    return found


def _run(document: dict[str, Any]) -> dict[str, Any]:
    flows = document["flows"]
    return {
        "state": str(document["state"]),
        "mode": document["mode"],
        "startedMs": int(document["startedMs"]),
        "endedMs": int(document["updatedMs"]),
        "rows": _sum(each["rows"] for each in flows),
        "rowsOut": _sum(each.get("rowsOut") for each in flows),
        "lag": _sum(each["lag"] for each in flows),
        "broken": sum(int(rule["failed"]) for each in flows for rule in each["expectations"]),
        "failed": [str(each["name"]) for each in flows if each["state"] == "failed"],
        "error": document["error"] or next((each["error"] for each in flows if each["error"]), None),
        "expectations": {
            f"{each['name']}: {rule['name']}": int(rule["failed"])
            for each in flows
            for rule in each["expectations"]
        },
    }


def _sum(values: Iterable[int | None]) -> int | None:
    known = [int(value) for value in values if value is not None]
    return sum(known) if known else None


def flow_documents(progress: PipelineProgress) -> list[dict[str, Any]]:
    """The flows of a run, for programs."""
    return [_flow(each) for each in list(progress.flows.values())]


def _flow(flow: Flow) -> dict[str, Any]:
    return {
        "name": flow.name,
        "state": flow.state.value,
        "batches": flow.batches,
        "rows": flow.rows,
        "rowsOut": flow.written,
        "rowsPerSecond": flow.rows_per_second,
        "lag": flow.lag,
        "restarts": flow.restarts,
        "error": flow.error,
        "expectations": [
            {"name": name, "action": action.value, "rows": rows, "failed": failed}
            for (name, action), (rows, failed) in list(flow.expectations.items())
        ],
    }


def load_record(state: Path, now_ms: int) -> dict[str, Any] | None:
    """The record of the last run; None if there is none. A run that does not write any more was killed."""
    file = state / FILE
    try:
        if file.stat().st_size > _MAX_BYTES:
            return None
        document = json.loads(file.read_text())
        if document["version"] != 1 or not isinstance(document["flows"], list):
            return None
        if document["state"] == "running" and now_ms - document["updatedMs"] > STALE_SECONDS * 1000:
            document["state"] = "stopped"
            document["error"] = _KILLED
        return dict(document)
    except (OSError, ValueError, KeyError, TypeError):
        return None

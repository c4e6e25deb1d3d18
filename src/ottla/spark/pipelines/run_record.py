"""The record of a pipeline's last run, in a file of the project: for `ottla console`, and for people.

While a run lasts, the file is written again every few seconds, so that a run that was killed is recognized by
its age. It is replaced as a whole, and never read by a run.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ottla.spark.pipelines.progress import Flow, PipelineProgress

FILE: Final = "progress.json"
WRITE_SECONDS: Final = 2.0
STALE_SECONDS: Final = 30.0
_MAX_BYTES: Final = 16 * 1024 * 1024


@contextlib.contextmanager
def record_run(progress: PipelineProgress, state: Path, name: str, *, mode: str) -> Iterator[None]:
    """Keep the progress of a run in `state` during the block, and how the run ended. A file that cannot be
    written stops no run.
    """
    record = _RunRecord(progress, state, name, mode)
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


class _RunRecord:
    def __init__(self, progress: PipelineProgress, state: Path, name: str, mode: str) -> None:
        self._progress: Final = progress
        self._file: Final = state / FILE
        self._name: Final = name
        self._mode: Final = mode
        self._started_ms: Final = time.time_ns() // 1_000_000

    def write(self, state: str, error: str | None = None) -> None:
        document = {
            "version": 1,
            "name": self._name,
            "mode": self._mode,
            "state": state,
            "startedMs": self._started_ms,
            "updatedMs": time.time_ns() // 1_000_000,
            "error": error,
            "flows": flow_documents(self._progress),
        }
        draft = self._file.with_name(f"{FILE}.tmp")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps(document))
            draft.replace(self._file)


def flow_documents(progress: PipelineProgress) -> list[dict[str, Any]]:
    """The flows of a run, for programs."""
    return [_flow(each) for each in list(progress.flows.values())]


def _flow(flow: Flow) -> dict[str, Any]:
    return {
        "name": flow.name,
        "state": flow.state.value,
        "batches": flow.batches,
        "rows": flow.rows,
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
            document["error"] = "the run was killed: it has left no end"
        return dict(document)
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""Let a project go on in another directory than the one in which it has run.

Spark writes the full paths of files into its logs: of the files of a table into the log beside them, and of
the files that a stream has read into its checkpoint. In another directory it would take all of them for new.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from ottla.spark.pipelines.project import CHECKPOINTS, Project, ProjectError, spark_location

FILE_SINK_LOG: Final = "_spark_metadata"
_DEFAULT_STORAGE: Final = "pipeline-storage"
_FILE: Final = "storage.json"


def check_storage(project: Project, state: Path, *, from_scratch: bool) -> None:
    """Refuse to begin in a new storage where the project has brought its own along, or has run with another:
    its sinks would write everything again. `from_scratch` says that this is what the user wants.
    """
    storage, here = project.storage_path, project.directory / _DEFAULT_STORAGE
    if from_scratch or (storage is not None and (storage / CHECKPOINTS).is_dir()):
        return
    is_own = project.environment is None
    if is_own and storage not in (None, here) and not storage.is_dir() and (here / CHECKPOINTS).is_dir():
        raise ProjectError(
            f"{storage}, the storage in {project.spec}, does not exist, and {here} has checkpoints: was the "
            f"project moved? Write `storage: {_DEFAULT_STORAGE}` there, and it goes on"
        )
    former = known_storage(state)
    if former is None or former == project.storage:
        return
    before = replace(project, storage=former).storage_path
    if before is not None and not (before / CHECKPOINTS).is_dir():
        return
    raise ProjectError(
        f"this project has run with `storage: {former}`, and {project.storage}, the storage that "
        f"{project.spec} has now, is without its checkpoints: everything would be read, and written to "
        f"topics, once more. Move {CHECKPOINTS} from there to the new storage, or write `storage: "
        f"{former}` again; to begin from scratch: `ottla pipeline run --full-refresh-all`"
    )


def known_storage(state: Path) -> str | None:
    """The storage with which the project has run; None if it has not."""
    try:
        return str(json.loads((state / _FILE).read_text())["storage"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def keep_storage(project: Project, state: Path) -> None:
    """Note where the checkpoints of the project are."""
    if known_storage(state) == project.storage:
        return
    draft = state / f"{_FILE}.tmp"
    draft.write_text(json.dumps({"version": 1, "storage": project.storage}))
    draft.replace(state / _FILE)


def move_paths(former: Path, now: Path, storage: Path | None) -> None:
    """Replace the directory of the tables in Spark's logs. What was replaced already stays as it is."""
    old, new = spark_location(former), spark_location(now)
    for file in (*_logs_of_tables(now), *_logs_of_sources(storage)):
        text = file.read_text()
        moved = text.replace(f'"{old}/', f'"{new}/')
        if moved == text:
            continue
        draft = file.with_name(f".{file.name}.moved")
        with draft.open("w") as written:
            written.write(moved)
            written.flush()
            os.fsync(written.fileno())
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the former text
        draft.replace(file)


def _logs_of_tables(base: Path) -> Iterator[Path]:
    for log in base.rglob(FILE_SINK_LOG):
        yield from _batches(log)


def _logs_of_sources(storage: Path | None) -> Iterator[Path]:
    for source in [] if storage is None else (storage / CHECKPOINTS).glob("**/sources/*"):
        yield from _batches(source)


def _batches(log: Path) -> Iterator[Path]:
    return (each for each in log.iterdir() if each.name.split(".")[0].isdecimal())

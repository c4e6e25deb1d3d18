"""Checkpoints on HDFS or in an object store: only Spark's process reaches them, by Hadoop's file systems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ottla.spark.pipelines.plan import Definitions
from ottla.spark.pipelines.project import CHECKPOINTS, ProjectError
from ottla.spark.pipelines.selection import Selection, table_key

_SINKS: Final = "*"
_FLOWS: Final = ("*/*", "*/*/*/*")
"""Of sinks, and of tables below their catalog and database."""


def remove_directories(context: Any, root: str, *, other_than: str | None = None) -> None:
    """Remove the directories in `root`, if there are any, but for one."""
    path = context._jvm.org.apache.hadoop.fs.Path(root)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    for each in files.globStatus(context._jvm.org.apache.hadoop.fs.Path(path, "*")) or ():
        if each.getPath().getName() != other_than:
            files.delete(each.getPath(), True)


def rename_elsewhere(context: Any, storage: str, selection: Selection, definitions: Definitions) -> None:
    """Move the checkpoints of flows and sinks to their new names; what was moved already is left alone."""
    if not (selection.renamed_sinks or selection.renamed_flows):
        return
    root = context._jvm.org.apache.hadoop.fs.Path(f"{storage.rstrip('/')}/{CHECKPOINTS}")
    files = root.getFileSystem(context._jsc.hadoopConfiguration())
    spelled = {table_key(flow.target): flow.target.rpartition(".")[2] for flow in definitions.flows}
    for old, new in selection.renamed_sinks.items():
        if table_key(new) not in definitions.sinks:
            raise ProjectError(f"--renamed-sink {old}={new}: the definitions have no sink {new}")
        _move(context, files, root, (_SINKS,), old, spelled[table_key(new)], lambda _: True)
    for old, new in selection.renamed_flows.items():
        declared = [flow for flow in definitions.flows if table_key(flow.name) == table_key(new)]
        if not declared:
            raise ProjectError(f"--renamed-flow {old}={new}: the definitions have no flow {new}")
        targets = {table_key(flow.target) for flow in declared}
        name = declared[0].name.rpartition(".")[2]
        _move(context, files, root, _FLOWS, old, name, targets.__contains__)


def _move(
    context: Any,
    files: Any,
    root: Any,
    patterns: tuple[str, ...],
    old: str,
    new: str,
    is_target: Callable[[str], bool],
) -> None:
    def named(name: str) -> Iterator[Any]:
        for pattern in patterns:
            found = files.globStatus(context._jvm.org.apache.hadoop.fs.Path(root, pattern))
            for path in (each.getPath() for each in found or ()):
                if path.getName().lower() == table_key(name) and is_target(
                    path.getParent().getName().lower()
                ):
                    yield path

    former, there = list(named(old)), list(named(new))
    if former and there:
        raise ProjectError(f"{there[0].toString()} exists, so {new} has run under this name")
    if not former and not there:
        raise ProjectError(f"nothing in {root.toString()} has the name {old}")
    for path in former:
        if not files.rename(path, context._jvm.org.apache.hadoop.fs.Path(path.getParent(), new)):
            raise ProjectError(f"{path.toString()} could not be renamed")

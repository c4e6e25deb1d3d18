"""Foresee what a run does to each stream of a pipeline, and refuse what would repeat or leave out rows.

A checkpoint counts what a flow has read, under the names of the flow and its target. So it means something
else, or nothing, once a person has renamed the flow, given it another source, or has a table computed again
that it reads. Spark does not notice. Here the definitions are compared with the checkpoints and with a record
of what each flow read when it last ran, which is kept beside them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from ottla.spark.pipelines.checkpoints import FlowCheckpoint, flow_checkpoints
from ottla.spark.pipelines.project import CHECKPOINTS, ProjectError
from ottla.spark.pipelines.selection import Selection, table_key

__all__ = [
    "Definitions",
    "FlowAction",
    "FlowDefinition",
    "FlowRecord",
    "PlannedFlow",
    "RunPlan",
    "StreamRead",
    "plan_run",
    "rename_flows",
]

FILE: Final = "flows.json"
_RUN: Final = "ottla pipeline run"


@dataclass(frozen=True, slots=True, order=True)
class StreamRead:
    """A stream that a flow reads: of a table of the pipeline, or of something else as topics or files."""

    kind: str
    """`table`, or the name of a format."""
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.what}".rstrip()


@dataclass(frozen=True, slots=True)
class FlowDefinition:
    """A flow as the definitions declare it, with the streams that it reads."""

    name: str
    target: str
    streams: tuple[StreamRead, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """The flow among all; other targets may have flows of the same name."""
        return table_key(self.target), table_key(self.name)


@dataclass(slots=True)
class Definitions:
    """What the definitions of a pipeline declare. `tables` has the spelling of each table by its key."""

    tables: dict[str, str] = field(default_factory=dict)
    streaming: set[str] = field(default_factory=set)
    sinks: set[str] = field(default_factory=set)
    topics: dict[str, str | None] = field(default_factory=dict)
    """The topic of each sink into topics; None where each row names its own."""
    flows: list[FlowDefinition] = field(default_factory=list)

    def streams_of(self, flow: FlowDefinition) -> frozenset[StreamRead]:
        """The streams that a flow reads, itself or through temporary views."""
        found: set[StreamRead] = set()
        seen: set[str] = set()
        waiting = list(flow.streams)
        while waiting:
            read = waiting.pop()
            key = table_key(read.what)
            is_view = read.kind == "table" and key not in self.tables
            if is_view and key not in seen:
                seen.add(key)
                waiting += [
                    each for view in self.flows if table_key(view.target) == key for each in view.streams
                ]
            elif not is_view:
                found.add(StreamRead(read.kind, key) if read.kind == "table" else read)
        return frozenset(found)

    def is_stream(self, flow: FlowDefinition) -> bool:
        """Whether a flow has a checkpoint: it writes a streaming table or a sink."""
        target = table_key(flow.target)
        return target in self.sinks or target in self.streaming


class FlowAction(StrEnum):
    CONTINUES = "continues"
    BEGINS = "begins"
    RESTARTS = "restarts"


@dataclass(frozen=True, slots=True)
class PlannedFlow:
    """What a run does with one flow, and why if it does not just continue."""

    flow: str
    target: str
    action: FlowAction
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run does with all flows. With problems it is not to be run: each says what to do instead."""

    flows: tuple[PlannedFlow, ...]
    problems: tuple[str, ...] = ()

    def check(self) -> None:
        if self.problems:
            raise ProjectError("; and ".join(self.problems))


class FlowRecord:
    """What each flow read when it last ran, in a file beside the checkpoints. Nothing is known of a flow that
    last ran before there was such a file.
    """

    def __init__(self, storage: Path) -> None:
        self._file = storage / FILE

    def read(self) -> dict[tuple[str, str], frozenset[StreamRead]]:
        try:
            document = json.loads(self._file.read_text())
            return {
                (flow["target"], flow["name"]): frozenset(StreamRead(*each) for each in flow["streams"])
                for flow in document["flows"]
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise ProjectError(
                f"{self._file}, which has what each flow has read, is damaged ({error}); without it the next "
                "run cannot tell whether a flow reads something else now"
            ) from None

    def write(self, definitions: Definitions) -> None:
        """Keep what the flows read now. Those that are not declared any more stay: they may come back."""
        known = self.read()
        streams = [flow for flow in definitions.flows if definitions.is_stream(flow)]
        now = known | {flow.key: definitions.streams_of(flow) for flow in streams}
        if now == known:
            return
        flows = [
            {"target": target, "name": name, "streams": [[each.kind, each.what] for each in sorted(streams)]}
            for (target, name), streams in sorted(now.items())
        ]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".tmp")
        with draft.open("w") as file:
            json.dump({"version": 1, "flows": flows}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._file)


def plan_run(
    definitions: Definitions,
    selection: Selection,
    checkpoints: Mapping[tuple[str, str], FlowCheckpoint],
    records: Mapping[tuple[str, str], frozenset[StreamRead]],
) -> RunPlan:
    """Plan a run over the checkpoints of a storage, as `flow_checkpoints` finds them."""
    planner = _Planner(definitions, selection, checkpoints, records)
    planner.plan()
    return RunPlan(tuple(planner.flows), tuple(planner.problems))


class _Planner:
    def __init__(
        self,
        definitions: Definitions,
        selection: Selection,
        checkpoints: Mapping[tuple[str, str], FlowCheckpoint],
        records: Mapping[tuple[str, str], frozenset[StreamRead]],
    ) -> None:
        self._definitions = definitions
        self._selection = selection
        self._checkpoints = checkpoints
        self._records = records
        self._new_flows = set(map(table_key, selection.new_flows))
        self._streams = [flow for flow in definitions.flows if definitions.is_stream(flow)]
        self.flows: list[PlannedFlow] = []
        self.problems: list[str] = []

    def plan(self) -> None:
        repeating = []
        for flow in self._streams:
            action, why = self._action(flow)
            self.flows.append(PlannedFlow(flow.name, flow.target, action, why))
            if action is FlowAction.CONTINUES:
                if self._again_below(flow):
                    repeating.append(flow)
                else:
                    self._check_streams(flow)
            elif action is FlowAction.BEGINS:
                self._check_name(flow)
        if repeating:
            self.problems.append(self._refresh_problem(repeating))

    def _action(self, flow: FlowDefinition) -> tuple[FlowAction, str]:
        if not self._has_batches(flow):
            return FlowAction.BEGINS, "nothing was read yet"
        if not self._restarts(flow):
            return FlowAction.CONTINUES, ""
        if table_key(flow.target) in self._definitions.sinks:
            return FlowAction.RESTARTS, "what it has written stays in its sink, and is written once more"
        return FlowAction.RESTARTS, "its table is computed again"

    def _has_batches(self, flow: FlowDefinition) -> bool:
        checkpoint = self._checkpoints.get(flow.key)
        return checkpoint is not None and checkpoint.has_batches

    def _restarts(self, flow: FlowDefinition) -> bool:
        target = table_key(flow.target)
        if target in self._definitions.sinks:
            return self._selection.full_refresh_all or target in set(map(table_key, self._selection.sinks))
        return self._selection.recomputes(target)

    def _again_below(self, flow: FlowDefinition) -> list[str]:
        """The tables that a flow reads as streams and that the run computes again."""
        streams = self._definitions.streams_of(flow)
        return sorted(
            each.what for each in streams if each.kind == "table" and self._selection.recomputes(each.what)
        )

    def _refresh_problem(self, repeating: Sequence[FlowDefinition]) -> str:
        chosen = [*self._selection.full_refresh, *self._selection.sinks]
        below = self._below(repeating)
        tables = ", ".join(sorted({name for flow in repeating for name in self._again_below(flow)}))
        flows = ", ".join(f"{flow.name} (into {flow.target})" for flow in repeating)
        command = " ".join([_RUN, *(f"--full-refresh {name}" for name in [*chosen, *below])])
        sinks = [name for name in below if table_key(name) in self._definitions.sinks]
        again = (
            f". What is in the topic of {', '.join(sinks)} stays there, and is written once more"
            if sinks
            else ""
        )
        return (
            f"with table {tables} computed again, what reads it as a stream would take its rows for new "
            f"ones, and write them once more: flow {flows}. To compute all of it again: `{command}`{again}"
        )

    def _below(self, flows: Sequence[FlowDefinition]) -> list[str]:
        """The targets of flows, and of all that read those as streams, that do not restart anyway."""
        found: dict[str, str] = {}
        waiting = list(flows)
        while waiting:
            target = waiting.pop(0).target
            if table_key(target) in found:
                continue
            found[table_key(target)] = target.rpartition(".")[2]
            waiting += [
                flow
                for flow in self._streams
                if StreamRead("table", table_key(target)) in self._definitions.streams_of(flow)
                and self._has_batches(flow)
                and not self._restarts(flow)
            ]
        return list(found.values())

    def _check_streams(self, flow: FlowDefinition) -> None:
        """Refuse another kind of source, or another table: the checkpoint counts what was read of the one
        before. Topics may change: partitions that are new are read from their beginning.
        """
        before, now = self._records.get(flow.key), self._definitions.streams_of(flow)
        if before is None or _places(before) == _places(now):
            return
        target = flow.target.rpartition(".")[2]
        is_sink = table_key(target) in self._definitions.sinks
        remedy = (
            f"give the flow another name, and say that it is new: `{_RUN} --new-flow NAME`; it then begins "
            "where its options say"
            if is_sink
            else f"compute the table again: `{_RUN} --full-refresh {target}`"
        )
        self.problems.append(
            f"flow {flow.name} into {target} has read {_names(before)} until now, and reads {_names(now)}: "
            f"its checkpoint counts what it has read of the former. Either restore the former, or {remedy}"
        )

    def _check_name(self, flow: FlowDefinition) -> None:
        """Refuse a flow that may be one of the past under a new name."""
        target, name = flow.key
        if flow.key in self._checkpoints or self._restarts(flow) or name in self._new_flows:
            return
        declared = {each.key for each in self._streams}
        gone = sorted(
            known for at, known in self._checkpoints if at == target and (at, known) not in declared
        )
        if not gone:
            return
        where = flow.target.rpartition(".")[2]
        rename = f"`{_RUN} --renamed-flow {gone[0]}={flow.name}`"
        if target in self._definitions.sinks:
            self.problems.append(
                f"flow {flow.name} into sink {where} is new, and flow {', '.join(gone)}, which has written "
                f"to it, is gone. If it is the same under another name, it goes on with {rename}; if it is "
                f"another one, which writes all that it reads: `{_RUN} --new-flow {flow.name}`"
            )
        else:
            self.problems.append(
                f"table {where} was written by flow {', '.join(gone)}, and flow {flow.name} would begin from "
                "the start, where Spark leaves out what the table has already. If it is the same under "
                f"another name, it goes on with {rename}; if not, compute the table again: "
                f"`{_RUN} --full-refresh {where}`"
            )


def _places(streams: Iterable[StreamRead]) -> set[StreamRead]:
    """The streams, of which those of a format count once: Spark finds new topics and files itself."""
    return {each if each.kind == "table" else StreamRead(each.kind, "") for each in streams}


def _names(streams: Iterable[StreamRead]) -> str:
    return ", ".join(map(str, sorted(streams))) or "no stream"


def rename_flows(storage: Path, renamed: Mapping[str, str], definitions: Definitions) -> None:
    """Move the checkpoints of flows to their new names; Spark keeps the identity of a query inside. A flow
    that has been moved already, by a run that was killed, is left alone.
    """
    for old, new in renamed.items():
        declared = [flow for flow in definitions.flows if table_key(flow.name) == table_key(new)]
        if not declared:
            raise ProjectError(f"--renamed-flow {old}={new}: the definitions have no flow {new}")
        if any(table_key(flow.name) == table_key(old) for flow in definitions.flows):
            raise ProjectError(f"--renamed-flow {old}={new}: the definitions still have flow {old}")
        targets = {table_key(flow.target) for flow in declared}
        found = flow_checkpoints(storage / CHECKPOINTS)
        moved = [
            found[target, table_key(old)].directory for target in targets if (target, table_key(old)) in found
        ]
        done = [
            found[target, table_key(new)].directory for target in targets if (target, table_key(new)) in found
        ]
        if moved and done:
            raise ProjectError(
                f"--renamed-flow {old}={new}: {done[0]} exists, so {new} has run under this name"
            )
        if not moved and not done:
            raise ProjectError(
                f"--renamed-flow {old}={new}: flow {old} has no checkpoint for {', '.join(sorted(targets))}"
            )
        for directory in moved:
            directory.rename(directory.with_name(declared[0].name.rpartition(".")[2]))
            parent = os.open(directory.parent, os.O_RDONLY)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)

"""Foresee what a run does to each stream of a pipeline, and refuse what would repeat or leave out rows.

A checkpoint counts what a flow has read, under the names of the flow and its target. So it means something
else, or nothing, once a person has renamed the flow, given it another source, or has a table computed again
that it reads. Spark does not notice. Here the definitions are compared with the checkpoints and with a record
of what each flow read when it last ran, which is kept beside them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from ottla.spark.pipelines.checkpoints import FlowCheckpoint, flow_checkpoints, sink_checkpoints
from ottla.spark.pipelines.project import CHECKPOINTS, ProjectError
from ottla.spark.pipelines.selection import Selection, table_key

FILE: Final = "flows.json"
VERSION: Final = 2
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
    """In the order of its query, by which Spark numbers them in the checkpoint."""
    shape: str = ""
    """What tells its query from another one; empty if that is not known."""

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
    merged: set[str] = field(default_factory=set)
    """Of the sinks, those that are tables that merge."""
    topics: dict[str, str | None] = field(default_factory=dict)
    """The topic of each sink into topics; None where each row names its own."""
    servers: dict[str, str] = field(default_factory=dict)
    """The brokers of each sink into topics."""
    options: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """The options of each sink into topics."""
    sources: list[tuple[str, str, str]] = field(default_factory=list)
    """The topics that flows name, each with the flow and the brokers: (flow, brokers, topic)."""
    flows: list[FlowDefinition] = field(default_factory=list)
    dead_letters: dict[str, set[str]] = field(default_factory=dict)
    """The topics of the dead letters of flows, by their names."""

    def streams_of(self, flow: FlowDefinition) -> tuple[StreamRead, ...]:
        """The streams that a flow reads, itself or through temporary views, in the order of its query."""
        return tuple(self._streams(flow, frozenset()))

    def _streams(self, flow: FlowDefinition, above: frozenset[str]) -> Iterator[StreamRead]:
        for read in flow.streams:
            key = table_key(read.what)
            if read.kind != "table":
                yield read
            elif key in self.tables:
                yield StreamRead(read.kind, key)
            elif key not in above:  # a temporary view, and none that reads itself
                for view in self.flows:
                    if table_key(view.target) == key:
                        yield from self._streams(view, above | {key})

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


@dataclass(frozen=True, slots=True)
class KnownFlow:
    """What a flow was when it last ran."""

    streams: tuple[StreamRead, ...]
    shape: str = ""
    topic: str | None = None
    """The topic that it wrote to, if it is one into a sink."""
    is_ordered: bool = True
    """Whether the order of its streams is that of its query; earlier releases did not keep it."""
    is_last: bool = True
    """Whether it was declared in the last run, and not only in an earlier one."""


class FlowRecord:
    """What each flow was when it last ran, in a file beside the checkpoints. Nothing is known of a flow that
    last ran before there was such a file.
    """

    def __init__(self, storage: Path) -> None:
        self._file = storage / FILE

    def read(self) -> dict[tuple[str, str], KnownFlow]:
        try:
            document = json.loads(self._file.read_text())
            is_ordered = document["version"] >= VERSION
            return {
                (flow["target"], flow["name"]): KnownFlow(
                    tuple(StreamRead(*each) for each in flow["streams"]),
                    flow.get("shape", ""),
                    flow.get("topic"),
                    is_ordered,
                    flow.get("last", True),
                )
                for flow in document["flows"]
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise ProjectError(
                f"{self._file}, which has what each flow has read, is damaged ({error}); without it the next "
                "run cannot tell whether a flow reads something else now"
            ) from None

    def write(self, definitions: Definitions, selection: Selection | None = None) -> None:
        """Keep what the flows are now. Those that are not declared any more stay: they may come back, unless
        they have another name now.
        """
        known = self.read()
        streams = [flow for flow in definitions.flows if definitions.is_stream(flow)]
        now = {key: replace(flow, is_last=False) for key, flow in known.items()} | {
            flow.key: KnownFlow(
                definitions.streams_of(flow), flow.shape, definitions.topics.get(table_key(flow.target))
            )
            for flow in streams
        }
        for key in known:
            under = _new_key(key, selection) if selection is not None else key
            if under != key and under in now:
                del now[key]
        if now == known:
            return
        flows = [
            {
                "target": target,
                "name": name,
                "streams": [[each.kind, each.what] for each in flow.streams],
                "shape": flow.shape,
                "topic": flow.topic,
                "last": flow.is_last,
            }
            for (target, name), flow in sorted(now.items())
        ]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".tmp")
        with draft.open("w") as file:
            json.dump({"version": VERSION, "flows": flows}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._file)


def renamed(
    records: Mapping[tuple[str, str], KnownFlow], selection: Selection
) -> dict[tuple[str, str], KnownFlow]:
    """The records of flows under the names that the flows and their sinks have now."""
    under_new = {_new_key(key, selection): known for key, known in records.items()}
    return under_new | dict(records)


def _new_key(key: tuple[str, str], selection: Selection) -> tuple[str, str]:
    """The key that a flow has now, if it or its sink was renamed."""
    flows = {table_key(old): table_key(new) for old, new in selection.renamed_flows.items()}
    sinks = {table_key(old): table_key(new) for old, new in selection.renamed_sinks.items()}
    target, name = key
    return sinks.get(target, target), flows.get(name, name)


def plan_run(
    definitions: Definitions,
    selection: Selection,
    checkpoints: Mapping[tuple[str, str], FlowCheckpoint],
    records: Mapping[tuple[str, str], KnownFlow],
    *,
    is_elsewhere: bool = False,
) -> RunPlan:
    """Plan a run over the checkpoints of a storage, as `flow_checkpoints` finds them, or, where that
    `is_elsewhere` than on this machine, `assumed_checkpoints`.
    """
    planner = _Planner(definitions, selection, checkpoints, records, is_elsewhere=is_elsewhere)
    planner.plan()
    return RunPlan(tuple(planner.flows), tuple(planner.problems))


class _Planner:
    def __init__(
        self,
        definitions: Definitions,
        selection: Selection,
        checkpoints: Mapping[tuple[str, str], FlowCheckpoint],
        records: Mapping[tuple[str, str], KnownFlow],
        *,
        is_elsewhere: bool,
    ) -> None:
        self._is_elsewhere = is_elsewhere
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
            return FlowAction.CONTINUES, self._changes(flow)
        target = table_key(flow.target)
        if target in self._definitions.sinks - self._definitions.merged:
            return FlowAction.RESTARTS, "what it has written stays in its sink, and is written once more"
        return FlowAction.RESTARTS, "its table is computed again"

    def _changes(self, flow: FlowDefinition) -> str:
        """What of a flow is not as it was, and does no harm."""
        before = self._records.get(flow.key)
        if before is None:
            return ""
        found = []
        topic = self._definitions.topics.get(table_key(flow.target))
        if None not in (before.topic, topic) and before.topic != topic:
            found.append(f"it writes to topic {topic} now; what it has written to {before.topic} stays there")
        if before.shape and flow.shape and before.shape != flow.shape:
            found.append("its query was changed: what it has written before stays as it is")
        return "; ".join(found)

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
        of_topics = self._definitions.sinks - self._definitions.merged
        sinks = [name for name in below if table_key(name) in of_topics]
        if sinks and self._is_elsewhere:  # their checkpoints cannot be begun again one by one
            command = f"{_RUN} --full-refresh-all"
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
        before. Topics may change: partitions that are new are read from their beginning. It counts by the
        places of the sources in the query, so those may not change either.
        """
        before, now = self._records.get(flow.key), self._definitions.streams_of(flow)
        if before is None:
            return
        then = before.streams
        if not before.is_ordered:
            if set(map(_place, then)) == set(map(_place, now)):
                return
        elif list(map(_place, then)) == list(map(_place, now)) and not _has_moved(then, now):
            return
        target = flow.target.rpartition(".")[2]
        is_sink = table_key(target) in self._definitions.sinks
        remedy = (
            f"give the flow another name, and say that it is new: `{_RUN} --new-flow NAME`; it then begins "
            "where its options say"
            if is_sink
            else f"compute the table again: `{_RUN} --full-refresh {target}`"
        )
        if before.is_ordered and sorted(then) == sorted(now):
            difference = (
                f"has read {_names(then)} until now, and reads {_names(now)}: its checkpoint counts what it "
                "has read by this order. Either restore the order"
            )
        else:
            difference = (
                f"has read {_names(then)} until now, and reads {_names(now)}: its checkpoint counts what it "
                "has read of the former. Either restore the former"
            )
        self.problems.append(f"flow {flow.name} into {target} {difference}, or {remedy}")

    def _check_name(self, flow: FlowDefinition) -> None:
        """Refuse a flow that may be one of the past under a new name."""
        target, name = flow.key
        if flow.key in self._checkpoints or self._restarts(flow) or name in self._new_flows:
            return
        declared = {each.key for each in self._streams}
        gone = sorted(
            (known for at, known in self._checkpoints if at == target and (at, known) not in declared),
            key=lambda known: self._unlikeness(flow, (target, known)),
        )
        if not gone:
            self._check_name_of_sink(flow)
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

    def _unlikeness(self, flow: FlowDefinition, former: tuple[str, str]) -> tuple[bool, bool, bool, str]:
        """How little a flow of the past is likely to be this one, for an order. One that was gone before the
        last run has a checkpoint from then: to go on with that would read again what was read since.
        """
        known = self._records.get(former)
        if known is None:
            return True, True, True, former[1]
        streams = self._definitions.streams_of(flow)
        return not known.is_last, known.streams != streams, known.shape != flow.shape, former[1]

    def _check_name_of_sink(self, flow: FlowDefinition) -> None:
        """Refuse a sink that may be one of the past under a new name, into the same topic."""
        target, _ = flow.key
        topic = self._definitions.topics.get(target)
        if topic is None:
            return
        found = sorted(
            (self._unlikeness(flow, (at, name)), at)
            for at, name in self._checkpoints
            if at not in self._definitions.sinks
            and (known := self._records.get((at, name))) is not None
            and known.topic == topic
        )
        former = list(dict.fromkeys(at for _, at in found))
        if not former:
            return
        where = flow.target.rpartition(".")[2]
        self.problems.append(
            f"sink {where} is new, and sink {', '.join(former)}, which has written to the same topic, "
            f"{topic}, is gone. If it is the same under another name, its flows go on with `{_RUN} "
            f"--renamed-sink {former[0]}={where}`; if flow {flow.name} is to write all that it reads: "
            f"`{_RUN} --new-flow {flow.name}`"
        )


def assumed_checkpoints(
    records: Mapping[tuple[str, str], KnownFlow], selection: Selection
) -> dict[tuple[str, str], FlowCheckpoint]:
    """The checkpoints of a storage that this machine cannot read: each flow that has run has one, under the
    name that it has now.
    """
    flows = set(map(table_key, selection.renamed_flows))
    sinks = set(map(table_key, selection.renamed_sinks))
    return {
        (target, name): FlowCheckpoint(Path(target, name), has_batches=True)
        for target, name in records
        if target not in sinks and name not in flows
    }


def rename_sinks(storage: Path, renamed: Mapping[str, str], definitions: Definitions) -> None:
    """Move the checkpoints of all flows into a sink to its new name; what was moved already is left alone."""
    root = storage / CHECKPOINTS
    for old, new in renamed.items():
        if table_key(new) not in definitions.sinks:
            raise ProjectError(f"--renamed-sink {old}={new}: the definitions have no sink {new}")
        if table_key(old) in definitions.sinks:
            raise ProjectError(f"--renamed-sink {old}={new}: the definitions still have sink {old}")
        sinks = {
            table_key(flow.partition("/")[0]): root / flow.partition("/")[0]
            for flow in sink_checkpoints(root)
        }
        former, there = sinks.get(table_key(old)), sinks.get(table_key(new))
        if former is not None and there is not None:
            raise ProjectError(
                f"--renamed-sink {old}={new}: {there} exists, so {new} has run under this name"
            )
        if former is None and there is None:
            raise ProjectError(f"--renamed-sink {old}={new}: no flow into {old} has a checkpoint")
        if former is not None:
            spelled = next(
                flow.target for flow in definitions.flows if table_key(flow.target) == table_key(new)
            )
            _rename(former, spelled.rpartition(".")[2])


def _rename(directory: Path, name: str) -> None:
    directory.rename(directory.with_name(name))
    parent = os.open(directory.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _place(stream: StreamRead) -> StreamRead:
    """What of a stream its checkpoint depends on: Spark finds new topics and files of a format itself."""
    return stream if stream.kind == "table" else StreamRead(stream.kind, "")


def _has_moved(before: Sequence[StreamRead], now: Sequence[StreamRead]) -> bool:
    """Whether a stream is in the place of another one that is read as well, or was."""
    return any(then != at and (then in now or at in before) for then, at in zip(before, now, strict=True))


def _names(streams: Iterable[StreamRead]) -> str:
    return ", ".join(map(str, streams)) or "no stream"


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
            _rename(directory, declared[0].name.rpartition(".")[2])

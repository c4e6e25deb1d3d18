"""Random people edit a project, run it, and do what a refusal says: no row is doubled, none is left out.

Spark is a model here, with what it does not notice: a checkpoint counts by the names of flow and target, and
by the places of the streams in the query; a table that is computed again has new files for those who read it;
and a stream without a checkpoint into a table that has batches leaves rows out. The plan of a run is the real
one. What each table and topic must hold follows from what the person wants, and not from the plan.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random

import pytest

from ottla.spark.pipelines.checkpoints import FlowCheckpoint
from ottla.spark.pipelines.plan import (
    Definitions,
    FlowAction,
    FlowDefinition,
    FlowRecord,
    RunPlan,
    StreamRead,
    assumed_checkpoints,
    plan_run,
    renamed,
)
from ottla.spark.pipelines.selection import Selection

Record = tuple[str, int]
Stream = tuple[str, str]  # ("topic" or "table", its name)
_COMMAND = re.compile(r"`ottla pipeline run([^`]*)`")
EDITS = 12


@dataclass
class Flow:
    """A flow as the person knows it, whatever its name is. `done` is what it must have written so far."""

    name: str
    target: str
    streams: list[Stream]
    query: str
    done: set[Record] = field(default_factory=set)


@dataclass
class Checkpoint:
    """What Spark remembers of a flow: what each stream of its query has read, by its place."""

    seen: list[tuple[str, set[object]]] = field(default_factory=list)


class World:
    """A project, the brokers, and Spark."""

    def __init__(self, storage: Path, *, is_elsewhere: bool) -> None:
        self.is_elsewhere = is_elsewhere
        self.record = FlowRecord(storage)
        self.topics: dict[str, list[Record]] = {"a": [], "b": []}
        self.tables: dict[str, list[tuple[int, list[Record]]]] = {"orders": [], "teas": []}
        self.sinks = {"large": "large-topic", "small": "small-topic"}
        self.written: dict[str, Counter[Record]] = {}
        self.wanted: dict[str, Counter[Record]] = {}
        self.checkpoints: dict[tuple[str, str], Checkpoint] = {}
        self.flows = [
            Flow("orders", "orders", [("topic", "a")], "parse"),
            Flow("teas", "teas", [("table", "orders")], "teas"),
            Flow("find", "large", [("table", "orders"), ("topic", "b")], "large"),
            Flow("pick", "small", [("table", "teas")], "pick"),
        ]
        self._files = count()

    def definitions(self) -> Definitions:
        return Definitions(
            tables={name: name for name in self.tables},
            streaming=set(self.tables),
            sinks=set(self.sinks),
            topics=dict(self.sinks),
            flows=[
                FlowDefinition(
                    flow.name,
                    flow.target,
                    tuple(
                        StreamRead("table", name)
                        if kind == "table"
                        else StreamRead("ottla", f"subscribe={name}")
                        for kind, name in flow.streams
                    ),
                    f"{flow.query} of {flow.streams}",
                )
                for flow in self.flows
            ],
        )

    def run(self, selection: Selection) -> RunPlan:
        """Run, unless the plan has problems."""
        definitions, known = self.definitions(), renamed(self.record.read(), selection)
        moved = self._moved(selection)
        if self.is_elsewhere:
            found = assumed_checkpoints(known, selection)
        else:
            found = {
                key: FlowCheckpoint(Path("/s"), has_batches=bool(each.seen)) for key, each in moved.items()
            }
        plan = plan_run(definitions, selection, found, known, is_elsewhere=self.is_elsewhere)
        if not plan.problems:
            self.checkpoints = moved
            self.record.write(definitions, selection)
            self._execute(selection)
            self._expect(selection)
        return plan

    def _moved(self, selection: Selection) -> dict[tuple[str, str], Checkpoint]:
        """The checkpoints under their new names, as the commands of a rename leave them."""
        found = {}
        for (target, name), each in self.checkpoints.items():
            target = selection.renamed_sinks.get(target, target)
            new = selection.renamed_flows.get(name, name)
            if any((flow.target, flow.name) == (target, new) for flow in self.flows):
                name = new
            found[target, name] = each
        return found

    def _execute(self, selection: Selection) -> None:
        for flow in self.flows:  # what is read comes before those who read it
            key = flow.target, flow.name
            is_table = flow.target in self.tables
            if self._restarts(flow, selection):
                self.checkpoints.pop(key, None)
                if is_table:
                    self.tables[flow.target] = []
            is_lost = is_table and key not in self.checkpoints and bool(self.tables[flow.target])
            checkpoint = self.checkpoints.setdefault(key, Checkpoint())
            rows: list[Record] = []
            for place, (kind, name) in enumerate(flow.streams):
                if place == len(checkpoint.seen):
                    checkpoint.seen.append((kind, set()))
                _, seen = checkpoint.seen[place]
                units = (
                    self.tables[name] if kind == "table" else [(each, [each]) for each in self.topics[name]]
                )
                rows += [row for unit, content in units if unit not in seen for row in content]
                seen.update(unit for unit, _ in units)
            if is_lost or not rows:
                continue
            if is_table:
                self.tables[flow.target].append((next(self._files), rows))
            else:
                self.written.setdefault(self.sinks[flow.target], Counter()).update(rows)

    def _restarts(self, flow: Flow, selection: Selection) -> bool:
        if flow.target in self.tables:
            return selection.recomputes(flow.target)
        return selection.full_refresh_all or flow.target in selection.sinks

    # What must be.

    def _expect(self, selection: Selection) -> None:
        for flow in self.flows:
            if flow.target in self.tables:
                continue
            if self._restarts(flow, selection) or flow.name in selection.new_flows:
                flow.done = set()
            visible = self._visible(flow)
            self.wanted.setdefault(self.sinks[flow.target], Counter()).update(visible - flow.done)
            flow.done |= visible

    def _visible(self, flow: Flow) -> set[Record]:
        found: set[Record] = set()
        for kind, name in flow.streams:
            if kind == "topic":
                found.update(self.topics[name])
            else:
                found |= self._visible(next(each for each in self.flows if each.target == name))
        return found

    def check(self, story: list[str]) -> None:
        for name, files in self.tables.items():
            rows = Counter(row for _, content in files for row in content)
            flow = next(each for each in self.flows if each.target == name)
            assert rows == Counter(self._visible(flow)), (name, story)
        for topic, wanted in self.wanted.items():
            assert self.written.get(topic, Counter()) == wanted, (topic, story)


class Person:
    """Edits, runs, and reads what a refusal says."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.story: list[str] = []
        self.refusals = 0
        self._names = count(1)

    def live(self) -> None:
        self._run(Selection())
        edits = (
            *(
                self.rename_flow,
                self.rename_all_into_a_sink,
                self.rename_sink,
                self.other_source,
                self.swap,
                self.refresh_table,
            ),
            *(self.refresh_sink, self.refresh_all, self.one_more, self.other_topic, self.go_and_come_back),
        )
        for _ in range(EDITS):
            self._produce()
            if self.random.random() < 0.3:
                self._run(Selection())
                self._produce()
            edit: Callable[[], None] = self.random.choice(edits)
            self.story.append(edit.__name__)
            edit()
            self.world.check(self.story)

    def _produce(self) -> None:
        for topic, records in self.world.topics.items():
            first = len(records)
            records.extend((topic, first + each) for each in range(self.random.randrange(3)))

    def _flow(self, *, into_sink: bool | None = None) -> Flow:
        flows = self.world.flows
        if into_sink is not None:
            flows = [flow for flow in flows if (flow.target in self.world.sinks) is into_sink]
        return self.random.choice(flows)

    def _run(self, selection: Selection, wants: str = "", undo: Callable[[], None] | None = None) -> None:
        """Run; where that is refused, do what is said: the command with these words, or another one, or undo
        the change.
        """
        for _ in range(len(self.world.flows) + 3):
            plan = self.world.run(selection)
            if not plan.problems:
                return
            self.refusals += 1
            problem = plan.problems[0]
            commands = [match.strip() for match in _COMMAND.findall(problem)]
            assert commands, problem
            if undo is not None:
                undo()
                undo, selection = None, Selection()
                continue
            chosen = next((each for each in commands if wants and wants in each), commands[-1])
            self.story.append(chosen)
            selection = self._selection(selection, chosen, problem)
        raise AssertionError(f"refused again and again: {plan.problems}: {self.story}")

    def _selection(self, before: Selection, command: str, problem: str) -> Selection:
        found = before
        for option, value in re.findall(r"--([a-z-]+)(?: ([^- ][^ ]*))?", command):
            if option == "full-refresh-all":
                return Selection(full_refresh_all=True)
            if option == "full-refresh":
                kind = "sinks" if value in self.world.sinks else "full_refresh"
                found = replace(found, **{kind: tuple(dict.fromkeys((*getattr(found, kind), value)))})
            elif option == "new-flow":
                name = value
                if value == "NAME":  # a flow that reads something else gets another name
                    name = f"new{next(self._names)}"
                    was = re.match(r"flow (\S+) into", problem)
                    assert was is not None, problem
                    next(flow for flow in self.world.flows if flow.name == was[1]).name = name
                found = replace(found, new_flows=(*found.new_flows, name))
            else:
                old, _, new = value.partition("=")
                field_ = "renamed_flows" if option == "renamed-flow" else "renamed_sinks"
                found = replace(found, **{field_: {**getattr(found, field_), old: new}})
        return found

    # Edits.

    def rename_flow(self) -> None:
        flow = self._flow()
        flow.name = f"flow{next(self._names)}"
        self._run(Selection(), "--renamed-flow")

    def rename_all_into_a_sink(self) -> None:
        sink = self.random.choice(sorted(self.world.sinks))
        for flow in self.world.flows:
            if flow.target == sink:
                flow.name = f"flow{next(self._names)}"
        self._run(Selection(), "--renamed-flow")

    def rename_sink(self) -> None:
        old = self.random.choice(sorted(self.world.sinks))
        new = f"sink{next(self._names)}"
        self.world.sinks[new] = self.world.sinks.pop(old)
        for flow in self.world.flows:
            if flow.target == old:
                flow.target = new
        self._run(Selection(), "--renamed-sink")

    def other_source(self) -> None:
        """A flow into a sink reads the topic in place of the table, or the other way round."""
        flow = self._flow(into_sink=True)
        kind, _ = flow.streams[0]
        flow.streams = [("topic", "a") if kind == "table" else ("table", "orders"), *flow.streams[1:]]
        self._run(Selection(), "--new-flow")

    def swap(self) -> None:
        """The order of a union seems to mean nothing."""
        flow = self._flow(into_sink=True)
        before = list(flow.streams)
        flow.streams.reverse()
        self._run(Selection(), undo=lambda: setattr(flow, "streams", before))

    def refresh_table(self) -> None:
        self._run(Selection(full_refresh=(self.random.choice(sorted(self.world.tables)),)), "--full-refresh")

    def refresh_sink(self) -> None:
        sink = self.random.choice(sorted(self.world.sinks))
        self._run(Selection() if self.world.is_elsewhere else Selection(sinks=(sink,)))

    def refresh_all(self) -> None:
        self._run(Selection(full_refresh_all=True))

    def one_more(self) -> None:
        """One more flow into a sink, which writes all that it reads."""
        sink = self.random.choice(sorted(self.world.sinks))
        name = f"more{next(self._names)}"
        self.world.flows.append(Flow(name, sink, [("topic", "b")], name))
        self._run(Selection(), "--new-flow")

    def other_topic(self) -> None:
        sink = self.random.choice(sorted(self.world.sinks))
        self.world.sinks[sink] = f"topic{next(self._names)}"
        self._run(Selection())

    def go_and_come_back(self) -> None:
        flow = self._flow(into_sink=True)
        self.world.flows.remove(flow)
        self._run(Selection())
        self._produce()
        self.world.flows.append(flow)
        self._run(Selection())


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("first", range(0, 300, 100))
def test_no_row_is_doubled_or_left_out_whatever_people_change(
    tmp_path: Path, first: int, is_elsewhere: bool
) -> None:
    refusals = 0
    for seed in range(first, first + 100):
        storage = tmp_path / str(seed)
        storage.mkdir()
        person = Person(World(storage, is_elsewhere=is_elsewhere), Random(seed))
        person.live()
        refusals += person.refusals
    assert refusals > 100


def test_the_model_notices_what_an_unplanned_run_does(tmp_path: Path) -> None:
    """A model in which nothing can be doubled would prove nothing."""
    world = World(tmp_path, is_elsewhere=False)
    world.topics["a"] += [("a", 0), ("a", 1)]
    assert {each.action for each in world.run(Selection()).flows} == {FlowAction.BEGINS}
    world.check([])
    world.flows[2].name = "renamed"
    world._execute(Selection())
    with pytest.raises(AssertionError, match="large-topic"):
        world.check([])

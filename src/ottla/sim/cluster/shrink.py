"""Makes the story of a broken guarantee short: fewer features, clients, faults and nodes, and less time, as
long as the same guarantee is broken.

Each candidate is a run of the same seed with less. What is left is the shortest story that was found before
the time was up; it is replayed by the options that took the rest away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from ottla.sim.cluster.scenario import FEATURES, ClusterScenario
from ottla.sim.nemesis import AMBUSHES

T = TypeVar("T")

# Features whose removal would let the disks lose what the guarantees need.
_KEPT: Final = ("synced", "zookeeper")
_SHORTEST_S: Final = 0.5
# So much of a violation tells its kind: what follows are details.
_KIND_CHARACTERS: Final = 60
_LINES: Final = 70
# What the trace says about the life of a node, and about leaders.
_EVENTS: Final = re.compile(
    r"boots|is killed|loses power|is paused|goes on|ends: |is asked to stop|transition to leader|"
    r"active controller|VIOLATION"
)


class StoryOutcome(Protocol):
    """What a run says about itself."""

    violations: list[str]
    scenario: ClusterScenario
    faults: int
    lines: list[str]


Run = Callable[[ClusterScenario, float], StoryOutcome]


@dataclass(frozen=True, slots=True)
class Story:
    """A run that breaks a guarantee: what is asked for of its scenario, its time with faults, its outcome."""

    scenario: ClusterScenario
    seconds: float
    outcome: StoryOutcome
    # How many runs it took to find it.
    runs: int = 0

    def size(self) -> str:
        drawn = self.outcome.scenario
        only = drawn.nemesis.only if drawn.nemesis is not None else None
        faults = (
            self.outcome.faults if only is None else len([number for number in only if number != AMBUSHES])
        )
        return (
            f"{drawn.nodes} nodes, {len(drawn.features or ())} features, {len(drawn.clients or ())} clients, "
            f"{faults} faults, {self.seconds:.1f} s"
        )


def kind_of(violation: str) -> str:
    """The kind of a violation: without the numbers and names of one run."""
    lines = [line.strip() for line in violation.splitlines() if line.strip()]
    text = lines[0] if "failed: Traceback" not in violation else f"{lines[0]} {lines[-1]}"
    text = re.sub(r"b?'[^']*'|[0-9a-zA-Z_-]{22}", "*", text)
    return re.sub(r"[0-9]+", "#", text)[:_KIND_CHARACTERS]


def shorten(story: Story, run: Run, is_time_left: Callable[[], bool]) -> Story:
    """The shortest story of the same kind that is found while there is time."""
    return _Shrinker(story, run, is_time_left).shorten()


class _Shrinker:
    def __init__(self, story: Story, run: Run, is_time_left: Callable[[], bool]) -> None:
        self._best = story
        self._kind = kind_of(story.outcome.violations[0])
        self._run = run
        self._is_time_left = is_time_left
        self._runs = 0

    def shorten(self) -> Story:
        before = None
        while before is not self._best and self._is_time_left():
            before = self._best
            self._take_time_away()
            self._drop()
            self._leave_out_faults()
            self._take_nodes_away()
        return replace(self._best, runs=self._runs)

    def _try(self, scenario: ClusterScenario, seconds: float) -> bool:
        """Run a candidate, and keep it if the same guarantee is broken."""
        if not self._is_time_left():
            return False
        self._runs += 1
        outcome = self._run(scenario, seconds)
        if not outcome.violations or kind_of(outcome.violations[0]) != self._kind:
            return False
        self._best = Story(scenario, seconds, outcome)
        return True

    def _take_time_away(self) -> None:
        while self._best.seconds / 2 >= _SHORTEST_S:
            if not self._try(self._best.scenario, self._best.seconds / 2):
                return

    def _drop(self) -> None:
        """Take features and clients away."""
        drawn, asked = self._best.outcome.scenario, self._best.scenario
        names = [
            feature.name
            for feature in FEATURES
            if drawn.has(feature.name)
            and feature.name not in _KEPT
            and (feature.chance is not None or feature.without)
        ]
        names += [name for name in drawn.clients or () if name not in names]

        def is_enough(kept: Sequence[str]) -> bool:
            dropped = tuple(name for name in names if name not in kept)
            return self._try(replace(asked, dropped=(*asked.dropped, *dropped)), self._best.seconds)

        _least(names, is_enough)

    def _leave_out_faults(self) -> None:
        drawn, asked = self._best.outcome.scenario, self._best.scenario
        assert drawn.nemesis is not None
        # Ambushes first: they are many, and strike at moments that change with everything else.
        numbers = drawn.nemesis.only
        if numbers is None:
            numbers = (AMBUSHES,) if any(drawn.nemesis.ambush.values()) else ()
            numbers += tuple(range(1, self._best.outcome.faults + 1))

        def is_enough(kept: Sequence[int]) -> bool:
            return self._try(replace(asked, faults=tuple(kept)), self._best.seconds)

        _least(numbers, is_enough)

    def _take_nodes_away(self) -> None:
        while (nodes := self._best.outcome.scenario.nodes or 1) > 1:
            asked = self._best.scenario
            min_insync = None if asked.min_insync is None else min(asked.min_insync, nodes - 1)
            try:
                fewer = replace(asked, nodes=nodes - 1, min_insync=min_insync)
                if not self._try(fewer, self._best.seconds):
                    return
            except ValueError:  # a feature that is asked for needs them
                return


def _least(items: Sequence[T], is_enough: Callable[[Sequence[T]], bool]) -> None:
    """Find few of the items that are enough, by leaving out halves, quarters and so on (delta debugging)."""
    kept, parts = list(items), 1
    while kept:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            if is_enough(fewer):
                kept, parts = fewer, max(parts - 1, 1)
                break
        else:
            if size == 1:
                return
            parts = min(parts * 2, len(kept))


def timeline(outcome: StoryOutcome) -> list[str]:
    """The lines of the trace that tell the story: faults, lives of nodes, leaders, and what concerns the
    records and the partition of the violation.
    """
    violation = outcome.violations[0]
    concerned = re.findall(r"b'([^']+)'", violation)[:4]
    concerned += re.findall(r"\b[\w-]+(?:\.\d+){2,}", violation)[:2]  # a transaction
    concerned += re.findall(r"\b[\w.]+-\d+(?= \d| )", violation)[:2]
    told, more = [], []
    for number, line in enumerate(outcome.lines):
        text = line[12:]
        if text.startswith("nemesis") or (_EVENTS.search(text) and not text.endswith("boots, number 1")):
            told.append(number)
        elif any(name in text for name in concerned):
            more.append(number)
    room = max(_LINES - len(told), _LINES // 3)
    chosen = sorted({*told[-_LINES:], *more[-room:]})
    return [line for number in chosen for line in outcome.lines[number].splitlines()[:1]]

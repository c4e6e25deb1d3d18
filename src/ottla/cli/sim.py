"""`ottla sim`: run a simulated cluster under faults, from a seed, and check its guarantees.

A run is one process with virtual time: no file or socket is opened. The same seed with the same options is
the same run, so the command that is printed at a failure replays it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Annotated, Final

from ottla.cli.commands import Flags, Option, command
from ottla.cli.errors import CliError, WrongUsage, did_you_mean
from ottla.cli.options import Json
from ottla.cli.output import note, print_json, print_table
from ottla.sim.cluster.coverage import PairCoverage
from ottla.sim.cluster.scenario import FEATURES, ClusterScenario, check_clients, features_named
from ottla.sim.cluster.shrink import Story, shorten, timeline

if TYPE_CHECKING:
    from ottla.sim.cluster.run import ClusterOutcome

HELP: Final = "Run a simulated cluster under faults."

Seed = Annotated[int, Option("--seed", help="The seed of all random choices.")]
# With a planted bug, runs end when it is found; few bugs need more than a dozen of them.
_DEFAULT_NODES: Final = 3
_DEFAULT_MINUTES: Final = 1.0
_PLANTED_SEEDS: Final = 120
_PLANTED_MINUTES: Final = 0.13
_SHRINK_S: Final = 120.0

Seeds = Annotated[
    int | None,
    Option(
        "--seeds",
        min=1,
        help=f"The number of runs, from this seed on; 1, or {_PLANTED_SEEDS} with --plant, by default.",
    ),
]
Nodes = Annotated[
    int | None, Option("--nodes", min=1, max=9, help=f"The number of brokers; {_DEFAULT_NODES} by default.")
]
Minutes = Annotated[
    float | None,
    Option(
        "--minutes",
        min=0.01,
        help=f"The time with faults, in virtual minutes; {_DEFAULT_MINUTES:g}, or {_PLANTED_MINUTES:g} with "
        "--plant, by default.",
    ),
]
Traced = Annotated[bool, Option("--trace", help="Print every event.")]
Listed = Annotated[
    str | None,
    Option(
        "--features",
        metavar="NAMES",
        help="Draw no features, but have these, separated by commas; empty: none.",
    ),
]
Without = Annotated[
    list[str] | None,
    Option("--without", metavar="FEATURE", help="Do not have this feature; may be repeated."),
]
Clients = Annotated[
    str | None, Option("--clients", metavar="NAMES", help="Have these clients, separated by commas.")
]
Coverage = Annotated[
    bool,
    Option("--coverage", help="Count which features met which others, and which faults, and show the holes."),
]
Plant = Annotated[
    str | None,
    Option(
        "--plant",
        metavar="BUG",
        help="Insert a known bug, in a scenario in which it shows, until it is found.",
    ),
]
Drawn = Annotated[
    bool, Option("--drawn", help="With --plant: draw scenarios that have the features of the bug.")
]
Shrink = Annotated[
    float,
    Option(
        "--shrink",
        min=0,
        help="If a guarantee is broken, look for the shortest story of it for so many seconds; 0: do not.",
    ),
]
Drop = Annotated[
    str | None,
    Option("--drop", metavar="NAMES", help="Take drawn features and clients away, separated by commas."),
]
Faults = Annotated[
    str | None,
    Option("--faults", metavar="NUMBERS", help="Inject only these of the drawn faults; 0: the ambushes."),
]
Features = Annotated[bool, Flags({feature.name: feature.what for feature in FEATURES})]


@command(None, "sim")
def app(
    seed: Seed = 1,
    seeds: Seeds = None,
    nodes: Nodes = None,
    minutes: Minutes = None,
    features: Listed = None,
    without: Without = None,
    clients: Clients = None,
    drop: Drop = None,
    faults: Faults = None,
    trace: Traced = False,
    shrink: Shrink = _SHRINK_S,
    coverage: Coverage = False,
    plant: Plant = None,
    drawn: Drawn = False,
    as_json: Json = False,
    **forced: Features,
) -> None:
    """Run a simulated cluster under faults.

    Brokers, controllers and clients of every kind run in one process and in virtual time; processes die,
    disks lose data, links break. The features of the cluster are drawn; a switch for each forces it. Exits
    with 1 and the command that replays the run if a guarantee is broken.
    """
    from ottla.sim.cluster.planted_bugs import CLUSTER_BUGS, cluster_bug_scenario, plant_cluster_bug

    if plant is not None and plant not in CLUSTER_BUGS:
        hint = did_you_mean(plant, CLUSTER_BUGS) or f": there are {', '.join(sorted(CLUSTER_BUGS))}"
        raise WrongUsage(f"--plant {plant}: no such bug{hint}")
    of_bug = ClusterScenario() if plant is None else cluster_bug_scenario(plant)
    if plant is None or drawn:
        base = ClusterScenario(nodes=nodes or _DEFAULT_NODES, forced=of_bug.features or ())
    else:
        base = _with_nodes(of_bug, nodes)
    seeds = seeds or (1 if plant is None else _PLANTED_SEEDS)
    minutes = minutes or (_DEFAULT_MINUTES if plant is None else _PLANTED_MINUTES)
    scenario = replace(
        base,
        features=base.features if features is None else _names(features),
        clients=base.clients if clients is None else _names(clients),
        dropped=() if drop is None else _names(drop),
        faults=None if faults is None else _numbers(faults),
        forced=(*base.forced, *(name.replace("_", "-") for name, given in forced.items() if given)),
        forbidden=tuple(without or ()),
    )
    _check(scenario)
    injected: Counter[str] = Counter()
    pairs = PairCoverage()
    outcomes = []
    story = None
    with plant_cluster_bug(plant):
        for number in range(seed, seed + seeds):
            outcome = _run(number, scenario, minutes * 60, trace=trace and not as_json)
            outcomes.append(outcome)
            injected.update(outcome.coverage)
            pairs.add(outcome.scenario, outcome.coverage)
            if not as_json:
                print(outcome, flush=True)  # at once, also in a pipe
            if outcome.violations:
                if shrink and not as_json:
                    story = _short_story(outcome, scenario, minutes * 60, shrink)
                break
    if as_json:
        document = {"lives": [_facts(each) for each in outcomes], "faults": dict(sorted(injected.items()))}
        print_json(document | ({"pairs": _pairs(pairs)} if coverage else {}))
    elif coverage:
        _print_coverage(pairs)
    elif injected:
        print()
        print_table(["fault", "times"], sorted(injected.items()))
    last = outcomes[-1]
    if last.violations:
        if story is not None:
            _print_story(story)
        elif not trace and not as_json:
            print("\n".join(("", *last.tail)))
        planted = ("" if plant is None else f" --plant {plant}") + (" --drawn" if drawn else "")
        has_nodes = plant is None or drawn or nodes is not None
        replay = _command(last.seed, scenario, minutes * 60, base, has_nodes=has_nodes) + planted
        text = f"a guarantee was broken: {last.violations[0]}\nreplay it: {replay}"
        if story is not None:
            short = _command(last.seed, story.scenario, story.seconds, base, has_nodes=True) + planted
            text += f"\nreplay the short story: {short}"
        raise CliError(text)
    if plant is not None:
        note(f"the bug {plant} was not found in {seeds} {'run' if seeds == 1 else 'runs'}: try more --seeds")


def _check(scenario: ClusterScenario) -> None:
    """Refuse features and clients that do not exist, and features that exclude each other."""
    try:
        check_clients(scenario.clients or ())
        features_named((*(scenario.features or ()), *scenario.forced, *scenario.forbidden))
        replace(scenario, features=scenario.features or ()).draw(Random(0), 0)
    except ValueError as error:
        raise WrongUsage(str(error)) from None


def _command(
    seed: int | str, scenario: ClusterScenario, seconds: float, base: ClusterScenario, *, has_nodes: bool
) -> str:
    """The command that runs this seed; what is in `base` needs no option."""
    text = f"ottla sim --seed {seed}"
    text += f" --nodes {scenario.nodes}" if has_nodes else ""
    text += f" --minutes {seconds / 60:g} --trace"
    text += "".join(f" --{name}" for name in scenario.forced if name not in base.forced)
    text += "".join(f" --without {name}" for name in scenario.forbidden)
    if scenario.features is not None and scenario.features != base.features:
        text += f" --features '{','.join(scenario.features)}'"
    if scenario.clients is not None and scenario.clients != base.clients:
        text += f" --clients '{','.join(scenario.clients)}'"
    if scenario.dropped:
        text += f" --drop {','.join(scenario.dropped)}"
    return text + ("" if scenario.faults is None else f" --faults '{','.join(map(str, scenario.faults))}'")


def _short_story(outcome: ClusterOutcome, scenario: ClusterScenario, seconds: float, limit_s: float) -> Story:
    note(f"a guarantee is broken; looking for a short story of it, for {limit_s:g} s at most")
    end = time.monotonic() + limit_s
    return shorten(
        Story(scenario, seconds, outcome),
        lambda shorter, shorter_s: _run(outcome.seed, shorter, shorter_s, trace=False),
        lambda: time.monotonic() < end,
    )


def _print_story(story: Story) -> None:
    print(f"\nThe shortest story of it that {story.runs} runs found has {story.size()}:\n")
    print("\n".join(timeline(story.outcome)))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in _names(text))
    except ValueError:
        raise WrongUsage(f"--faults {text}: numbers, separated by commas") from None


def _with_nodes(scenario: ClusterScenario, nodes: int | None) -> ClusterScenario:
    """The scenario of a bug with another number of brokers."""
    if nodes is None:
        return scenario
    return replace(scenario, nodes=nodes, min_insync=min(nodes, scenario.min_insync or nodes))


def _run(seed: int | str, scenario: ClusterScenario, seconds: float, *, trace: bool) -> ClusterOutcome:
    from ottla.sim.cluster.run import ClusterRun

    run = ClusterRun(seed, seconds=seconds, scenario=scenario)
    if trace:
        run.world.trace.echo = print
    return run.run()


def _print_coverage(pairs: PairCoverage) -> None:
    holes = pairs.holes()
    print()
    print_table(
        ["feature", "runs by the other feature or the fault"],
        [
            (feature.name, ", ".join(f"{other} {runs}" for other, runs in _partners(pairs, feature.name)))
            for feature in FEATURES
        ],
    )
    print(f"\n{pairs.share:.1%} of all pairs that are possible were met; {len(holes)} were not:")
    for one, other in holes:
        print(f"  {one} and {other}")


def _partners(pairs: PairCoverage, name: str) -> list[tuple[str, int]]:
    return [
        (other if one == name else one, n)
        for (one, other), n in pairs.counts().items()
        if name in (one, other)
    ]


def _pairs(pairs: PairCoverage) -> dict[str, object]:
    counts = [{"pair": list(pair), "runs": runs} for pair, runs in pairs.counts().items()]
    return {"share": round(pairs.share, 4), "counts": counts}


def _facts(outcome: ClusterOutcome) -> dict[str, object]:
    return {
        "seed": outcome.seed,
        "features": list(outcome.scenario.features or ()),
        "violations": outcome.violations,
        "virtual_s": outcome.virtual_s,
        "recovery_s": outcome.recovery_s,
        "node_lives": outcome.boots,
        "elections": outcome.elections,
        "acknowledged": outcome.acknowledged,
        "committed": outcome.committed,
        "read": outcome.read,
        "steps": outcome.steps,
        "fingerprint": outcome.fingerprint,
    }

"""`ottla sim`: run a simulated cluster under faults, from a seed, and check its guarantees.

A run is one process with virtual time: no file or socket is opened. The same seed with the same options is
the same run, so the command that is printed at a failure replays it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

from ottla.cli.commands import Flags, Option, command
from ottla.cli.errors import CliError, WrongUsage, did_you_mean
from ottla.cli.options import Json
from ottla.cli.output import note, print_json, print_table
from ottla.sim.cluster.coverage import PairCoverage
from ottla.sim.cluster.scenario import FEATURES, ClusterScenario, features_named

if TYPE_CHECKING:
    from ottla.sim.cluster.run import ClusterOutcome

HELP: Final = "Run a simulated cluster under faults."

Seed = Annotated[int, Option("--seed", help="The seed of all random choices.")]
# With a planted bug, runs end when it is found; few bugs need more than a dozen of them.
_DEFAULT_NODES: Final = 3
_DEFAULT_MINUTES: Final = 1.0
_PLANTED_SEEDS: Final = 120
_PLANTED_MINUTES: Final = 0.13

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
    bool, Option("--drawn", help="With --plant: draw scenarios as without it, instead of that of the bug.")
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
    trace: Traced = False,
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
    if plant is None or drawn:
        scenario = ClusterScenario(nodes=nodes or _DEFAULT_NODES)
    else:
        scenario = _with_nodes(cluster_bug_scenario(plant), nodes)
    seeds = seeds or (1 if plant is None else _PLANTED_SEEDS)
    minutes = minutes or (_DEFAULT_MINUTES if plant is None else _PLANTED_MINUTES)
    switches = _Switches(features, without or (), clients, [name for name, given in forced.items() if given])
    scenario = switches.apply_to(scenario)
    faults: Counter[str] = Counter()
    pairs = PairCoverage()
    outcomes = []
    with plant_cluster_bug(plant):
        for number in range(seed, seed + seeds):
            outcome = _run(number, scenario, minutes, trace=trace and not as_json)
            outcomes.append(outcome)
            faults.update(outcome.coverage)
            pairs.add(outcome.scenario, outcome.coverage)
            if not as_json:
                print(outcome, flush=True)  # at once, also in a pipe
            if outcome.violations:
                break
    if as_json:
        document = {"lives": [_facts(each) for each in outcomes], "faults": dict(sorted(faults.items()))}
        print_json(document | ({"pairs": _pairs(pairs)} if coverage else {}))
    elif coverage:
        _print_coverage(pairs)
    elif faults:
        print()
        print_table(["fault", "times"], sorted(faults.items()))
    last = outcomes[-1]
    if last.violations:
        if not trace and not as_json:
            print("\n".join(("", *last.tail)))
        replay = f"ottla sim --seed {last.seed}"
        replay += f" --nodes {scenario.nodes}" if plant is None or drawn or nodes is not None else ""
        replay += f" --minutes {minutes:g} --trace{switches}"
        replay += "" if plant is None else f" --plant {plant}"
        replay += " --drawn" if drawn else ""
        raise CliError(f"a guarantee was broken: {last.violations[0]}\nreplay it: {replay}")
    if plant is not None:
        note(f"the bug {plant} was not found in {seeds} {'run' if seeds == 1 else 'runs'}: try more --seeds")


class _Switches:
    """What is asked for of the features and clients; its text has the options that ask for the same."""

    def __init__(
        self, listed: str | None, without: list[str] | tuple[str, ...], clients: str | None, forced: list[str]
    ) -> None:
        self._features = None if listed is None else _names(listed)
        self._without = tuple(without)
        self._clients = None if clients is None else _names(clients)
        self._forced = tuple(name.replace("_", "-") for name in forced)

    def apply_to(self, scenario: ClusterScenario) -> ClusterScenario:
        if self._features is not None:
            scenario = replace(scenario, features=self._features)
        if self._clients is not None:
            scenario = replace(scenario, clients=self._clients)
        try:
            features_named((*(self._features or ()), *self._without))
        except ValueError as error:
            raise WrongUsage(str(error)) from None
        return replace(scenario, forced=self._forced, forbidden=self._without)

    def __str__(self) -> str:
        text = "".join(f" --{name}" for name in self._forced)
        text += "".join(f" --without {name}" for name in self._without)
        text += "" if self._features is None else f" --features '{','.join(self._features)}'"
        return text + ("" if self._clients is None else f" --clients {','.join(self._clients)}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _with_nodes(scenario: ClusterScenario, nodes: int | None) -> ClusterScenario:
    """The scenario of a bug with another number of brokers."""
    if nodes is None:
        return scenario
    return replace(scenario, nodes=nodes, min_insync=min(nodes, scenario.min_insync or nodes))


def _run(seed: int, scenario: ClusterScenario, minutes: float, *, trace: bool) -> ClusterOutcome:
    from ottla.sim.cluster.run import ClusterRun

    try:
        run = ClusterRun(seed, seconds=minutes * 60, scenario=scenario)
    except ValueError as error:  # features that exclude each other
        raise WrongUsage(str(error)) from None
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

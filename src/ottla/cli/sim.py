"""`ottla sim`: run a simulated cluster under faults, from a seed, and check its guarantees.

A run is one process with virtual time: no file or socket is opened. The same seed with the same options is
the same run, so the command that is printed at a failure replays it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

from ottla.cli.commands import Option, command
from ottla.cli.errors import CliError, WrongUsage, did_you_mean
from ottla.cli.options import Json
from ottla.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from ottla.sim.cluster.run import ClusterOutcome
    from ottla.sim.cluster.scenario import ClusterScenario

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
Secured = Annotated[bool, Option("--secured", help="Ask all clients for a login, and change ACLs meanwhile.")]
ShareGroups = Annotated[bool, Option("--share-groups", help="Have a share group whose members lose locks.")]
OnZooKeeper = Annotated[
    bool, Option("--zookeeper", help="Legacy: keep the metadata in ZooKeeper, and inject its faults.")
]
Tiered = Annotated[bool, Option("--tiered", help="Have topics whose segments go to an object store.")]
Plant = Annotated[
    str | None,
    Option(
        "--plant",
        metavar="BUG",
        help="Insert a known bug, in a scenario in which it shows, until it is found.",
    ),
]


@command(None, "sim")
def app(
    seed: Seed = 1,
    seeds: Seeds = None,
    nodes: Nodes = None,
    minutes: Minutes = None,
    trace: Traced = False,
    secured: Secured = False,
    share_groups: ShareGroups = False,
    zookeeper: OnZooKeeper = False,
    tiered: Tiered = False,
    plant: Plant = None,
    as_json: Json = False,
) -> None:
    """Run a simulated cluster under faults.

    Brokers, controllers and clients of every kind run in one process and in virtual time; processes die,
    disks lose data, links break. Exits with 1 and the command that replays the run if a guarantee is broken.
    """
    from ottla.sim.cluster.planted_bugs import CLUSTER_BUGS, cluster_bug_scenario, plant_cluster_bug
    from ottla.sim.cluster.scenario import ClusterScenario

    if plant is not None and plant not in CLUSTER_BUGS:
        hint = did_you_mean(plant, CLUSTER_BUGS) or f": there are {', '.join(sorted(CLUSTER_BUGS))}"
        raise WrongUsage(f"--plant {plant}: no such bug{hint}")
    if plant is None:
        scenario = ClusterScenario(nodes=nodes or _DEFAULT_NODES)
        seeds, minutes = seeds or 1, minutes or _DEFAULT_MINUTES
    else:
        scenario = _with_nodes(cluster_bug_scenario(plant), nodes)
        seeds, minutes = seeds or _PLANTED_SEEDS, minutes or _PLANTED_MINUTES
    scenario = replace(
        scenario,
        secured=secured or scenario.secured,
        share_groups=share_groups or scenario.share_groups,
        zookeeper=zookeeper or scenario.zookeeper,
        tiered=tiered or scenario.tiered,
    )
    coverage: Counter[str] = Counter()
    outcomes = []
    with plant_cluster_bug(plant):
        for number in range(seed, seed + seeds):
            outcome = _run(number, scenario, minutes, trace=trace and not as_json)
            outcomes.append(outcome)
            coverage.update(outcome.coverage)
            if not as_json:
                print(outcome, flush=True)  # at once, also in a pipe
            if outcome.violations:
                break
    if as_json:
        print_json({"lives": [_facts(each) for each in outcomes], "faults": dict(sorted(coverage.items()))})
    elif coverage:
        print()
        print_table(["fault", "times"], sorted(coverage.items()))
    last = outcomes[-1]
    if last.violations:
        if not trace and not as_json:
            print("\n".join(("", *last.tail)))
        replay = f"ottla sim --seed {last.seed}"
        replay += f" --nodes {scenario.nodes}" if plant is None or nodes is not None else ""
        replay += f" --minutes {minutes:g} --trace"
        more = (" --secured" if secured else "") + (" --share-groups" if share_groups else "")
        more += " --zookeeper" if zookeeper else ""
        more += " --tiered" if tiered else ""
        more += "" if plant is None else f" --plant {plant}"
        raise CliError(f"a guarantee was broken: {last.violations[0]}\nreplay it: {replay}{more}")
    if plant is not None:
        note(f"the bug {plant} was not found in {seeds} {'run' if seeds == 1 else 'runs'}: try more --seeds")


def _with_nodes(scenario: ClusterScenario, nodes: int | None) -> ClusterScenario:
    """The scenario of a bug with another number of brokers."""
    if nodes is None:
        return scenario
    return replace(scenario, nodes=nodes, min_insync=min(nodes, scenario.min_insync or nodes))


def _run(seed: int, scenario: ClusterScenario, minutes: float, *, trace: bool) -> ClusterOutcome:
    from ottla.sim.cluster.run import ClusterRun

    run = ClusterRun(seed, seconds=minutes * 60, scenario=scenario)
    if trace:
        run.world.trace.echo = print
    return run.run()


def _facts(outcome: ClusterOutcome) -> dict[str, object]:
    return {
        "seed": outcome.seed,
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

"""`python -m ottla.sim quorum --seed 7 --trace`: run the simulator with one seed, or with many."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import click

from ottla.sim.cluster.run import ClusterRun
from ottla.sim.cluster.scenario import MANY_PARTITIONS, ClusterScenario
from ottla.sim.node_run import NodeRun
from ottla.sim.quorum.planted_bugs import QUORUM_BUGS, plant_quorum_bug
from ottla.sim.quorum.run import QuorumRun


@click.group()
def main() -> None:
    """Run a simulated cluster, from one seed each."""


@main.command()
@click.option("--seed", type=int, required=True, help="The first seed.")
@click.option("--seeds", type=int, default=1, show_default=True, help="How many seeds, one after the other.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Virtual seconds of faults.")
@click.option("--trace", is_flag=True, help="Show what happens, line by line.")
@click.option(
    "--plant", type=click.Choice(sorted(QUORUM_BUGS)), help="Put a bug in, to see whether it is found."
)
def quorum(seed: int, seeds: int, seconds: float, trace: bool, plant: str | None) -> None:
    """A quorum of controllers: crashes, partitions, changes of voters."""
    with plant_quorum_bug(plant):
        _run(QuorumRun, seed, seeds, seconds, trace, f" --plant {plant}" if plant else "")


@main.command()
@click.option("--seed", type=int, required=True, help="The first seed.")
@click.option("--seeds", type=int, default=1, show_default=True, help="How many seeds, one after the other.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Virtual seconds of faults.")
@click.option("--trace", is_flag=True, help="Show what happens, line by line.")
def node(seed: int, seeds: int, seconds: float, trace: bool) -> None:
    """A single node with producers and a consumer: crashes, power loss, slow disks."""
    _run(NodeRun, seed, seeds, seconds, trace, "")


@main.command()
@click.option("--seed", type=int, required=True, help="The first seed.")
@click.option("--seeds", type=int, default=1, show_default=True, help="How many seeds, one after the other.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Virtual seconds of faults.")
@click.option("--nodes", type=int, help="How many brokers; drawn from the seed if not given.")
@click.option("--many-partitions", is_flag=True, help="Run many partitions on bad disks.")
@click.option("--features", metavar="NAMES", help="Draw no features, but have these, separated by commas.")
@click.option("--without", metavar="FEATURE", multiple=True, help="Do not have this feature.")
@click.option("--with", "forced", metavar="FEATURE", multiple=True, help="Have this feature.")
@click.option("--trace", is_flag=True, help="Show what happens, line by line.")
def cluster(
    seed: int,
    seeds: int,
    seconds: float,
    nodes: int | None,
    many_partitions: bool,
    features: str | None,
    without: tuple[str, ...],
    forced: tuple[str, ...],
    trace: bool,
) -> None:
    """A whole cluster with clients of every kind."""
    scenario = MANY_PARTITIONS if many_partitions else ClusterScenario(nodes=nodes)
    scenario = replace(scenario, forced=forced, forbidden=without)
    if features is not None:
        scenario = replace(scenario, features=tuple(filter(None, features.split(","))))
    more = "" if nodes is None else f" --nodes {nodes}"
    more += " --many-partitions" if many_partitions else ""
    more += "" if features is None else f" --features '{features}'"
    more += "".join(f" --without {name}" for name in without)
    more += "".join(f" --with {name}" for name in forced)
    _run(partial(ClusterRun, scenario=scenario), seed, seeds, seconds, trace, more)


def _run(
    kind: Callable[..., QuorumRun | NodeRun | ClusterRun],
    seed: int,
    seeds: int,
    seconds: float,
    trace: bool,
    more: str,
) -> None:
    coverage: Counter[str] = Counter()
    for number in range(seed, seed + seeds):
        run = kind(number, seconds=seconds)
        if trace:
            run.world.trace.echo = click.echo
        outcome = run.run()
        coverage.update(outcome.coverage)
        click.echo(str(outcome))
        if outcome.violations:
            if not trace:
                click.echo("\n".join(outcome.tail))
            click.echo(f"VIOLATION: {outcome.violations[0]}")
            click.echo(f"replay: {outcome.command} --seconds {seconds:g}{more}")
            sys.exit(1)
    for fault, count in sorted(coverage.items()):
        click.echo(f"  {fault}: {count}")


if __name__ == "__main__":
    main()

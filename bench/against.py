"""Compare this checkout with another one of Ottla in interleaved rounds: what a change costs or gains.

Parts that measure a broker beside Apache Kafka run with a broker of the other checkout in Kafka's place. The
others measure code in their own process, so they run as processes of either checkout in turns.
"""

import os
import statistics
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from bench.harness import show

BESIDE_A_BROKER = frozenset(("node", "requests", "latency", "scale", "restart", "coordinators", "cluster"))
LESS_IS_BETTER = frozenset(("s", "ms", "MB", "s per million", "% of a core"))
ROUNDS = 3
PART_SECONDS = 3600


def compare_checkouts(modules: dict[str, str], other: str) -> None:
    for part, module in modules.items():
        print(f"{part} …", flush=True)
        if part in BESIDE_A_BROKER:
            show(import_module(module).rows())
        else:
            _in_turns(module, Path(other).resolve())


def _in_turns(module: str, other: Path) -> None:
    here = Path(__file__).parents[1]
    figures: dict[tuple[str, str], dict[Path, list[float]]] = {}
    for turn in range(ROUNDS):
        for checkout in (here, other) if turn % 2 == 0 else (other, here):
            for key, value in _measured(module, checkout).items():
                figures.setdefault(key, {here: [], other: []})[checkout].append(value)
    for (name, unit), by_checkout in figures.items():
        if not all(by_checkout.values()):
            print(f"{name}: measured in one checkout only")
            continue
        ours, theirs = (statistics.median(by_checkout[checkout]) for checkout in (here, other))
        ratio = theirs / ours if unit in LESS_IS_BETTER else ours / theirs
        print(f"{name} | {ours:,.4g} | {theirs:,.4g} | {unit} | {ratio:.2f}", flush=True)


def _measured(module: str, checkout: Path) -> dict[tuple[str, str], float]:
    """Run one part as a process of a checkout; its figures by name and unit."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    environment.pop("BENCH_AGAINST", None)
    program = f"from bench.harness import show; from {module} import rows; show(rows())"
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command,
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PART_SECONDS,
    )
    found: dict[tuple[str, str], float] = {}
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) >= 4:
            try:
                found[cells[0] + f" ({cells[4]})", cells[3]] = float(cells[1].replace(",", ""))
            except (ValueError, IndexError):
                continue
    return found

"""Run tests again and again while their processes are tormented, and show each test that ever failed.

`make steady TESTS="tests/cluster" RUNS=20 SEED=1` runs what `make test` runs of `tests/cluster` twenty
times, as `make test` does. Meanwhile random processes of the run, workers, nodes, JVMs, pytest itself,
stand still for up to five seconds, alone or all at once; the run has a single core for as long; all cores
are busy with something else; a big file is written and synced where tests keep theirs. A test whose result
depends on the code alone passes.

Options for pytest follow `--`. All that is written is in `build/steady`: the output of each round, what was
done to it and when, and the failures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from tests.support import limits
from tests.support.steady import plugin
from tests.support.steady.processes import RUN_VARIABLE, guarded
from tests.support.steady.torments import INTENSITIES, Tormentor
from tests.support.tiers import WITNESSES

ROOT = Path(__file__).resolve().parents[3]
# As `make test`, whose limits are for runs without pauses.
PYTEST_OPTIONS = ("--dist", "loadscope", "-m", WITNESSES)
TIMEOUT_SECONDS = 900
ROUND_MINUTES = 120
# How long the tool takes at most to see that it was asked to end.
LOOK_SECONDS = 0.2
# After the limit of a round, by which pytest ends itself and says why.
GRACE_SECONDS = 2 * limits.LEAVE_SECONDS + 60
TAIL_LINES = 60
NO_TESTS = 5


@dataclass(slots=True)
class Failure:
    round: int
    when: str
    worker: str
    text: str


@dataclass(slots=True)
class Round:
    number: int
    directory: Path
    status: int | None = None
    seconds: float = 0.0
    tests: set[str] = field(default_factory=set)
    failures: dict[str, list[Failure]] = field(default_factory=dict)
    torments: Counter[str] = field(default_factory=Counter)
    # The commands of processes that were still there when pytest had ended.
    left: list[str] = field(default_factory=list)


class AskedToEnd:
    """Signals that ask the tool to end; what it has paused and started must not outlive it."""

    def __init__(self) -> None:
        self.number: int | None = None

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = number


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    directory = options.out / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-seed-{seed}"
    directory.mkdir(parents=True)
    print(f"seed {seed}, {options.runs} rounds, in {directory}", flush=True)
    rounds: list[Round] = []
    asked = AskedToEnd()
    with asked.listen():
        for number in range(options.first, options.first + options.runs):
            rounds.append(_run(number, directory, seed, options, asked))
            print(_line(rounds[-1]), flush=True)
            if asked.number is not None:
                break
    report = _report(rounds, seed)
    (directory / "report.txt").write_text(report)
    print(report)
    if asked.number is not None:
        return 128 + asked.number
    return 1 if any(each.failures for each in rounds) else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    split = list(arguments).index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        "python -m tests.support.steady",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tests", nargs="*", help="files, directories, tests (default: all of `make test`)")
    parser.add_argument("--runs", type=int, default=5, help="how many rounds (default: %(default)s)")
    parser.add_argument("--count", type=int, default=1, help="how often each test runs in a round")
    parser.add_argument("--seed", type=int, help="repeats the choices of torments (default: a random one)")
    parser.add_argument("--first", type=int, default=1, help="number of the first round, to repeat one")
    parser.add_argument("--workers", type=int, default=4, help="of pytest (default: %(default)s)")
    parser.add_argument("--intensity", choices=INTENSITIES, default="medium")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds for a test, with pauses (%(default)s)"
    )
    parser.add_argument(
        "--round-minutes", type=float, default=ROUND_MINUTES, help="limit of a round (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "steady", help="where to write")
    options = parser.parse_args(list(arguments)[:split])
    options.out = options.out.resolve()
    options.pytest = list(arguments)[split + 1 :]
    return options


def _run(number: int, directory: Path, seed: int, options: argparse.Namespace, asked: AskedToEnd) -> Round:
    run = Round(number, directory / f"round-{number}")
    run.directory.mkdir()
    limit = options.round_minutes * 60
    command = [
        *(sys.executable, "-m", "pytest", "-n", str(options.workers), *PYTEST_OPTIONS),
        *("-p", plugin.__name__, f"--steady-repeats={options.count}", f"--steady-run-seconds={limit}"),
        *(f"--timeout={options.timeout}", *options.pytest, *options.tests),
    ]
    began = time.monotonic()
    with (run.directory / "output.txt").open("wb") as output:
        pytest = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, RUN_VARIABLE: str(run.directory)},
            start_new_session=True,  # Ctrl-C is for the tool
        )
    first = psutil.Process(pytest.pid)
    with guarded(first, str(run.directory)):
        tormentor = Tormentor(run.directory, first, f"{seed}/{number}", INTENSITIES[options.intensity])
        try:
            while asked.number is None and time.monotonic() - began < limit + GRACE_SECONDS:
                try:
                    run.status = pytest.wait(min(LOOK_SECONDS, tormentor.step()))
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            tormentor.end()
            run.left = tormentor.processes.end()
            pytest.wait()
    run.seconds = time.monotonic() - began
    run.torments = tormentor.counts
    _read(run, asked.number is not None)
    return run


def _read(run: Round, is_cut_short: bool) -> None:
    """What the round has reported; a run that failed without a failed test failed as a whole."""
    reports = run.directory / plugin.REPORTS
    for line in reports.read_text().splitlines() if reports.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):  # the last one, of a run that was killed
            report = json.loads(line)
            test = plugin.without_repeat(report["test"])
            if report["kind"] == "ran":
                run.tests.add(test)
            else:
                failure = Failure(run.number, report["when"], report["worker"], report["text"])
                run.failures.setdefault(test, []).append(failure)
    if run.status != 0 and not run.failures and not is_cut_short:
        why = "there is no such test" if run.status == NO_TESTS else f"status {run.status}"
        output = (run.directory / "output.txt").read_text(errors="replace").splitlines()
        text = "\n".join([f"pytest ended: {why}", *output[-TAIL_LINES:]])
        run.failures["the run itself"] = [Failure(run.number, "run", "", text)]


def _line(run: Round) -> str:
    torments = sum(run.torments.values())
    failed = f", failed: {', '.join(run.failures)}" if run.failures else ""
    return f"round {run.number}: {len(run.tests)} tests, {run.seconds:.0f} s, {torments} torments{failed}"


def _report(rounds: Sequence[Round], seed: int) -> str:
    torments: Counter[str] = sum((each.torments for each in rounds), Counter())
    done = ", ".join(f"{count} × {name}" for name, count in torments.most_common()) or "none"
    seconds = sum(each.seconds for each in rounds)
    tests: set[str] = set().union(*(each.tests for each in rounds))
    failures: dict[str, list[Failure]] = defaultdict(list)
    for each in rounds:
        for test, found in each.failures.items():
            failures[test] += found
    lines = [
        "",
        f"{len(rounds)} rounds of {len(tests)} tests in {seconds:.0f} s, seed {seed}; torments: {done}",
        *(
            f"round {each.number} left a process behind: {command[:200]}"
            for each in rounds
            if each.status is not None
            for command in each.left
        ),
    ]
    for test, found in failures.items():
        numbers = sorted({one.round for one in found})
        in_rounds = f"in {len(numbers)} of {len(rounds)} rounds: {', '.join(map(str, numbers))}"
        lines += ["", "=" * 100, f"{test} failed {in_rounds}"]
        if "::" in test:
            again = f'make steady TESTS="{test}" RUNS=20 SEED={seed}'
            lines += [f"again: {again}"]
        for one in found:
            lines += [f"---- round {one.round}, {one.when} {one.worker}".rstrip(), one.text]
    lines += ["", f"{len(failures)} failed at least once" if failures else "all were steady"]
    if rounds[-1].status is None:
        lines[-1] += "; the last round was cut short"
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""Run a pipeline in a process of its own, and kill that with all its children at a point of the sink.

The process has its own Spark, so that nothing survives: no JVM that could abort what its tasks have written,
no worker that could finish. `python -m ottla.spark.pipelines.testing.killed_run` is that process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ottla.spark.pipelines.project import CHECKPOINTS, load_project
from ottla.spark.pipelines.runner import RunFailed
from ottla.spark.pipelines.testing.stop_points import (
    StopPoint,
    armed_file,
    stopped_processes,
    stopping_environment,
)
from ottla.spark.pipelines.testing.warm_run import CaseDirectories, WarmSession
from ottla.spark.session import connect_session

RUN_SECONDS: Final = 900.0
END_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Kill:
    """A point of the sink's protocol in one flow."""

    flow: str
    point: StopPoint

    def __str__(self) -> str:
        return f"killed at {self.point.value} of {self.flow}"


def flows_into_sinks(directories: CaseDirectories) -> list[str]:
    """The flows that have written into a sink: their checkpoints are not below the name of a catalog."""
    offsets = (directories.storage / CHECKPOINTS).glob("*/*/*/offsets")
    return sorted({file.parts[-3] for file in offsets if file.parts[-2].isdecimal()})


def run_and_kill(
    spec: Path,
    directories: CaseDirectories,
    configuration: Mapping[str, str],
    master: str,
    conf: Mapping[str, str],
    kill: Kill,
    log: IO[str] | None,
) -> bool:
    """Run the pipeline once, and kill it at the point; False if it was done without reaching the point.

    Raises RunFailed if the run fails by itself.
    """
    stops = directories.root / "stops"
    stops.mkdir(exist_ok=True)
    armed_file(stops, kill.point, kill.flow).touch()
    request = directories.root / "run.json"
    request.write_text(
        json.dumps(
            {
                "spec": str(spec),
                "root": str(directories.root),
                "configuration": dict(configuration),
                "master": master,
                "conf": dict(conf),
            }
        )
    )
    errors = directories.root / "run.err"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(request)],
            env=stopping_environment(_environment(), stops, directories.root / "modules"),
            stdin=subprocess.DEVNULL,
            stdout=log or subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + RUN_SECONDS
        while process.poll() is None and not stopped_processes(stops):
            if time.monotonic() > deadline:
                raise RunFailed(f"the run was not done within {RUN_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
    finally:
        _kill_family(process.pid)
        process.wait()
    killed = bool(stopped_processes(stops))
    for file in stops.iterdir():
        file.unlink()
    if not killed and process.returncode:
        lines = errors.read_text().strip().splitlines()
        raise RunFailed(lines[-1] if lines else f"the run ended with status {process.returncode}")
    return killed


def _environment() -> dict[str, str]:
    """The environment of this process, without what it has set for its own session of Spark Connect."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SPARK_CONNECT_")}


def _kill_family(pid: int) -> None:
    """Kill a process with all that descend from it, parents first: none of them sees the end of a child."""
    family = [pid, *_descendants(pid)]
    for each in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while set(family[1:]) & _alive().keys() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _descendants(pid: int) -> list[int]:
    """The processes below this one, parents first."""
    alive = _alive()
    found: list[int] = []
    level = {pid}
    while level:
        level = {child for child, parent in alive.items() if parent in level}
        found += sorted(level)
    return found


def _alive() -> dict[int, int]:
    """The parents of all processes that have not ended."""
    command = ["ps", "-A", "-o", "pid=,ppid=,state="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid): int(parent) for pid, parent, state, *_ in rows if not state.startswith("Z")}


def main(request_file: str) -> None:
    """Run the pipeline that the file describes."""
    request = json.loads(Path(request_file).read_text())
    project = load_project(Path(request["spec"]))
    with connect_session(
        request["master"], name=project.name, conf=request["conf"], log=sys.stdout, short=True
    ) as (spark, context):
        session = WarmSession(spark, context, sys.stdout)
        try:
            session.run(project, CaseDirectories(Path(request["root"])), request["configuration"])
        except RunFailed as error:
            raise SystemExit(str(error)) from None  # Python prints it on stderr


if __name__ == "__main__":
    main(sys.argv[1])

"""Instances of a Kafka Streams application, started and stopped by tests (`StreamsInstances.java`)."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import java, kafka_libs
from tests.support.waiting import wait_until

SOURCE = Path(java.__file__).parent / "java" / "StreamsInstances.java"
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Instance:
    """What an instance has; its state and its tasks since `at_ms`."""

    at_ms: int
    state: str
    active: frozenset[str] = frozenset()
    standby: frozenset[str] = frozenset()
    endpoints: str = ""
    """By port: the number of its active and of its standby partitions, as the instance knows them."""


class StreamsInstances:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.now: dict[str, Instance] = {}
        self.started_ms: dict[str, int] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Kill the JVM."""
        java.kill_process(self._process)
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at_ms, name, state, *rest = line.decode().rstrip("\n").split(" ")
            if state == "starts":
                self.started_ms[name] = int(at_ms)
                continue
            found = dict(zip(rest[::2], rest[1::2], strict=True))
            active, standby = _tasks(found["active"]), _tasks(found["standby"])
            before = self.now.get(name)
            if before is not None and (before.state, before.active, before.standby) == (
                state,
                active,
                standby,
            ):
                at_ms = str(before.at_ms)
            self.now[name] = Instance(int(at_ms), state, active, standby, found["endpoints"])

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()

    def start(self, name: str, *, threads: int = 1, port: int = 1) -> None:
        self._send(f"start {name} {threads} {port}")

    def stop(self, name: str) -> None:
        """Have an instance leave the group and end."""
        self._send(f"stop {name}")
        self.wait(lambda: self.state(name) == "NOT_RUNNING", f"{name} has not ended")

    def add_thread(self, name: str) -> None:
        self._send(f"threads {name}")

    def state(self, name: str) -> str:
        return self.now[name].state if name in self.now else ""

    def active(self, *names: str) -> list[int]:
        """How many active tasks each of these has; none twice."""
        held = [self.now[name].active if name in self.now else frozenset() for name in names]
        return [len(each) for each in held] if len(frozenset().union(*held)) == sum(map(len, held)) else []

    def standby(self, *names: str) -> list[int]:
        return [len(self.now[name].standby) if name in self.now else 0 for name in names]

    def wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        try:
            wait_until(condition, otherwise, DEADLINE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.now}\n{self._log.read_text()[-6_000:]}") from None

    def settled_ms(self, tasks: int, *names: str) -> int:
        """Wait until these run all tasks, each as many; the time from the start of the first until then."""
        share = [tasks // len(names)] * len(names)
        self.wait(
            lambda: self.active(*names) == share and all(self.state(name) == "RUNNING" for name in names),
            f"not settled: {share}",
        )
        return max(self.now[name].at_ms for name in names) - min(self.started_ms[name] for name in names)


def _tasks(names: str) -> frozenset[str]:
    return frozenset(name for name in names.split(",") if name)


@contextlib.contextmanager
def streams_instances(bootstrap: str, directory: Path, group: str, topic: str) -> Iterator[StreamsInstances]:
    log = directory / "streams-instances.log"
    arguments = [bootstrap, str(directory / "streams-state"), group, topic]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            java.command(SOURCE, arguments, bundle=kafka_libs.STREAMS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=java.die_with_parent(),
        )
    instances = StreamsInstances(process, log)
    try:
        yield instances
    finally:
        instances.close()

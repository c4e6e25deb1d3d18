"""Java programs run by tests: one-shot tools, long-lived processes, and their end.

Every process started here ends with the test run: each leads its own process group, gets a signal from the
kernel to die with its parent (Linux), and is stopped by the context manager that started it. Output goes to
files or strings, never to a pipe that is not read.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import java_startup, kafka_libs
from tests.support.kafka_libs import Bundle

# Fast to start and small: tests wait for start-up far more than for peak throughput. The last one brings the
# archive of classes.
LIGHT_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
TOOL_TIMEOUT_S = CALL_TIMEOUT_S = 240.0
CLIENT_TIMEOUT_MS = 60_000
# The default is five seconds; a coordinator may take longer to be there.
IMPATIENT_TOOLS = (
    "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "org.apache.kafka.tools.streams.StreamsGroupCommand",
)
# They do a part of their work when their JVM ends.
ENDING_TOOLS = "org.apache.kafka.tools.Verifiable"
END_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ToolResult:
    exit_code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def checked(self, main: str, args: Sequence[str]) -> Self:
        """The result of a tool that must have ended well."""
        if self.exit_code != 0:
            raise AssertionError(
                f"{main} {' '.join(args)} exited with {self.exit_code}:\n{self.text[-8000:]}"
            )
        return self


def command(
    main: str | Path, args: Sequence[str], *, bundle: Bundle, jvm: Sequence[str] = LIGHT_JVM
) -> list[str]:
    """The command line that runs a class of `bundle`, or a single source file against its jars."""
    classpath = kafka_libs.classpath(bundle)
    if (source := Path(main)).suffix == ".java":
        main, classpath = source.stem, f"{classpath}{os.pathsep}{java_startup.program(source, bundle)}"
    archive = java_startup.archive_options(bundle) if LIGHT_JVM[-1] in jvm else []
    return [kafka_libs.java(), *jvm, *archive, "-cp", classpath, str(main), *args]


class JavaDriverError(AssertionError):
    """A command failed in Java; `kind` is the exception's simple class name."""

    def __init__(self, kind: str, trace: str) -> None:
        super().__init__(trace)
        self.kind = kind


class ResidentJvm:
    """A process that runs a Java source file and speaks lines of JSON; a context manager."""

    def __init__(
        self, source: Path, bundle: Bundle = kafka_libs.BROKER, jvm: Sequence[str] = LIGHT_JVM
    ) -> None:
        self._command = command(source, [], bundle=bundle, jvm=jvm)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._names = itertools.count(1)

    def __enter__(self) -> Self:
        self.start(die_with_parent())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill_process(process)
        process.stdout.close()
        self._errors.close()

    def start(self, preexec: Callable[[], None] | None = None) -> None:
        """Start the process, which ends with its input at the latest."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            preexec_fn=preexec,
        )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def call(self, do: str, *, within_s: float = CALL_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
        """Sends one command and returns its answer. A process that has none in time is killed."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        process.stdin.flush()
        answers = select.poll()  # `select` knows no files above 1023, of which a process with nodes has many
        answers.register(process.stdout, select.POLLIN)
        if not answers.poll(within_s * 1000):
            self.kill()
            raise JavaDriverError(
                "TimedOut", f"{do} {arguments} had no answer in {within_s} s:\n{self.errors()}"
            )
        line = process.stdout.readline()
        if not line:
            raise JavaDriverError("Ended", self.errors())
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise JavaDriverError(answer["failed"], answer["trace"])
        return answer

    def errors(self) -> str:
        """The end of what the process wrote to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-8000:]

    def kill(self) -> None:
        """End all clients at once, without a word to the broker."""
        assert self._process is not None
        kill_process(self._process)


class ToolJvm(ResidentJvm):
    """`java/Driver.java`, which runs command-line tools one after the other."""

    def __init__(self, bundle: Bundle = kafka_libs.BROKER) -> None:
        super().__init__(java_startup.DRIVER, bundle)

    def tool(self, main: str, *args: str, check: bool = True, within_s: float = CALL_TIMEOUT_S) -> ToolResult:
        """Runs the `main` of a command-line tool inside the JVM."""
        if main in IMPATIENT_TOOLS:
            args += ("--timeout", str(CLIENT_TIMEOUT_MS))
        answer = self.call("tool", main=main, args=list(args), within_s=within_s)
        result = ToolResult(answer["exit"], answer["out"], answer["err"])
        return result.checked(main, args) if check else result


_TOOLS_IN_TURN = threading.Lock()


@cache
def _tools() -> ToolJvm:
    """The JVM of `run_tool`. It may be started by a thread that ends before it, so it ends with its input."""
    return ToolJvm()


def run_tool(
    main: str,
    *args: str,
    bundle: Bundle = kafka_libs.BROKER,
    stdin: str = "",
    timeout_s: float = TOOL_TIMEOUT_S,
    check: bool = True,
    jvm: Sequence[str] = LIGHT_JVM,
) -> ToolResult:
    """Runs one of Apache Kafka's command-line tools, in a JVM that the process keeps for them.

    A tool that reads its input, needs other options or runs beside another one gets a JVM of its own. With
    `check`, an exit code other than zero fails the test with what the tool printed.
    """
    needs_its_own = stdin or bundle != kafka_libs.BROKER or jvm != LIGHT_JVM or main.endswith(".java")
    if not needs_its_own and not main.startswith(ENDING_TOOLS) and _TOOLS_IN_TURN.acquire(blocking=False):
        try:
            tools = _tools()
            if not tools.running:
                tools.start()
                atexit.register(tools.close)
            return tools.tool(main, *args, check=check, within_s=timeout_s)
        finally:
            _TOOLS_IN_TURN.release()
    done = subprocess.run(
        command(main, args, bundle=bundle, jvm=jvm),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    result = ToolResult(done.returncode, done.stdout, done.stderr)
    return result.checked(main, args) if check else result


def die_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` after which the kernel kills the child when its parent dies, where the kernel can."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    set_parent_death_signal = 1

    def arm() -> None:
        libc.prctl(set_parent_death_signal, signal.SIGKILL)

    return arm


def end_process(process: subprocess.Popen[bytes], *, timeout_s: float) -> None:
    """Asks a process group we started to end, and kills it if it has not after `timeout_s`."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            kill_process(process)


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """Kills a process group we started, at once, and reaps its leader."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()

"""Java programs run by tests: one-shot tools, long-lived processes, and their end.

Every process started here ends with the test run: each leads its own process group, gets a signal from the
kernel to die with its parent (Linux), and is stopped by the context manager that started it. Output goes to
files or strings, never to a pipe that is not read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import java_startup, kafka_libs
from tests.support.kafka_libs import Bundle

# Fast to start and small: tests wait for start-up far more than for peak throughput. The last one brings the
# archive of classes.
LIGHT_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
TOOL_TIMEOUT_S = 240


@dataclass(frozen=True, slots=True)
class ToolResult:
    exit_code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def command(
    main: str | Path, args: Sequence[str], *, bundle: Bundle, jvm: Sequence[str] = LIGHT_JVM
) -> list[str]:
    """The command line that runs a class of `bundle`, or a single source file against its jars."""
    classpath = kafka_libs.classpath(bundle)
    if (source := Path(main)).suffix == ".java":
        main, classpath = source.stem, f"{classpath}{os.pathsep}{java_startup.program(source, bundle)}"
    archive = java_startup.archive_options(bundle) if LIGHT_JVM[-1] in jvm else []
    return [kafka_libs.java(), *jvm, *archive, "-cp", classpath, str(main), *args]


def run_tool(
    main: str,
    *args: str,
    bundle: Bundle = kafka_libs.BROKER,
    stdin: str = "",
    timeout_s: float = TOOL_TIMEOUT_S,
    check: bool = True,
    jvm: Sequence[str] = LIGHT_JVM,
) -> ToolResult:
    """Runs one of Apache Kafka's command-line tools in a JVM of its own.

    With `check`, an exit code other than zero fails the test with what the tool printed.
    """
    done = subprocess.run(
        command(main, args, bundle=bundle, jvm=jvm),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    result = ToolResult(done.returncode, done.stdout, done.stderr)
    if check and result.exit_code != 0:
        raise AssertionError(
            f"{main} {' '.join(args)} exited with {result.exit_code}:\n{result.text[-8000:]}"
        )
    return result


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

"""Apache Kafka's own record classes as an oracle: a JVM that answers questions about batches by line."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import java, kafka_libs

SOURCE = Path(__file__).parent / "java" / "RecordsOracle.java"
END_TIMEOUT_S = 10.0


class RecordsOracle:
    """`ask` sends one question and waits for its answer; bytes travel as base64."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, op: str, **values: Any) -> dict[str, Any]:
        question = {"op": op} | {name: encoded(value) for name, value in values.items()}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the oracle ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def encoded(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, (list, tuple)):
        return [encoded(each) for each in value]
    if isinstance(value, dict):
        return {name: encoded(each) for name, each in value.items()}
    return value


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@contextmanager
def records_oracle() -> Iterator[RecordsOracle]:
    process = subprocess.Popen(
        java.command(SOURCE, (), bundle=kafka_libs.BROKER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=java.die_with_parent(),
    )
    try:
        yield RecordsOracle(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        java.end_process(process, timeout_s=END_TIMEOUT_S)
        process.stdout.close()

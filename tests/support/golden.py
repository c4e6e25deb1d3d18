"""Make the golden data directory of a release: `python -m tests.support.golden DIRECTORY`, by that release.

`tests/golden/VERSION.tar.xz` is a data directory that the node of a release has left, with one of each thing
that a node keeps in files; `VERSION.json` says what the commands of that release read. The present code opens
all of them in `tests/acceptance/test_golden.py`. They are made once, when a release is, and never again: run
this with `PYTHONPATH` at the sources of the release.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

import ottla
from ottla import blocking
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine
from tests.support.spark_sink_harness import Query, await_markers

GOLDEN: Final = Path(__file__).parents[1] / "golden"
SETTINGS: Final = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "log.retention.ms": -1,
    "log.cleaner.enable": False,
}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SINK_TOPIC: Final = "sink"
SINK_QUERY: Final = "golden"


def fill(node: LocalNode, line: CommandLine, password: Path) -> None:
    """Have a node keep one of each thing that lies in files."""
    servers = node.bootstrap_servers
    for codec in CODECS:
        line.ok(
            "topics", "create", f"plain-{codec}", "--partitions", "2", "--config", "segment.bytes=1048576"
        )
    line.ok("topics", "create", "latest", "--partitions", "1", "--config", "cleanup.policy=compact")
    line.ok("topics", "create", "sums", SINK_TOPIC, "gone", "--partitions", "1")
    line.ok("topics", "delete", "gone", "--yes")
    line.ok("users", "add", "ada", "--password-file", str(password))
    line.ok("quotas", "set", "--user", "ada", "producer_byte_rate=1048576")
    line.ok("configs", "alter", "--broker", "default", "--set", "log.cleaner.threads=2")
    for codec in CODECS:
        with blocking.Producer(
            servers, compression_type=codec, enable_idempotence=codec != "gzip"
        ) as producer:
            for number in range(40):
                headers = [("n", b"%d" % number)]
                key = b"key %d" % (number % 7)
                producer.send(f"plain-{codec}", b"value %d" % number, key=key, headers=headers)
            producer.send(f"plain-{codec}", None, key=b"a tombstone")
    with blocking.Producer(servers) as producer:
        for number in range(20):
            producer.send("latest", b"%d" % number, key=b"%d" % (number % 3))
    with blocking.Producer(servers, transactional_id="summer") as producer:
        for outcome in ("committed", "aborted", "committed"):
            with contextlib.suppress(_Never), producer.transaction():
                producer.send_nowait("sums", outcome.encode(), partition=0)
                producer.flush()
                if outcome == "aborted":
                    raise _Never
    line.ok("consume", "plain-none", "--group", "readers", "--from-beginning", "--count", "30")
    query = Query(servers, SINK_TOPIC, name=SINK_QUERY)
    for batch in range(3):
        query.batch("run", batch, [[f"batch {batch}, task {task}"] for task in range(2)])
    await_markers(servers, SINK_TOPIC)


class _Never(Exception):
    """Aborts a transaction."""


def contents(line: CommandLine) -> dict[str, Any]:
    """What the command reads of it: the clients and the metadata of a cluster."""
    topics = [*(f"plain-{codec}" for codec in CODECS), "latest", "sums", SINK_TOPIC]
    asked = {
        "topics": ["topics", "list"],
        "offsets": ["offsets", *topics],
        "committed offsets": ["offsets", "--read-committed", *topics],
        "settings": ["configs", "describe", "--topic", "latest"],
        "users": ["users", "list"],
        "quotas": ["quotas", "list"],
        "lag": ["groups", "lag", "readers"],
    }
    found = {name: line.ok(*words, "--json").json for name, words in asked.items()}
    for more, some in (((), topics), (("--read-committed",), ("sums", SINK_TOPIC))):
        for topic in some:
            read = line.ok("consume", topic, "--from-beginning", "--exit", "--json", *more).json_lines
            read.sort(key=lambda each: (each["partition"], each["offset"]))
            found[" ".join((topic, *more))] = read
    return found


def main(directory: Path) -> None:
    data, name = directory / "data", ottla.__version__
    password = directory / "password"
    password.write_text("a password")
    with LocalNode(SETTINGS, data_dir=str(data)) as node:
        line = CommandLine(node.bootstrap_servers)
        fill(node, line, password)
        found = contents(line)
    with tarfile.open(GOLDEN / f"{name}.tar.xz", "w:xz") as archive:
        archive.add(data, "data")
    (GOLDEN / f"{name}.json").write_text(json.dumps(found, sort_keys=True) + "\n")
    print(name, (GOLDEN / f"{name}.tar.xz").stat().st_size, "bytes, made by", ottla.__file__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The memory of a node while it tiers 100 GB.

The log of a topic is written as sparse files, of valid batches whose values are zeros: it has its size for
the node, and takes some hundred megabytes of the disk. The node, a process of its own, is measured at rest;
then remote storage is turned on for the topic, and it copies the segments to a store which speaks as much of
S3 as uploads need, in another process, and forgets what it gets. So all of the way is measured but the
network and the disks: reading, the library of the store, requests, the metadata.

`python -m bench tiered-memory` ends when all is copied, or after some minutes: then it says how far it came.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import struct
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen

from bench.harness import Row, fewer, scaled
from ottla.client.admin.configs import ResourceType
from ottla.client.blocking import Admin
from ottla.log.directory.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, read_offsets, write_offsets
from ottla.log.producers.snapshot import encode_snapshot
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.disk import RealDisk
from ottla.testing.local_cluster import LocalCluster

TOPIC = "sparse"
PARTITIONS = 10
SEGMENT_BYTES = 1024**3
BATCH_BYTES = 1024**2
BATCHES = SEGMENT_BYTES // BATCH_BYTES
BUCKET = "tier"
TIMESTAMP = 1_700_000_000_000
REST_S = 5.0
BUDGET_S = 220.0
SAMPLE_S = 0.25
# What a copy holds of a segment, for each of the ten that may run, and room for the allocator.
LIMIT_MB: Final = 256


def rows() -> Iterator[Row]:
    segments = scaled(100, 10)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory,
        DiscardingStore() as store,
        LocalCluster(nodes=1, settings=_settings(store.url), data_dir=f"{directory}/cluster") as cluster,
    ):
        with Admin(cluster.bootstrap_servers) as admin:
            admin.topics.create(TOPIC, partitions=PARTITIONS, configs=_topic_settings())
        cluster.stop(1)
        _write_logs(Path(cluster.node(1).data_dir), segments // PARTITIONS)
        cluster.start(1)
        cluster.wait_ready()
        yield from _measure(cluster, segments)


def _settings(url: str) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "rsm.config.storage.url": f"s3://{BUCKET}",
        "rsm.config.storage.s3.endpoint.url": url,
        "rsm.config.storage.s3.region": "us-east-1",
        "rsm.config.storage.aws.access.key.id": "key",
        "rsm.config.storage.aws.secret.access.key": "secret",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "4",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "log.retention.check.interval.ms": "1000",
        "http.listener": "http://127.0.0.1:0",
    }


def _topic_settings() -> dict[str, str]:
    return {
        "segment.bytes": str(SEGMENT_BYTES),
        "local.retention.bytes": "1",
        "retention.ms": "-1",
        "file.delete.delay.ms": "0",
    }


def _measure(cluster: LocalCluster, segments: int) -> Iterator[Row]:
    node = cluster.nodes[0]
    pid, url = node.pid, node.http_url
    assert pid is not None
    assert url is not None
    time.sleep(REST_S)
    before = _rss_mb(pid)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.configs.alter(ResourceType.TOPIC, TOPIC, set={"remote.storage.enable": "true"})
    begin = time.monotonic()
    samples: list[float] = []
    copied = 0.0
    while copied < segments * SEGMENT_BYTES and time.monotonic() - begin < BUDGET_S:
        time.sleep(SAMPLE_S)
        samples.append(_rss_mb(pid))
        if len(samples) % 8 == 0:
            copied = _copied_bytes(url)
    took = time.monotonic() - begin
    copied = _copied_bytes(url)
    quarter = max(1, len(samples) // 4)
    name = f"{segments} segments of 1 GiB to a store that speaks S3"
    yield fewer(f"{name}: copied", "GiB", copied / 1024**3, None, "–", f"{segments}")
    yield fewer(f"{name}: time", "s", took, None, "–")
    yield fewer(f"{name}: memory of the node before", "MB", before, None, "–")
    yield fewer(f"{name}: its peak", "MB", max(samples), None, "–", f"≤ {before + LIMIT_MB:.0f}")
    yield fewer(f"{name}: its peak in the first quarter", "MB", max(samples[:quarter]), None, "–")
    yield fewer(f"{name}: its peak in the last quarter", "MB", max(samples[-quarter:]), None, "–")


def _rss_mb(pid: int) -> float:
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _copied_bytes(url: str) -> float:
    text = urlopen(f"{url}/metrics").read().decode()
    name = "kafka_server_brokertopicmetrics_remotecopybytes_total"
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


# The log


def _write_logs(data_dir: Path, segments: int) -> None:
    """Write closed segments, and an active one without records, in the place of the empty logs."""
    batch = _batch()
    disk = RealDisk()
    ends: dict[TopicPartition, int] = {}
    for number in range(PARTITIONS):
        directory = data_dir / f"{TOPIC}-{number}"
        for path in directory.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for segment in range(segments):
            _write_segment(directory, segment * BATCHES, batch)
        end = segments * BATCHES
        for suffix in ("log", "index", "timeindex"):
            (directory / f"{end:020d}.{suffix}").touch()
        (directory / f"{end:020d}.snapshot").write_bytes(encode_snapshot(()))
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        ends[TopicPartition(TOPIC, number)] = end
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        path = str(data_dir / name)
        write_offsets(disk, path, {**read_offsets(disk, path), **ends})


def _batch() -> bytes:
    """A batch of one record, whose value is as many zeros as there is room for."""
    room = BATCH_BYTES - 100
    used = len(build_batch([(TIMESTAMP, b"", bytes(room))], leader_epoch=0))
    # The sizes before key and value take more or fewer bytes, depending on them: the key fills up the rest.
    batch = build_batch([(TIMESTAMP, bytes(BATCH_BYTES - used), bytes(room))], leader_epoch=0)
    assert len(batch) == BATCH_BYTES, len(batch)
    assert not any(batch[4096:])
    return batch


def _write_segment(directory: Path, base_offset: int, batch: bytes) -> None:
    name = f"{base_offset:020d}"
    file = os.open(directory / f"{name}.log", os.O_CREAT | os.O_WRONLY)
    try:
        for number in range(BATCHES):
            # The checksum does not cover the base offset.
            os.pwrite(file, struct.pack(">q", base_offset + number) + batch[8:128], number * BATCH_BYTES)
        os.ftruncate(file, SEGMENT_BYTES)
    finally:
        os.close(file)
    entries = (struct.pack(">ii", number, number * BATCH_BYTES) for number in range(1, BATCHES))
    (directory / f"{name}.index").write_bytes(b"".join(entries))
    (directory / f"{name}.timeindex").write_bytes(struct.pack(">qi", TIMESTAMP, 0))
    (directory / f"{name}.snapshot").write_bytes(encode_snapshot(()))


# The store


class DiscardingStore:
    """A process that takes uploads, and keeps nothing of them. `url` is its endpoint."""

    def __enter__(self) -> DiscardingStore:
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        if not ours.poll(60):
            raise TimeoutError("the store does not start")
        self.url = f"http://127.0.0.1:{ours.recv()}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _serve(ready: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    ready.send(server.server_port)
    server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _discard(self) -> bytes:
        """Read the body, and return the last piece of it."""
        left = int(self.headers.get("Content-Length") or 0)
        buffer = memoryview(bytearray(1024**2))
        count = 0
        while left:
            count = self.rfile.readinto(buffer[: min(left, len(buffer))])  # type: ignore[attr-defined]
            if not count:
                break
            left -= count
        return bytes(buffer[:count])

    def _answer(self, body: str = "", **headers: str) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_PUT(self) -> None:
        self._discard()
        self._answer(ETag='"none"')

    def do_POST(self) -> None:
        body = self._discard().decode()
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}/")
        names = f"<Bucket>{BUCKET}</Bucket><Key>{key}</Key>"
        if "delete" in query:
            deleted = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in _keys(body))
            self._answer(f"<DeleteResult>{deleted}</DeleteResult>")
        elif "uploads" in query:
            id = json.dumps(key)[1:-1]
            result = "InitiateMultipartUploadResult"
            self._answer(f"<{result}>{names}<UploadId>{id}</UploadId></{result}>")
        else:
            result = "CompleteMultipartUploadResult"
            self._answer(f'<{result}>{names}<ETag>"whole"</ETag></{result}>')

    def do_DELETE(self) -> None:
        self._discard()
        self._answer()

    def log_message(self, *_: object) -> None:
        """The figures are the output."""


def _keys(body: str) -> list[str]:
    return re.findall("<Key>(.*?)</Key>", body)

"""The kernel in Python does what the compiled one does: the same bytes, records, errors and texts."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla import LocalNode
from ottla.protocol.errors import KafkaError
from ottla.records import _kernel as compiled
from ottla.records.batch import Codec, compute_crc
from ottla.records.builder import build_batch
from ottla.records.checksum import crc32c
from ottla.records.compression import decompress
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker

SOURCE = Path(compiled.__file__).with_name("_kernel.py")


def load() -> ModuleType:
    spec = spec_from_file_location("slow_kernel", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spec.loader.exec_module(module)
    return module


slow = load()

INT64 = st.integers(-(2**63), 2**63 - 1)
BYTES = st.none() | st.binary(max_size=200) | st.binary(max_size=20).map(bytearray)
HEADERS = st.lists(st.tuples(st.text(max_size=9) | st.binary(max_size=9), BYTES), max_size=3)
ROWS = st.lists(st.tuples(INT64 | st.integers(0, 2**41), BYTES, BYTES, HEADERS), max_size=6)
RECORD = ("offset", "timestamp", "key", "value", "headers", "sequence")
CONSUMER_RECORD = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
    "timestamp_type",
    "leader_epoch",
)
ENCODER = ("count", "last_offset_delta", "base_timestamp", "max_timestamp", "max_timestamp_delta", "size")
HEADER = (
    *("base_offset", "batch_length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta"),
    *("base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "count"),
    *(
        "size",
        "last_offset",
        "next_offset",
        "timestamp_type",
        "is_transactional",
        "is_control",
        "is_compressed",
    ),
    *("delete_horizon_ms", "has_producer_id", "last_sequence"),
)


def outcome(work: Callable[[], Any]) -> Any:
    """What is returned, or what is raised: the kind of an error, and what Kafka's errors say."""
    try:
        return work()
    except KafkaError as error:
        return error.code, str(error)
    except (TypeError, ValueError, OverflowError) as error:
        return type(error)


def fields(names: tuple[str, ...], each: Any) -> tuple[Any, ...]:
    return tuple(getattr(each, name) for name in names)


def encoded(kernel: Any, rows: list[Any], base: int | None, limit: int) -> Any:
    encoder = kernel.Encoder(base)
    sizes = [encoder.append(*row, None, limit) for row in rows]
    return sizes, bytes(encoder.payload), fields(ENCODER, encoder)


@given(rows=ROWS, base=st.none() | INT64, limit=st.sampled_from([0, 100, 300]))
def test_both_encode_the_same_bytes(rows: list[Any], base: int | None, limit: int) -> None:
    results = [outcome(lambda each=each: encoded(each, rows, base, limit)) for each in (slow, compiled)]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "arguments",
    [
        (0, "text", None),
        (0, None, 5),
        (2**63, None, None),
        (0, None, None, [("name", "text")]),
        (0, None, None, [(7, b"")]),
        (0, None, None, (), -1),
        (0, None, None, (), 2**31),
    ],
)
def test_both_refuse_the_same_arguments(arguments: tuple[Any, ...]) -> None:
    results = [outcome(lambda each=each: each.Encoder().append(*arguments)) for each in (slow, compiled)]
    assert results[0] == results[1]
    assert isinstance(results[0], type)


def test_both_take_records_at_their_offsets() -> None:
    def extended(kernel: Any) -> bytes:
        encoder = kernel.Encoder()
        records = [
            kernel.Record(7, 1, None, b"a", [("h", None)]),
            kernel.Record(9, 3, b"k", None, [("h", b"x")]),
        ]
        encoder.extend(records, 5)
        encoder.append(4, b"k", b"v", {"h": b"x"})
        encoder.extend([(1, b"k", b"v"), (2, None, b"v", [("a", b"b")])], 0)
        return bytes(encoder.payload)

    assert extended(slow) == extended(compiled)


def decoded(kernel: Any, batch: bytes) -> Any:
    header = kernel.BatchHeader.parse(batch)
    payload = batch[61 : header.size]
    if header.is_compressed:
        payload = bytes(memoryview(decompress(header.codec, payload, 1 << 20)))
    records = kernel.decode_records(payload, header)
    return fields(HEADER, header), repr(header), [fields(RECORD, each) for each in records]


def read(kernel: Any, batches: bytes, start: int, end: int, aborted: list[tuple[int, int]]) -> Any:
    reader = kernel.BatchReader(
        start_offset=start,
        end_offset=end,
        check_crc=False,
        decompress=decompress,
        crc32c=crc32c,
        max_decompressed_bytes=1 << 20,
    )
    reader.set_aborted(aborted)
    source = kernel.ConsumerRecord("topic", 3, 0)
    try:
        seen = [fields(CONSUMER_RECORD, each) for each in reader.read_for_user(batches, source)]
    except KafkaError as error:
        seen = [(error.code, str(error))]
    return seen, reader.next_offset


def history(rng: random.Random) -> bytes:
    """Batches of some producers, of which some are transactions that are committed or aborted."""
    data, offset = b"", rng.randrange(5)
    for _ in range(rng.randrange(1, 6)):
        producer = rng.randrange(-1, 3)
        if producer >= 0 and rng.random() < 0.4:
            marker = EndTransactionMarker(
                rng.choice([ControlType.ABORT, ControlType.COMMIT]), coordinator_epoch=1
            )
            data += build_end_transaction_marker(
                marker, base_offset=offset, producer_id=producer, producer_epoch=0, timestamp=5
            )
            offset += 1
            continue
        count = rng.randrange(1, 4)
        data += build_batch(
            [(rng.randrange(2**41), b"k", rng.randbytes(9), [("h\xe9", b"1")]) for _ in range(count)],
            base_offset=offset,
            codec=rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4]),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=rng.randrange(2**31) if producer >= 0 else -1,
            transactional=producer >= 0 and rng.random() < 0.7,
        )
        offset += count + rng.randrange(2)
    return data


@pytest.mark.parametrize("seed", range(10))
def test_both_read_the_same_records(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        batches = history(rng)
        aborted = [(rng.randrange(3), rng.randrange(12)) for _ in range(rng.randrange(3))]
        start, end = rng.randrange(8), rng.choice([2**63 - 1, rng.randrange(8, 20)])
        assert read(slow, batches, start, end, aborted) == read(compiled, batches, start, end, aborted)


@pytest.mark.parametrize("seed", range(10))
def test_both_refuse_the_same_bytes(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        batch = bytearray(history(rng))
        for _ in range(rng.randrange(1, 4)):
            batch[rng.randrange(len(batch))] = rng.choice([0, 1, 2, 3, 127, 128, 255, rng.randrange(256)])
        if rng.random() < 0.3:
            del batch[rng.randrange(len(batch)) :]
        elif rng.random() < 0.5:
            struct.pack_into(">i", batch, 8, len(batch) - 12)
            struct.pack_into(">I", batch, 17, compute_crc(batch, 0, len(batch)))
        data = bytes(batch)
        assert outcome(lambda data=data: decoded(slow, data)) == outcome(
            lambda data=data: decoded(compiled, data)
        )
        assert read(slow, data, 0, 2**63 - 1, [(0, 2)]) == read(compiled, data, 0, 2**63 - 1, [(0, 2)])


@given(key=st.binary(max_size=40), partitions=st.integers(1, 2**31 - 1))
def test_both_hash_alike(key: bytes, partitions: int) -> None:
    assert slow.murmur2(key) == compiled.murmur2(key)
    assert slow.partition_for(bytearray(key), partitions) == compiled.partition_for(key, partitions)


def test_both_deserialize_alike() -> None:
    def refuse(value: bytes) -> str:
        return value.decode("ascii")

    def done(kernel: Any) -> Any:
        records = [
            kernel.ConsumerRecord("t", 0, i, key=b"k", value=v) for i, v in enumerate([b"a", None, b"\xff"])
        ]
        count, error = kernel.deserialize(records, bytes.decode, refuse)
        return (
            count,
            type(error),
            [fields(CONSUMER_RECORD, each) for each in records],
            list(map(repr, records)),
        )

    assert done(slow) == done(compiled)


def test_both_compare_records_alike() -> None:
    for kernel in (slow, compiled):
        record, same, other = (kernel.ConsumerRecord("t", 0, 1, value=value) for value in ({}, {}, {"a": 1}))
        assert record == same != other
        assert hash(record) == hash(same) == hash(other)


def test_what_only_nodes_need_says_so() -> None:
    with pytest.raises(ImportError, match="OffsetMap is only in Ottla's compiled kernel"):
        _ = slow.OffsetMap
    assert not hasattr(slow, "__path__")


# As where no compiled kernel is installed.
UNCOMPILED = """
import importlib.machinery, sys, warnings

import ottla.records
[directory] = ottla.records.__path__
sources = importlib.machinery.SourceFileLoader, [".py"]
sys.path_importer_cache[directory] = importlib.machinery.FileFinder(directory, sources)
"""

CLIENTS = """
import asyncio
warnings.simplefilter("ignore", RuntimeWarning)
import ottla.records._kernel
assert ottla.records._kernel.__file__.endswith("_kernel.py")
import ottla


async def main(address):
    async with ottla.Producer(address, compression_type="zstd") as producer:
        await producer.send("orders", b"hello", key=b"key", headers=[("a", b"b")])
    async with ottla.Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("orders", 0)])
        while not (records := await consumer.poll()):
            pass
    print([(each.key, each.value, each.headers) for each in records])


asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
def test_clients_work_without_a_compiled_kernel() -> None:
    with LocalNode() as node:
        command = [sys.executable, "-c", UNCOMPILED + CLIENTS, node.bootstrap_servers]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.stdout == "[(b'key', b'hello', (('a', b'b'),))]\n"


@pytest.mark.slow
def test_a_node_without_a_compiled_kernel_says_what_it_lacks(tmp_path: Path) -> None:
    program = (
        UNCOMPILED + "from ottla.cli.main import main\nsys.exit(main(['start', '--data-dir', sys.argv[1]]))"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1
    assert re.fullmatch(r"ottla: \w+ is only in Ottla's compiled kernel, .*\n", done.stderr)

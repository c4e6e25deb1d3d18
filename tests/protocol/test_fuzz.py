"""Hostile bytes: a decoder answers with a message or MalformedMessage, soon and within bounded memory.

`OTTLA_FUZZ_ROUNDS=n` multiplies the number of inputs.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from ottla.protocol import consumer_offsets_records, consumer_protocol, metadata_records, remote_log_records
from ottla.protocol.errors import MalformedMessage, UnsupportedVersion
from ottla.protocol.headers import read_request_header
from ottla.protocol.schema import Message
from tests.support.messages import MessageMaker, all_messages, versions_of
from tests.support.rows import for_each

ROUNDS = int(os.environ.get("OTTLA_FUZZ_ROUNDS", "1"))
EVERY_MESSAGE = [pytest.param(cls, id=cls.__name__) for cls in all_messages()]
# Lengths and counts as an attacker would choose them, in the forms that the protocol has.
EXTREMES = [
    *(struct.pack(">i", value) for value in (-1, -2, -(2**31), 2**31 - 1, 2**24)),
    *(struct.pack(">h", value) for value in (-1, -2, -(2**15), 2**15 - 1)),
    *(
        bytes.fromhex(text)
        for text in ("ffffffff07", "ffffffff0f", "ffffffffff7f", "808080808000", "ff7f", "00")
    ),
]


def mutations(data: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    """Variations of a valid message, and noise."""
    for _ in range(count):
        mutated = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 5))):
            place = chance.randrange(len(mutated) + 1)
            match chance.randrange(5):
                case 0:
                    mutated[place : place + 1] = chance.randbytes(1)
                case 1:
                    extreme = chance.choice(EXTREMES)
                    mutated[place : place + len(extreme)] = extreme
                case 2:
                    del mutated[place : place + chance.randrange(8)]
                case 3:
                    mutated[place:place] = chance.randbytes(chance.randrange(1, 8))
                case _:
                    mutated = mutated[:place]
        yield bytes(mutated)
    yield chance.randbytes(chance.randrange(200))
    yield bytes(chance.randrange(1, 100))
    yield b"\xff" * chance.randrange(1, 100)
    yield b"\x7f" * chance.randrange(1, 100)


@for_each("cls", EVERY_MESSAGE)
def test_decoders_raise_nothing_but_malformed(cls: type[Message]) -> None:
    chance = random.Random(cls.__name__)
    for version in versions_of(cls):
        for seed in range(2 * ROUNDS):
            message = MessageMaker((cls.__name__, version, seed), unknown_tags=True).make(cls, version)
            for data in mutations(message.encode(version), chance, 25):
                try:
                    decoded = cls.decode(data, version)
                except MalformedMessage:
                    continue
                # What was understood can be written again, and means the same.
                assert cls.decode(decoded.encode(version), version) == decoded


@for_each("cls", EVERY_MESSAGE)
def test_memory_is_bounded_by_the_bytes_that_came(cls: type[Message]) -> None:
    chance = random.Random(cls.__name__)
    for version in versions_of(cls)[-2:]:
        data = MessageMaker((cls.__name__, version)).make(cls, version).encode(version)
        cls.decode(data, version)
        hostile = list(mutations(data, chance, 12))
        tracemalloc.start()
        try:
            for each in hostile:
                limit = 20_000 + 200 * len(each)
                # Threads that other tests left running allocate too, but not every time.
                assert any(_peak_of_decoding(cls, each, version) < limit for _ in range(5))
        finally:
            tracemalloc.stop()


def _peak_of_decoding(cls: type[Message], data: bytes, version: int) -> int:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with contextlib.suppress(MalformedMessage):
        cls.decode(data, version)
    return tracemalloc.get_traced_memory()[1] - before


@for_each("cls", EVERY_MESSAGE)
def test_a_megabyte_of_noise_is_refused_soon(cls: type[Message]) -> None:
    version = cls.VERSIONS[1]
    noise = random.Random(cls.__name__).randbytes(2**20)
    for data in (noise, b"\x02" * 2**20, b"\x00\x00\x00\x01" * 2**18):
        started = time.process_time()
        with contextlib.suppress(MalformedMessage):
            cls.decode(data, version)
        assert time.process_time() - started < 10


def test_request_headers_raise_nothing_but_malformed_or_unsupported() -> None:
    chance = random.Random("headers")
    start = bytes.fromhex("0012 0003 00000009 0002 6d65 00")
    for data in mutations(start, chance, 3000 * ROUNDS):
        try:
            header = read_request_header(data)
        except (MalformedMessage, UnsupportedVersion):
            continue
        assert header.position <= len(data)


@pytest.mark.parametrize(
    ("decode", "valid"),
    [
        (metadata_records.decode_metadata_record, "01 02 00 02 74 000102030405060708090a0b0c0d0e0f 00"),
        (remote_log_records.RECORD_TYPES.decode, "01 01 00"),
        (consumer_offsets_records.RECORDS.decode_key, "0001 0001 67 0001 74 00000000"),
        (consumer_protocol.decode_subscription, "0003 00000001 0001 74 ffffffff 00000000 ffffffff ffff"),
        (consumer_protocol.decode_assignment, "0001 00000001 0001 74 00000001 00000000 00000000"),
    ],
)
def test_frames_of_records_raise_nothing_but_malformed_or_unsupported(decode: object, valid: str) -> None:
    assert callable(decode)
    chance = random.Random(valid)
    for data in mutations(bytes.fromhex(valid), chance, 2000 * ROUNDS):
        with contextlib.suppress(MalformedMessage, UnsupportedVersion):
            decode(data)

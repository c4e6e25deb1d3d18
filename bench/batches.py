"""Batches that are ready beforehand, sent to many partitions over one connection: the broker's cost alone.

A client spreads records over partitions, so with more of them its batches get smaller and everybody's work
grows. Here every request carries the same number of equal batches, whatever the number of partitions; what
changes is only how many logs they go to.
"""

import socket
import struct
import time

from bench.brokers import Broker
from bench.loads import Load
from ottla.protocol.api import API
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.batch import Record
from ottla.records.builder import build_batch

VERSION = 9
BATCHES_A_REQUEST = 8
RECORDS_A_BATCH = 100
IN_FLIGHT = 5


def batch() -> bytes:
    now = int(time.time() * 1000)
    return bytes(build_batch([Record(n, now, None, bytes(100), ()) for n in range(RECORDS_A_BATCH)]))


def sending(broker: Broker, topic: str, partitions: int, requests: int) -> Load:
    """Requests of `BATCHES_A_REQUEST` batches, to the partitions in turn."""
    records = batch()

    def request(number: int) -> bytes:
        first = number * BATCHES_A_REQUEST
        wanted = [(first + n) % partitions for n in range(BATCHES_A_REQUEST)]
        data = [PartitionProduceData(index=each, records=records) for each in dict.fromkeys(wanted)]
        # With fewer partitions than batches, a partition gets its batches in one piece.
        if len(data) < BATCHES_A_REQUEST:
            data[0].records = records * (BATCHES_A_REQUEST - len(data) + 1)
        body = ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        return b"".join(request_parts(VERSION, number, "bench", body))

    frames = [request(number) for number in range(requests)]

    def run() -> float:
        host, _, port = broker.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
            begin = time.perf_counter()
            for number in range(requests + IN_FLIGHT):
                if number < requests:
                    connection.sendall(frames[number])
                if number >= IN_FLIGHT:
                    (size,) = struct.unpack(">i", answers.read(4))
                    _check(answers.read(size))
            return requests * BATCHES_A_REQUEST * RECORDS_A_BATCH / (time.perf_counter() - begin)

    return run


def _check(frame: bytes) -> None:
    _, response = read_response(API[ProduceRequest.API_KEY], VERSION, frame)
    assert isinstance(response, ProduceResponse)
    for topic in response.responses:
        for partition in topic.partition_responses:
            assert partition.error_code == 0, partition

"""Send prepared batches to many partitions over one connection, to measure the broker's cost alone.

A client spreads records over partitions, so with more of them its batches get smaller and the work of client
and broker grows. Here every request carries one batch of the same size, whatever the number of partitions;
what changes is only how many logs they go to.
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
RECORDS_A_BATCH = 400
IN_FLIGHT = 5


class Refused(Exception):
    """A broker refused a batch."""


def batch() -> bytes:
    now = int(time.time() * 1000)
    return bytes(build_batch([Record(n, now, None, bytes(100), ()) for n in range(RECORDS_A_BATCH)]))


def sending(broker: Broker, topic: str, partitions: int, requests: int) -> Load:
    """Requests of one batch each, to the partitions in turn."""
    records = batch()

    def request(number: int) -> bytes:
        data = [PartitionProduceData(index=number % partitions, records=records)]
        body = ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        return b"".join(request_parts(VERSION, number, "bench", body))

    # The same requests are repeated: as many as reach every partition.
    frames = [request(number) for number in range(min(requests, max(partitions, 100)))]

    def run() -> float:
        host, _, port = broker.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
            begin = time.perf_counter()
            for number in range(requests + IN_FLIGHT):
                if number < requests:
                    connection.sendall(frames[number % len(frames)])
                if number >= IN_FLIGHT:
                    (size,) = struct.unpack(">i", answers.read(4))
                    _check(answers.read(size))
            return requests * RECORDS_A_BATCH / (time.perf_counter() - begin)

    return run


def _check(frame: bytes) -> None:
    _, response = read_response(API[ProduceRequest.API_KEY], VERSION, frame)
    assert isinstance(response, ProduceResponse)
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise Refused(partition)

"""Encoding and decoding of the most important messages, compared with kio and kafka-python.

kio decodes in compiled code and checks the types of what it encodes; kafka-python generates Python as we
do. Run it by `python -m bench.protocol`.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from typing import Any

from kafka.protocol.consumer.fetch import FetchResponse as KafkaPythonFetchResponse
from kafka.protocol.metadata.metadata import MetadataResponse as KafkaPythonMetadataResponse
from kafka.protocol.producer.produce import ProduceRequest as KafkaPythonProduceRequest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from bench.harness import Row, compare, markdown
from ottla.protocol.messages import fetch, metadata, produce
from ottla.protocol.schema import Message, Request

RECORDS = random.Random(7).randbytes(16 * 1024)


def produce_request() -> Message:
    """Nine batches of 16 kB."""
    partitions = [produce.PartitionProduceData(index=index, records=RECORDS) for index in range(3)]
    topics = [produce.TopicProduceData(name=f"topic-{n}", partition_data=partitions) for n in range(3)]
    return produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)


def fetch_response() -> Message:
    """Fifty partitions with 16 kB each."""
    partitions = [
        fetch.PartitionData(
            partition_index=index,
            high_watermark=100,
            last_stable_offset=100,
            log_start_offset=0,
            records=RECORDS,
        )
        for index in range(10)
    ]
    topics = [
        fetch.FetchableTopicResponse(topic_id=bytes([n]) * 16, partitions=partitions) for n in range(1, 6)
    ]
    return fetch.FetchResponse(session_id=7, responses=topics)


def metadata_response() -> Message:
    """A thousand topics of six partitions."""
    partitions = [
        metadata.MetadataResponsePartition(
            partition_index=index, leader_id=1, leader_epoch=3, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]
        )
        for index in range(6)
    ]
    topics = [
        metadata.MetadataResponseTopic(
            name=f"some-topic-{n}", topic_id=n.to_bytes(16, "big"), partitions=partitions
        )
        for n in range(1, 1001)
    ]
    brokers = [
        metadata.MetadataResponseBroker(node_id=node, host=f"broker-{node}", port=9092) for node in range(3)
    ]
    return metadata.MetadataResponse(brokers=brokers, cluster_id="x" * 22, controller_id=1, topics=topics)


def repeated(times: int, work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            work()

    return run


def kio_work(message: Message, version: int) -> tuple[Callable[[], bytes], Callable[[], object]]:
    """kio's encoding and decoding of the same message."""
    load = load_request_schema if isinstance(message, Request) else load_response_schema
    cls: Any = load(message.API_KEY, version)
    read, write = entity_reader(cls), entity_writer(cls)
    data = message.encode(version)
    entity = read(data, 0)[0]

    def encode() -> bytes:
        out = io.BytesIO()
        write(out, entity)
        return out.getvalue()

    return encode, lambda: read(data, 0)


def kafka_python_work(
    cls: Any, message: Message, version: int
) -> tuple[Callable[[], bytes], Callable[[], object]]:
    """kafka-python's encoding and decoding of the same message."""
    data = message.encode(version)
    decoded = cls.decode(data, version=version)
    decoded._header = None
    return lambda: bytes(decoded.encode(version=version)), lambda: cls.decode(data, version=version)


CASES = (
    ("ProduceRequest v12, 9 batches", produce_request, 12, 300, KafkaPythonProduceRequest),
    ("FetchResponse v17, 50 partitions", fetch_response, 17, 60, KafkaPythonFetchResponse),
    ("MetadataResponse v12, 1000 topics", metadata_response, 12, 1, KafkaPythonMetadataResponse),
)


def rows() -> Iterator[Row]:
    for name, make, version, times, kafka_python_class in CASES:
        message = make()
        data = message.encode(version)
        cls = type(message)
        decode = repeated(times, lambda c=cls, d=data, v=version: c.decode(d, v))
        encode = repeated(times, lambda m=message, v=version: m.encode_parts(v))
        for peer_name, (peer_encode, peer_decode) in (
            ("kio", kio_work(message, version)),
            ("kafka-python", kafka_python_work(kafka_python_class, message, version)),
        ):
            assert peer_encode() == data, f"{peer_name} writes {name} differently"
            for what, ours, peer in (("encode", encode, peer_encode), ("decode", decode, peer_decode)):
                theirs = repeated(times, peer)
                yield compare(f"{what} {name}", times, "messages/s", ours, theirs, peer_name=peer_name)


if __name__ == "__main__":
    print(markdown(list(rows())))

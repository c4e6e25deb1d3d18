"""Every version of every request and response, against two other implementations, both ways."""

from __future__ import annotations

import pytest

from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.schema import Message
from tests.support.messages import MessageMaker, api_messages, versions_of
from tests.support.newer_apis import FIRST_ERROR_OF_KAFKA_4_4, is_of_kafka_4_3
from tests.support.oracles import (
    kafka_python_classes,
    kafka_python_decode,
    kafka_python_recode,
    kio_class,
    kio_decode,
    kio_encode,
)
from tests.support.rows import for_each

MESSAGES_EACH = 8
CASES = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for cls in api_messages()
    for version in versions_of(cls)
    if is_of_kafka_4_3(cls.API_KEY, version)
]


@for_each(("cls", "version"), CASES)
def test_kio_reads_what_we_write_and_writes_the_same(cls: type[Message], version: int) -> None:
    theirs = kio_class(cls, version)
    for seed in range(MESSAGES_EACH):
        message = MessageMaker((cls.__name__, version, seed), errors_below=FIRST_ERROR_OF_KAFKA_4_4).make(
            cls, version
        )
        data = message.encode(version)
        assert kio_decode(cls, theirs, data, version) == message
        assert kio_encode(message, theirs, version) == data
        assert cls.decode(data, version) == message


KAFKA_PYTHON_CASES = [case for case in CASES if case.values[0].__name__ in kafka_python_classes()]


@for_each(("cls", "version"), KAFKA_PYTHON_CASES)
def test_kafka_python_reads_what_we_write_and_we_read_what_it_writes(
    cls: type[Message], version: int
) -> None:
    theirs = kafka_python_classes()[cls.__name__]
    for seed in range(MESSAGES_EACH):
        message = MessageMaker((cls.__name__, version, seed)).make(cls, version)
        if isinstance(message, ApiVersionsResponse):
            # With an error kafka-python takes any version for version 0, as a server may answer in it.
            message.error_code = 0
        data = message.encode(version)
        assert kafka_python_decode(cls, theirs, data, version) == message
        assert cls.decode(kafka_python_recode(theirs, data, version), version) == message


def test_the_oracles_cover_what_they_should() -> None:
    assert len(CASES) == 604
    assert len(KAFKA_PYTHON_CASES) > 450

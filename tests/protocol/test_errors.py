"""The table of error codes, against kio's, and the exceptions that carry them."""

from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from tests.support.newer_apis import FIRST_ERROR_OF_KAFKA_4_4


def test_the_table_has_kafkas_names_numbers_and_retriability() -> None:
    ours = {code.value: (code.name, code.retriable) for code in ErrorCode if code < FIRST_ERROR_OF_KAFKA_4_4}
    assert ours == {code.value: (code.name.upper(), code.retriable) for code in KioErrorCode}


def test_every_code_has_a_text_of_its_own() -> None:
    texts = [code.text for code in ErrorCode]
    assert all(text.endswith(".") for text in texts)
    assert len(set(texts)) == len(texts)


def test_an_error_without_a_message_says_what_its_code_means() -> None:
    assert (
        str(KafkaError(ErrorCode.NOT_CONTROLLER)) == "NOT_CONTROLLER: This node is not the active controller."
    )


def test_an_error_tells_whether_to_try_again() -> None:
    assert KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "orders-0").retriable
    assert not KafkaError(ErrorCode.INVALID_CONFIG, "retention.ms=soon").retriable


def test_a_code_of_a_newer_broker_is_an_unknown_server_error() -> None:
    assert ErrorCode.of(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.of(4711) is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    "error",
    [KafkaError(ErrorCode.INVALID_RECORD, "no key"), MalformedMessage("short"), UnsupportedVersion("v99")],
)
def test_errors_survive_pickling(error: KafkaError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.message) == (type(error), error.code, error.message)

"""Offsets that a client of librdkafka commits outside of a group.

A coordinator that has just become one loads its partition first: librdkafka asks again a few times, and then
gives the error to its caller.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.support.waiting import wait_until

_PASSING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
)


def commit_offsets(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    """Commit once there is a coordinator that can."""
    refused: list[KafkaException] = []

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            refused.append(error)
            if error.args[0].code() in _PASSING:
                return False
            raise
        return True

    wait_until(is_committed)

"""Lives of a data directory that changes hands between Ottla and Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.apache_kafka import TWIN_SETTINGS, ApacheKafka
from tests.support.kafka_corpus import NODE_PROPERTIES
from tests.support.node_process import NodeProcess

# Who has the directory, and how that one ends.
Lives: TypeAlias = Sequence[tuple[str, str]]


# Both directions, after an orderly end and after a kill.
every_exchange = pytest.mark.parametrize(
    "lives",
    [
        pytest.param([("kafka", "stop"), ("ottla", "stop"), ("kafka", "stop")], id="from-kafka"),
        pytest.param(
            [("ottla", "kill"), ("kafka", "kill"), ("ottla", "stop")],
            id="from-ottla-by-kills",
            marks=pytest.mark.exhaustive,
        ),
    ],
)


class Ottla(NodeProcess):
    """A node on a data directory, in Apache Kafka's place."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        every = {**TWIN_SETTINGS, **NODE_PROPERTIES, **settings}
        super().__init__(data_dir, *(word for each in every.items() for word in ("--set", "=".join(each))))
        self.data_dir = data_dir


@contextmanager
def life(data_dir: Path, who: str, end: str, settings: Mapping[str, str]) -> Iterator[Ottla | ApacheKafka]:
    """A broker on a directory that is there already, or on a new one; it ends well, or is killed."""
    properties = {**NODE_PROPERTIES, **settings}
    broker = (
        Ottla(data_dir, settings)
        if who == "ottla"
        else ApacheKafka(data_dir.parent, properties=properties, log_dirs=[data_dir.name])
    )
    with broker:
        yield broker
        if end == "kill":
            broker.kill()
        elif isinstance(broker, Ottla):
            assert broker.terminate()[0] == 0

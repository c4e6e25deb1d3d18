"""Many librdkafka consumers of one group, in processes of their own: each has descriptors for some dozens.

Run as a program, this is one such process. It prints its members' assignments, one JSON line whenever they
have changed, until it is killed. The members are not closed: a librdkafka consumer that is closed in the very
moment in which it is given partitions never returns, if the leave request is answered before the partitions
have been taken (2.15, with the protocol "consumer").
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, NoReturn

from confluent_kafka import Consumer

from tests.support import java


class ConsumerProcesses:
    """Use as a context manager; `shares` is what the members have now."""

    def __init__(
        self, topic: str, settings: Mapping[str, object], *, members: int, processes: int, log: IO[bytes]
    ) -> None:
        self._shares: list[list[list[int]]] = [[] for _ in range(processes)]
        share, rest = divmod(members, processes)
        assert rest == 0, "as many members in each process"
        self._processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.consumer_processes",
                    topic,
                    str(share),
                    json.dumps(dict(settings)),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=java.die_with_parent(),
            )
            for _ in range(processes)
        ]
        self._readers = [
            threading.Thread(target=self._read, args=(index, process), daemon=True)
            for index, process in enumerate(self._processes)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, index: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._shares[index] = json.loads(line)
        process.stdout.close()

    def shares(self) -> list[list[int]]:
        """The partitions of each member; a member that has not said anything yet is missing."""
        return [share for shares in list(self._shares) for share in shares]

    def __enter__(self) -> ConsumerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join()


def main(topic: str, members: int, settings: Mapping[str, object]) -> NoReturn:
    consumers = [Consumer(dict(settings)) for _ in range(members)]
    for consumer in consumers:
        consumer.subscribe([topic])
    told: list[list[int]] = []
    while True:
        for consumer in consumers:
            consumer.poll(0.002)
        shares = [sorted(place.partition for place in consumer.assignment()) for consumer in consumers]
        if shares != told:
            told = shares
            print(json.dumps(shares), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))

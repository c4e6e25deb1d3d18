"""What happens to machines, done to the nodes of a cluster, from a seed.

`Nemesis` strikes once at a time and lets the cluster recover in between, so that what is promised for the
loss of one node is owed; killing all of them at once loses nothing either, as the page cache is not theirs.
Faults are counted: a run that never paused a leader has shown nothing about paused leaders.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from ottla.testing.local_cluster import LocalCluster, ProcessState
from tests.support.zookeeper import ApacheZooKeeper

# Longer than the session of a broker in these tests, and shorter.
PAUSES_S = (0.3, 1.5, 5.0)


class Nemesis:
    """`topic` is one whose leader it goes for; `progress` returns once clients are served again. With a
    `zookeeper`, which has the metadata, it is killed and paused too.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        seed: int,
        topic: str,
        progress: Callable[[], None],
        zookeeper: ApacheZooKeeper | None = None,
    ) -> None:
        self._zookeeper = zookeeper
        self._cluster = cluster
        self._random = random.Random(seed)
        self._topic = topic
        self._progress = progress
        self.strikes: Counter[str] = Counter()
        self.slowest_recovery_s = 0.0

    def strike(self) -> None:
        """One fault, and everything well again."""
        do = self._random.choice(
            (
                self.kill_leader,
                self.kill_controller,
                self.kill_any,
                self.pause_leader,
                self.pause_controller,
                self.restart_one,
                self.kill_and_start_at_once,
                self.kill_all,
                *((self.kill_zookeeper, self.pause_zookeeper) if self._zookeeper is not None else ()),
            )
        )
        self.strikes[do.__name__] += 1
        do()
        began = time.monotonic()
        self._progress()
        self._cluster.wait_in_sync()
        self.slowest_recovery_s = max(self.slowest_recovery_s, time.monotonic() - began)

    def kill_leader(self) -> None:
        self._kill(self._cluster.leader(self._topic))

    def kill_controller(self) -> None:
        self._kill(self._cluster.controller())

    def kill_any(self) -> None:
        self._kill(self._any())

    def kill_and_start_at_once(self) -> None:
        node = self._any()
        self._cluster.kill(node)
        self._cluster.start(node)

    def kill_all(self) -> None:
        for node in self._cluster.nodes:
            self._cluster.kill(node)
        self._cluster.start_all()

    def pause_leader(self) -> None:
        self._pause(self._cluster.leader(self._topic))

    def pause_controller(self) -> None:
        self._pause(self._cluster.controller())

    def kill_zookeeper(self) -> None:
        """Leaders serve on without it."""
        assert self._zookeeper is not None
        self._zookeeper.kill()
        self._progress()
        self._zookeeper.start()
        self._cluster.wait_ready()

    def pause_zookeeper(self) -> None:
        assert self._zookeeper is not None
        os.kill(self._zookeeper.pid, signal.SIGSTOP)
        time.sleep(self._random.choice(PAUSES_S))  # the fault itself
        self._progress()
        os.kill(self._zookeeper.pid, signal.SIGCONT)
        self._cluster.wait_ready()

    def restart_one(self) -> None:
        self._cluster.restart(self._any())

    def _kill(self, node: int) -> None:
        """The others serve on before it is back."""
        self._cluster.kill(node)
        self._progress()
        self._cluster.start(node)

    def _pause(self, node: int) -> None:
        self._cluster.pause(node)
        time.sleep(self._random.choice(PAUSES_S))  # the fault itself
        self._cluster.resume(node)
        self._cluster.wait_ready()

    def _any(self) -> int:
        running = [node.id for node in self._cluster.nodes if node.state is ProcessState.RUNNING]
        return self._random.choice(running)

"""Ids of schemas while nodes are killed: none is given twice, none is lost, and all nodes say the same."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.node.registry_calls import RegistryClient
from tests.support.waiting import wait_until

from ottla.testing.local_cluster import LocalCluster

WRITERS = 8
_DEADLINE_S = 120.0


class Writers:
    """Each registers one schema after the other, at any node, until it has an id for it."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.stopped = threading.Event()
        self.given: dict[str, set[int]] = {}

    @property
    def count(self) -> int:
        return len(self.given)

    def _registry(self) -> RegistryClient | None:
        with self._lock:
            node = self._random.choice(self._cluster.nodes)
        url = node.http_url
        return None if url is None else RegistryClient(f"{url}/schema-registry")

    def write(self, writer: int) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            # Half of them are registered by several writers at once, under different subjects.
            name = f"Shared{number}" if writer % 2 else f"Own{writer}x{number}"
            body = {"schema": json.dumps({"type": "record", "name": name, "fields": []})}
            while (schema_id := self._register(f"/subjects/s{writer}-{number}/versions", body)) is None:
                if self.stopped.wait(0.05):
                    return
            with self._lock:
                self.given.setdefault(name, set()).add(schema_id)

    def _register(self, path: str, body: dict[str, Any]) -> int | None:
        registry = self._registry()
        if registry is None:
            return None
        try:
            status, answer = registry.call("POST", path, body)
        except (OSError, urllib.error.URLError, ValueError):
            return None  # the node is gone, before the answer or in the middle of it
        assert status == 200 or status >= 500, answer
        return int(answer["id"]) if status == 200 else None


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_no_id_is_given_twice_whatever_is_killed(kills: int) -> None:
    with LocalCluster(nodes=3, settings={"http.listener": "http://127.0.0.1:0"}) as cluster:
        writers, chance = Writers(cluster, kills), random.Random(kills)
        with ThreadPoolExecutor(WRITERS) as pool:
            running = [pool.submit(writers.write, writer) for writer in range(WRITERS)]
            try:
                for _ in range(kills):
                    before = writers.count
                    wait_until(
                        lambda before=before: (
                            writers.count >= before + WRITERS or any(r.done() for r in running)
                        ),
                        "nothing is registered",
                        _DEADLINE_S,
                    )
                    node = chance.choice(cluster.nodes)
                    cluster.kill(node)
                    if chance.random() < 0.5:
                        # The others go on without it.
                        before = writers.count
                        wait_until(
                            lambda before=before: writers.count > before or any(r.done() for r in running),
                            "two nodes register nothing",
                            _DEADLINE_S,
                        )
                    cluster.start(node)
            finally:
                writers.stopped.set()
            for each in running:
                each.result()
        given = writers.given
        assert all(len(ids) == 1 for ids in given.values()), "a schema has two ids"
        ids = [each for found in given.values() for each in found]
        assert len(set(ids)) == len(ids), "an id is that of two schemas"

        def shown() -> list[list[tuple[str, int, int, str]]]:
            registries = [RegistryClient(f"{node.http_url}/schema-registry") for node in cluster.nodes]
            return [
                [
                    (each["subject"], each["version"], each["id"], each["schema"])
                    for page in range(100)
                    for each in registry.get(f"/schemas?offset={1000 * page}&limit=1000")
                ]
                for registry in registries
            ]

        wait_until(lambda: (found := shown())[0] == found[1] == found[2], "nodes differ", _DEADLINE_S)
        by_name = {json.loads(text)["name"]: schema_id for _, _, schema_id, text in shown()[0]}
        assert {name: by_name.get(name) for name in given} == {
            name: next(iter(each)) for name, each in given.items()
        }

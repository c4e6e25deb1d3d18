"""The blocking facade: the same clients, from code that has no event loop."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pyarrow as pa
import pytest

import ottla
from ottla.client.errors import BootstrapFailed
from ottla.protocol.errors import KafkaError


@pytest.fixture
def name(fresh_name: str, servers: str) -> str:
    with ottla.blocking.Admin(servers) as admin:
        admin.topics.create(fresh_name, partitions=2)
    return fresh_name


@pytest.mark.witness
def test_send_and_read(servers: str, name: str) -> None:
    with ottla.blocking.Producer(servers, value_serializer="str") as producer:
        assert producer.send(name, "first", partition=0).offset == 0
        later = producer.send_nowait(name, "second", partition=0)
        assert later.result().offset == 1
        assert [m.offset for m in producer.send_many(name, ["a", "b"], partition=1)] == [0, 1]
        with pytest.raises(KafkaError):
            producer.send(name, "x", partition=9)
    with ottla.blocking.Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        assert [record.value for record in consumer.poll(timeout_ms=60_000)] == [b"first", b"second"]
        consumer.seek((name, 0), 1)
        assert consumer.position((name, 0)) == 1
        assert consumer.poll_arrow(timeout_ms=60_000)["value"].to_pylist() == [b"second"]


def test_leaving_an_iteration_gives_back_what_was_not_used(servers: str, name: str) -> None:
    with ottla.blocking.Producer(servers) as producer:
        producer.send_arrow(name, pa.table({"value": [b"%d" % n for n in range(10)], "partition": [0] * 10}))
    with ottla.blocking.Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        taken = []
        for record in consumer:
            taken.append(record.value)
            if len(taken) == 4:
                break
        assert [record.value for record in consumer.poll(timeout_ms=60_000)] == [
            b"%d" % n for n in range(4, 10)
        ]


def test_a_cluster_that_is_not_there() -> None:
    with pytest.raises(BootstrapFailed, match=r"127\.0\.0\.1:1"), ottla.blocking.Producer("127.0.0.1:1"):
        pass
    with pytest.raises(ValueError, match="linger"):
        ottla.blocking.Producer("127.0.0.1:1", linger_ns=3)


@pytest.mark.slow
def test_a_forked_child_gets_an_error_instead_of_hanging(ottla_for_clients: ottla.LocalNode) -> None:
    with ottla.blocking.Producer(ottla_for_clients.bootstrap_servers) as producer:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                producer.flush()
                answer = b"no error"
            except RuntimeError as error:
                answer = str(error).encode()
            os.write(writer, answer)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            assert b"does not survive a fork" in pipe.read()
        os.waitpid(child, 0)


@pytest.mark.parametrize("kind", ["Producer", "Consumer"])
def test_the_facade_has_all_that_the_client_has(kind: str) -> None:
    """But for what only makes sense on a loop."""
    only_there = {"Producer": {"ready", "queue_arrow", "transactions"}, "Consumer": set()}[kind]
    public = {name for name in vars(getattr(ottla, kind)) if not name.startswith("_")}
    inside = {
        "owned_partitions",
        "assign_from_subscribed",
        "commit_before_revocation",
        "wake",
    }  # `MembershipOwner`
    missing = public - set(dir(getattr(ottla.blocking, kind))) - only_there - inside
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "from ottla.blocking import Admin, Consumer, Producer, ShareConsumer",
        "import ottla.blocking; ottla.blocking.ShareConsumer",
        "from ottla import blocking; blocking.ShareConsumer",
        "import ottla; ottla.blocking.ShareConsumer",
        "from ottla import blocking as b; from ottla.blocking import Admin; assert Admin is b.Admin",
    ],
)
def test_the_clients_are_imported_in_each_way(program: str) -> None:
    """In a new process: here they are imported already."""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_forgotten_close_warns(ottla_for_clients: ottla.LocalNode) -> None:
    for kind in (ottla.blocking.Producer, ottla.blocking.Consumer, ottla.blocking.Admin):
        client = kind(ottla_for_clients.bootstrap_servers)
        client.__enter__()
        with pytest.warns(ResourceWarning, match=f"{kind.__name__} was not closed"):
            client.__del__()
        client.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del client

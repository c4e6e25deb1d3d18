"""TLS beside Apache Kafka 4.3.1, by the same clients in one run: throughput, cost, and logins per second.

Both brokers have the same certificates (ECDSA over P-256) and their defaults: TLS 1.3 with AES-GCM.
"""

import contextlib
import shutil
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.apache_kafka import SERVER_JVM, ApacheKafka

from bench import loads
from bench.brokers import DEFAULTS, SINGLE_NODE, Broker, Kafka, Ottla
from bench.harness import Row, scaled, show
from bench.versus import Pair, without_kafka
from ottla.protocol.api import API
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.testing.cluster_plan import free_ports
from ottla.testing.security import LocalSecurity

SIZES = {100: (2_000_000, 500_000), 1_000: (400_000, 100_000)}
# 0.7 of the peer's CPU, as a ratio of theirs to ours.
COST_AIM = "≥ 1.43"
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" '
    'password="admin-secret" user_admin="admin-secret" user_bench="bench-secret";'
)
TOKEN = b"\0bench\0bench-secret"
CONNECTIONS_AT_ONCE = 4


def listener_settings(security: LocalSecurity) -> dict[str, str]:
    return {
        **security.server_settings,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL"
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        "inter.broker.listener.name": "PLAINTEXT",
    }


class TlsOttla(Ottla):
    """A node with a listener in plain text, one with TLS and one with SASL over TLS."""

    def __init__(self, directory: Path, security: LocalSecurity) -> None:
        super().__init__(directory, {})
        plain, self.tls_port, self.sasl_port = free_ports(3)
        listeners = f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{self.tls_port},SASL_SSL://127.0.0.1:{self.sasl_port}"
        self._command = [sys.executable, "-m", "ottla", "start", "--data-dir", str(directory)]
        settings = {**SINGLE_NODE, **listener_settings(security), "listeners": listeners}
        for name, value in settings.items():
            self._command += ["--set", f"{name}={value}"]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.tls_port}"


class ApacheKafkaWithTls(ApacheKafka):
    tls_port = sasl_port = 0

    def _write_configuration(self) -> None:
        super()._write_configuration()
        clients = f"PLAINTEXT://127.0.0.1:{self.port},SSL://127.0.0.1:{self.tls_port},"
        clients += f"SASL_SSL://127.0.0.1:{self.sasl_port}"
        with (self.directory / "server.properties").open("a") as file:  # the last line of a name counts
            file.write(f"listeners={clients},CONTROLLER://127.0.0.1:{self.controller_port}\n")
            file.write(f"advertised.listeners={clients}\n")


class TlsKafka(Kafka):
    def __init__(self, directory: Path, security: LocalSecurity) -> None:
        super().__init__(directory, {})
        properties = {**SINGLE_NODE, **DEFAULTS, **listener_settings(security)}
        self._kafka = ApacheKafkaWithTls(directory, properties=properties, jvm=SERVER_JVM)
        self._kafka.tls_port, self._kafka.sasl_port = self.tls_port, self.sasl_port = free_ports(2)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.tls_port}"


@contextlib.contextmanager
def both(security: LocalSecurity) -> Iterator[Pair]:
    missing = without_kafka()
    kinds: list[type[TlsOttla] | type[TlsKafka]] = [TlsOttla] if missing else [TlsOttla, TlsKafka]
    directories = [Path(tempfile.mkdtemp(prefix="ottla-bench-")) for _ in kinds]
    brokers: list[Broker] = [kind(path, security) for kind, path in zip(kinds, directories, strict=True)]
    if missing is not None:
        print(missing, flush=True)
    try:
        for broker in brokers:
            broker.start()
        yield Pair(brokers[0], brokers[1] if len(brokers) > 1 else None)
        for broker in brokers:
            broker.stop()
    finally:
        for broker, path in zip(brokers, directories, strict=True):
            broker.kill()
            shutil.rmtree(path, ignore_errors=True)


def logging_in(broker: Broker, security: LocalSecurity, count: int) -> loads.Load:
    """Connect, shake hands and log in with PLAIN, over and over, in a few threads."""
    assert isinstance(broker, TlsOttla | TlsKafka)
    port = broker.sasl_port
    context = ssl.create_default_context(cafile=str(security.directory / "ca.crt"))

    def log_in() -> None:
        with (
            socket.create_connection(("127.0.0.1", port), 60) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            for request, version, kind in (
                (SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse),
                (SaslAuthenticateRequest(auth_bytes=TOKEN), 2, SaslAuthenticateResponse),
            ):
                connection.sendall(b"".join(request_parts(version, 1, "bench", request)))
                (size,) = struct.unpack(">i", _read(connection, 4))
                _, response = read_response(API[request.API_KEY], version, _read(connection, size))
                assert isinstance(response, kind)
                assert not response.error_code, response

    def run() -> float:
        def some() -> None:
            for _ in range(count // CONNECTIONS_AT_ONCE):
                log_in()

        threads = [threading.Thread(target=some) for _ in range(CONNECTIONS_AT_ONCE)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return count / (time.perf_counter() - begin)

    return run


def _read(connection: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the broker ended the connection"
        data += part
    return data


def rows() -> Iterator[Row]:
    rounds = scaled(5, 3)
    security = LocalSecurity("SSL", client_auth="none")
    with contextlib.ExitStack() as stack:
        security.write(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-")))
        pair = stack.enter_context(both(security))
        client = {name.replace(".", "_"): value for name, value in security.librdkafka_settings.items()}
        for size, (full, short) in SIZES.items():
            count, topic = scaled(full, short), f"size-{size}"
            shown = f"{size} B" if size < 1000 else f"{size // 1000} kB"
            pair.each(lambda broker: loads.create(broker, topic, client=client))  # noqa: B023

            def produce(broker: Broker) -> loads.Load:
                return loads.producing(broker, topic, size, count, **client)  # noqa: B023

            def consume(broker: Broker) -> loads.Load:
                return loads.consuming(broker, topic, 1, count, **client)  # noqa: B023

            for way, load in (("produce", produce), ("consume", consume)):
                aim = "≥ 1.5" if size == 100 else "≥ 1"
                name = f"{way} {shown}, TLS"
                yield from pair.rows(name, load, count, rounds, aim=aim, cost_aim=COST_AIM)
        count = scaled(2000, 400)
        yield from pair.rows(
            "connect and log in, SASL_SSL",
            lambda broker: logging_in(broker, security, count),
            count,
            rounds,
            unit="logins/s",
            cost_aim="",
        )


if __name__ == "__main__":
    show(rows())

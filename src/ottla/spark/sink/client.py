"""The sink's client, kept by a process from task to task: event loop, connections, limits of the brokers.

Spark reuses a Python worker for later tasks and batches, and forks new ones. Clients are kept by process id,
so a forked process creates its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from ottla.client.admin.configs import ConfigsAdmin, ResourceType
from ottla.client.admin.requests import AdminRequests
from ottla.client.network_client import NetworkClient
from ottla.client.producer import Producer
from ottla.client.producer.config import ProducerConfig
from ottla.client.settings import connection_config, settings_of
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.runtime.loop import LoopThread
from ottla.runtime.runtime import Runtime
from ottla.spark.sink.decision_log import DecisionLog
from ottla.spark.sink.options import SinkOptions, TwoPhaseCommitMode
from ottla.spark.sink.transaction_end import TransactionEnder

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CLIENTS = 8
MAX_RUNS = 64
KAFKA_MAX_TIMEOUT_MS = 900_000
KAFKA_DEFAULT_TIMEOUT_MS = 60_000
TWO_PHASE_COMMIT_VERSION = 6
# Larger than the default of a client that sends records one by one: rows come by the thousand.
BUFFER_BYTES = 64 * 1024 * 1024
_NO_TWO_PHASE = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION)

_clients: dict[tuple[int, SinkOptions], SinkClient] = {}


def sink_client(options: SinkOptions) -> SinkClient:
    """This process's client for these options; created if there is none."""
    key = os.getpid(), options
    client = _clients.get(key)
    if client is None:
        for old in [each for each in _clients if each[0] != key[0]]:
            del _clients[old]  # inherited by fork; its owner closes it
        while len(_clients) >= MAX_CLIENTS:
            next(iter(_clients.values())).close()
        client = _clients[key] = SinkClient(options)
    return client


class SinkClient:
    """Runs coroutines on an event loop in its own thread; `call` blocks until the result is there."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self._thread = LoopThread("ottla-sink")
        self._thread.start()
        self._runtime = Runtime.real(pool_workers=1)
        self._config = settings_of(ProducerConfig, options.settings, {})
        self._plain: Producer | None = None
        self._two_phase: bool | None = False if options.two_phase is TwoPhaseCommitMode.OFF else None
        self._timeout_ms = options.transaction_timeout_ms
        # When the driver last ended open transactions, and last looked for abandoned writes (monotonic).
        self.last_clean_up = self.last_abandoned_writes = float("-inf")
        self.clean_up_failed = False  # the last one; the next batch tries again, also one without rows
        self._runs: dict[str, str] = {}  # by scope, the run of which this process has committed a batch
        self.call(self._open())

    async def _open(self) -> None:
        timeout_ms = self._config.max_block_ms
        self.cluster = NetworkClient(self._runtime, connection_config(self._config))
        self.decision_log = DecisionLog(
            self.cluster,
            self.options.decision_topic,
            timeout_ms=timeout_ms,
            data_topic=self.options.topic,
        )
        self.transactions = TransactionEnder(self.cluster, timeout_ms=timeout_ms)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(coroutine)

    def note_run(self, scope: str, run: str) -> None:
        """Note that a batch of the run is committed, so that all of earlier runs is ended."""
        self._runs.pop(scope, None)
        while len(self._runs) >= MAX_RUNS:
            self._runs.pop(next(iter(self._runs)))
        self._runs[scope] = run

    def is_known_run(self, scope: str, run: str) -> bool:
        return self._runs.get(scope) == run

    def note_failed_clean_up(self) -> None:
        self.clean_up_failed = True
        self.last_clean_up = float("-inf")

    def close(self) -> None:
        async def close_all() -> None:
            if self._plain is not None:
                await self._plain.close(timeout_ms=1_000)
            await self.decision_log.close()
            await self.cluster.close()

        _clients.pop((os.getpid(), self.options), None)
        self.call(close_all())
        self._thread.stop()
        self._runtime.close()

    async def plain_producer(self) -> Producer:
        """The producer for at-least-once writes, shared by all tasks of this process."""
        if self._plain is None:
            producer = self._producer()
            await producer.start()
            self._plain = producer
        return self._plain

    async def transactional_producer(self, transactional_id: str) -> Producer:
        """A producer that has initialised this id, with the longest transaction timeout that is allowed."""
        while True:
            two_phase = await self._uses_two_phase_commit()
            timeout_ms = 1 if two_phase else await self._transaction_timeout_ms()
            producer = self._producer(
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                transaction_two_phase_commit_enable=two_phase,
            )
            try:
                await producer.start()
                return producer
            except KafkaError as error:
                if not self._adapt_to(error, two_phase=two_phase, timeout_ms=timeout_ms):
                    raise

    def _producer(self, **more: Any) -> Producer:
        settings: dict[str, Any] = dict(self.options.settings)
        settings.pop("transaction.timeout.ms", None)
        if "buffer.memory" not in settings:
            settings["buffer.memory"] = max(BUFFER_BYTES, 2 * self._config.max_request_size)
        return Producer(settings, cluster=self.cluster, **more)

    async def _uses_two_phase_commit(self) -> bool:
        """Whether transactions are opened for two-phase commit: by the option, or if brokers support it."""
        if self._two_phase is None:
            connection = await self.cluster.any_connection()
            versions = connection.versions
            self._two_phase = versions is not None and versions.supports(
                InitProducerIdRequest.API_KEY, TWO_PHASE_COMMIT_VERSION
            )
            if self.options.two_phase is TwoPhaseCommitMode.REQUIRED and not self._two_phase:
                self._two_phase = None
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "twoPhaseCommit=true: these brokers do not offer two-phase commits (version "
                    f"{TWO_PHASE_COMMIT_VERSION} of InitProducerId)",
                )
        return self._two_phase

    async def _transaction_timeout_ms(self) -> int:
        if self._timeout_ms is None:
            self._timeout_ms = await self._longest_timeout_ms()
        return self._timeout_ms

    async def _longest_timeout_ms(self) -> int:
        """`transaction.max.timeout.ms` of the brokers; Kafka's default if it cannot be read."""
        name = "transaction.max.timeout.ms"
        try:
            view = self.cluster.metadata if self.cluster.metadata.brokers else await self.cluster.refresh()
            configs = await ConfigsAdmin(AdminRequests(self.cluster, self._config.max_block_ms)).describe(
                ResourceType.BROKER, str(min(view.brokers)), keys=[name]
            )
            return int(configs[name].value or "")
        except (KafkaError, KeyError, ValueError) as error:
            log.info("cannot read %s of the brokers (%s); using %d", name, error, KAFKA_MAX_TIMEOUT_MS)
            return KAFKA_MAX_TIMEOUT_MS

    def _adapt_to(self, error: KafkaError, *, two_phase: bool, timeout_ms: int) -> bool:
        """Adapt to an error of the coordinator; whether to try again."""
        if two_phase:
            if error.code not in _NO_TWO_PHASE or self.options.two_phase is not TwoPhaseCommitMode.AUTO:
                return False
            self._two_phase = False
            return True
        if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT or self.options.transaction_timeout_ms:
            return False
        shorter = [each for each in (KAFKA_MAX_TIMEOUT_MS, KAFKA_DEFAULT_TIMEOUT_MS) if each < timeout_ms]
        self._timeout_ms = shorter[0] if shorter else None
        return bool(shorter)

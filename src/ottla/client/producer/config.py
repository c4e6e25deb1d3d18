"""A producer's settings, with Kafka's names, meanings and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client.settings import ClientConfig
from ottla.records.compression import check_level
from ottla.records.types import Codec

MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5
ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1, -1: -1, 0: 0, 1: 1}


@dataclass(frozen=True, slots=True)
class ProducerConfig(ClientConfig):
    """`acks` is "all", 1 or 0. Idempotence, on by default, keeps the order and prevents duplicates across
    retries; it needs acks=all and at most five requests in flight for each broker. `compression_level` is for
    the codec that is used; a level for one codec, as Kafka has it, comes before it.
    """

    client_id: str | None = "ottla-producer"
    acks: str | int = "all"
    batch_size: int = 16_384
    linger_ms: float = 5
    buffer_memory: int = 32 * 1024 * 1024
    compression_type: str = "none"
    compression_level: int | None = None
    compression_gzip_level: int | None = None
    compression_lz4_level: int | None = None
    compression_zstd_level: int | None = None
    delivery_timeout_ms: int = 120_000
    enable_idempotence: bool | None = None
    max_block_ms: int = 60_000
    max_in_flight_requests_per_connection: int = 5
    max_request_size: int = 1_048_576
    retries: int = 2**31 - 1
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_ignore_keys: bool = False
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    transaction_two_phase_commit_enable: bool = False

    def __post_init__(self) -> None:
        if self.acks not in ACKS:
            raise ValueError(f'acks={self.acks!r}: allowed are "all", 1 and 0')
        if self.compression_type.upper() not in Codec.__members__:
            names = ", ".join(name.lower() for name in Codec.__members__)
            raise ValueError(f"compression.type={self.compression_type!r}: allowed are {names}")
        try:
            for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
                check_level(codec, self._level_of(codec))
            check_level(self.codec, self.level)
        except ValueError as error:
            raise ValueError(f"compression.level: {error}") from None
        for name in (
            "batch_size",
            "buffer_memory",
            "max_in_flight_requests_per_connection",
            "max_request_size",
        ):
            if getattr(self, name) < (0 if name == "batch_size" else 1):
                raise ValueError(f"{name.replace('_', '.')}={getattr(self, name)} is too small")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ValueError(
                f"delivery.timeout.ms={self.delivery_timeout_ms} must be at least "
                f"linger.ms + request.timeout.ms = {self.linger_ms + self.request_timeout_ms:.0f}"
            )
        if self.enable_idempotence or self.transactional_id is not None:
            wrong = self._against_idempotence()
            if wrong is not None:
                asked = "transactional.id" if self.transactional_id is not None else "enable.idempotence"
                raise ValueError(f"{asked} cannot be kept with {wrong}")

    def _against_idempotence(self) -> str | None:
        if ACKS[self.acks] != -1:
            return f"acks={self.acks}: it needs acks=all"
        if self.max_in_flight_requests_per_connection > MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
            asked = self.max_in_flight_requests_per_connection
            return f"max.in.flight.requests.per.connection={asked}: {MAX_IN_FLIGHT_WITH_IDEMPOTENCE} at most"
        if self.retries == 0:
            return "retries=0"
        if self.enable_idempotence is False:
            return "enable.idempotence=false"
        return None

    @property
    def required_acks(self) -> int:
        return ACKS[self.acks]

    @property
    def idempotent(self) -> bool:
        """Whether idempotence is requested, or not excluded by the other settings."""
        if self.enable_idempotence is not None:
            return self.enable_idempotence
        return self._against_idempotence() is None

    @property
    def level(self) -> int | None:
        """The level of compression; None for the codec's default."""
        own = self._level_of(self.codec)
        return self.compression_level if own is None else own

    def _level_of(self, codec: Codec) -> int | None:
        levels = {
            Codec.GZIP: self.compression_gzip_level,
            Codec.LZ4: self.compression_lz4_level,
            Codec.ZSTD: self.compression_zstd_level,
        }
        return levels.get(codec)

    @property
    def codec(self) -> Codec:
        return Codec[self.compression_type.upper()]

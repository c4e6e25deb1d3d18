"""The settings of the transaction coordinator, by Kafka's names and with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_EPOCH: Final = 2**15 - 1
NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a transaction in two-phase commit, which an external coordinator decides at any time."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    transactional_id_expiration_ms: int = 7 * 24 * 3600 * 1000
    transaction_max_timeout_ms: int = 900_000
    abort_timed_out_interval_ms: int = 10_000
    remove_expired_interval_ms: int = 3_600_000
    two_phase_commit_enabled: bool = False
    marker_retry_backoff_ms: int = 20
    marker_retry_backoff_max_ms: int = 1_000
    max_epoch: int = MAX_EPOCH
    """The last epoch, after which a new producer id begins. Only tests set it, to reach it soon."""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The node's settings, with the cluster's finalized level of the feature `transaction.version`, which
    applies to transactions that no client ends.
    """

    config: TransactionConfig
    transaction_version: int

"""Subscriptions to the metrics of clients (KIP-714), as the settings of `client-metrics` resources give them.

The patterns of `match` are written by an operator and applied to what clients send: RE2 matches them in
linear time, so that no client id can stall the node (decision 0082).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.config.definitions.group import CLIENT_METRICS
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.re2_syntax import compile_re2

DEFAULT_INTERVAL_MS: Final = 5 * 60 * 1000
_MATCH_PARAMETERS: Final = frozenset(
    (
        "client_id",
        "client_instance_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)


@dataclass(frozen=True, slots=True)
class ClientMetricsSubscription:
    """Which clients push which metrics, and how often."""

    metrics: tuple[str, ...]
    interval_ms: int
    # The texts of `match`, by which two subscriptions are compared; `patterns` has the same, compiled.
    match: tuple[str, ...]

    def patterns(self) -> dict[str, Any]:
        return parse_matching_patterns(self.match)


def parse_matching_patterns(texts: Iterable[str]) -> dict[str, Any]:
    """Read `name=pattern` texts. INVALID_CONFIG names one that is illegal."""
    found = {}
    for text in texts:
        # As in Java, empty parts at the end do not count.
        parts = text.rstrip("=").split("=")
        if len(parts) != 2 or parts[0].strip() not in _MATCH_PARAMETERS:
            raise _illegal(text)
        found[parts[0].strip()] = _compile(parts[1].strip(), text)
    return found


def _compile(pattern: str, text: str) -> Any:
    try:
        return compile_re2(pattern)
    except ValueError:
        raise _illegal(text) from None


def _illegal(text: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_CONFIG,
        f"Illegal client matching pattern: {text}; expected NAME=PATTERN with one of "
        f"{', '.join(sorted(_MATCH_PARAMETERS))}, and a pattern in RE2's syntax",
    )


def subscriptions_of(
    configs: Mapping[ConfigResource, Mapping[str, str]],
) -> dict[str, ClientMetricsSubscription]:
    """Return the subscriptions of the metadata, by name."""
    return {
        resource.name: _subscription(values)
        for resource, values in configs.items()
        if resource.type == ConfigResourceType.CLIENT_METRICS and values
    }


def _subscription(values: Mapping[str, str]) -> ClientMetricsSubscription:
    parsed = {
        name: key.parse(values[name]) if name in values else key.default
        for name, key in CLIENT_METRICS.items()
    }
    metrics, interval_ms, match = parsed["metrics"], parsed["interval.ms"], parsed["match"]
    assert isinstance(metrics, tuple)
    assert isinstance(interval_ms, int)
    assert isinstance(match, tuple)
    return ClientMetricsSubscription(metrics, interval_ms, match)

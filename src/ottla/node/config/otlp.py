"""The settings of an OpenTelemetry collector, to which metrics of clients and traces go by OTLP over HTTP."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

METRICS: Final = "v1/metrics"
TRACES: Final = "v1/traces"


def signal_url(endpoint: str, signal: str) -> str:
    """The address of one kind of data below the collector's base. ValueError if that is no http or https
    address.

    >>> signal_url("http://collector:4318", METRICS)
    'http://collector:4318/v1/metrics'
    """
    where = urlsplit(endpoint)
    if where.scheme not in ("http", "https") or not where.hostname or where.query or where.fragment:
        raise ValueError(f"{endpoint!r} is not the http or https address of a collector")
    return f"{endpoint.rstrip('/')}/{signal}"


def parse_headers(text: str) -> dict[str, str]:
    """Read `name=value` pairs with commas between them. ValueError names one that is none.

    >>> parse_headers("authorization=Bearer x,tenant=a")
    {'authorization': 'Bearer x', 'tenant': 'a'}
    """
    found = {}
    for pair in text.split(","):
        if not pair.strip():
            continue
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"header {name.strip()!r} is not of the form name=value")
        found[name.strip()] = value.strip()
    return found

"""The extensions that each broker has, unless it is made without them."""

from __future__ import annotations

from typing import Final

from ottla.node.registry.extension import SchemaRegistryExtension
from ottla.node.remote.extension import TieredStorageExtension
from ottla.node.tables.extension import TopicTablesExtension
from ottla.node.telemetry.extension import ClientTelemetryExtension

STANDARD_EXTENSIONS: Final = (
    TieredStorageExtension,
    TopicTablesExtension,
    ClientTelemetryExtension,
    SchemaRegistryExtension,
)

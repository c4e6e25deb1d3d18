"""The settings of a topic's table: what can be checked when they are set."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from ottla.node.config.definitions.config_def import Value
from ottla.node.config.node_config import NodeConfig
from ottla.protocol.errors import ErrorCode, KafkaError


def check_table_settings(config: NodeConfig, values: Mapping[str, Value], *, is_new: bool) -> None:
    """Raise INVALID_CONFIG unless a table can be made with these settings of a topic.

    `is_new`: the topic gets one now, so what makes it has to be installed.
    """
    kind, text = str(values["table.schema.type"]), str(values["table.schema"])
    partition_by = str(values["table.partition.by"])
    if text and kind in ("none", "registry"):
        raise _invalid("table.schema needs table.schema.type: set it to json, avro or protobuf as well")
    if kind == "registry" and config["table.schema.registry.url"] is None:
        raise _invalid(
            "table.schema.type=registry needs table.schema.registry.url in the settings of brokers"
        )
    if values["table.mode"] == "latest":
        policy = values["cleanup.policy"]
        if "compact" not in (policy if isinstance(policy, list | tuple) else str(policy)):
            raise _invalid("table.mode=latest needs cleanup.policy=compact: set it as well")
        if "delete" in (policy if isinstance(policy, list | tuple) else str(policy)):
            raise _invalid(
                "table.mode=latest needs cleanup.policy=compact without delete: its table would keep rows "
                "that retention has deleted. Set cleanup.policy=compact, or table.mode=append"
            )
        if partition_by != "none":
            raise _invalid(
                f"table.mode=latest has no table.partition.by={partition_by}: its table is partitioned by "
                "the partition of the topic"
            )
    columns: set[str] = set()
    if kind in ("json", "avro", "protobuf"):
        if not text:
            raise _invalid(f"table.schema.type={kind} needs table.schema: set it to the text of the schema")
        from ottla.schemas.errors import SchemaError
        from ottla.schemas.schema import make_schema

        try:
            columns = {name for name, _ in make_schema("table.schema", kind, text).columns()}
        except SchemaError as error:
            raise _invalid(f"invalid table.schema: {error}") from None
    if partition_by.startswith("field:"):
        name = partition_by.removeprefix("field:")
        if kind == "registry":
            raise _invalid(
                "table.partition.by=field:NAME needs a table.schema; with a registry use day or hour"
            )
        if name not in columns:
            raise _invalid(f"table.partition.by={partition_by}: table.schema has no field {name!r}")
    is_asked_for = is_new and values["table.format"] == "iceberg"
    if is_asked_for and config.is_broker and find_spec("pyiceberg") is None:
        raise _invalid("table.format=iceberg needs pyiceberg: pip install 'ottla[tables]' on every broker")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)

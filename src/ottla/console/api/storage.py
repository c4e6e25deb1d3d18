"""Log directories of brokers, and the files of partitions on this machine."""

from __future__ import annotations

from typing import Any, Final

from ottla.console.api_request import ApiRequest, ConsoleError, bad_request, not_available
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.console.files.inspector import NodeInspector
from ottla.console.files.partition_files import MAX_ROWS, partition_files, read_rows, shown_kind
from ottla.log.dump.dump import NotReadable
from ottla.protocol.acl import AclOperation
from ottla.protocol.names import CLUSTER_METADATA_TOPIC, TopicPartition, invalid_topic_name

_LARGEST: Final = 20
_DEFAULT_ROWS: Final = 200


async def log_dirs(context: ApiContext, _request: ApiRequest) -> dict[str, Any]:
    found = await (await context.access.admin()).log_dirs.describe()
    items = []
    for each in found:
        largest = sorted(each.replicas.items(), key=lambda entry: -entry[1].size_bytes)[:_LARGEST]
        items.append(
            {
                "broker": each.broker_id,
                "path": each.path,
                "error": each.error.name if each.error else None,
                "totalBytes": each.total_bytes,
                "usableBytes": each.usable_bytes,
                "replicas": len(each.replicas),
                "sizeBytes": sum(replica.size_bytes for replica in each.replicas.values()),
                "largest": [
                    {
                        "topic": partition.topic,
                        "partition": partition.partition,
                        "sizeBytes": replica.size_bytes,
                        "offsetLag": replica.offset_lag,
                        "future": replica.is_future,
                    }
                    for partition, replica in largest
                ],
            }
        )
    inspector = context.services.inspector
    scrub = None if inspector is None else await inspector.scrub()
    return {
        "items": items,
        "scrub": None
        if scrub is None
        else {
            "passes": scrub.passes,
            "progress": scrub.progress,
            "partition": scrub.partition,
            "lastPassMs": scrub.last_pass_ms,
            "bytesRead": scrub.bytes_read,
            "findings": list(scrub.findings),
        },
        "problems": [],
    }


async def _directory(
    context: ApiContext, request: ApiRequest, *, records: bool
) -> tuple[NodeInspector, TopicPartition, str]:
    """The directory of a partition, for a principal who may see it: its files are not read by the cluster,
    which would check that.
    """
    topic, partition = request.params["topic"], request.integer("partition", 0, high=2**31 - 1)
    inspector = context.services.inspector
    if inspector is None:
        raise not_available("files are shown by a console that runs in a node, or with --data-dir")
    if invalid_topic_name(topic) is not None:
        raise bad_request(f"{topic[:80]!r} is no name of a topic")
    if topic == CLUSTER_METADATA_TOPIC:
        await context.require_cluster(AclOperation.ALTER)
    else:
        await context.require_cluster(AclOperation.DESCRIBE)
        await context.require_topic(topic, AclOperation.READ if records else AclOperation.DESCRIBE)
    at = TopicPartition(topic, partition)
    directory = await inspector.directory_of(at)
    if directory is None:
        raise ConsoleError(404, "NOT_FOUND", f"there is no replica of {at} on this machine")
    return inspector, at, directory


async def files(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    inspector, partition, directory = await _directory(context, request, records=False)
    runtime = context.runtime
    found = await runtime.pool.run(partition_files, runtime.disk, directory)
    state = await inspector.state_of(partition)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "broker": inspector.node_id,
        **found,
        **({} if state is None or state.producers is None else {"producers": state.producers}),
        "state": None
        if state is None
        else {
            "logStartOffset": state.log_start_offset,
            "endOffset": state.end_offset,
            "highWatermark": state.high_watermark,
            "lastStableOffset": state.last_stable_offset,
            "recoveryPoint": state.recovery_point,
        },
    }


async def rows(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    records = request.flag("records")
    if records and not context.config.payloads:
        raise ConsoleError(403, "NO_PAYLOADS", "this console does not show what messages hold")
    _, partition, directory = await _directory(context, request, records=records)
    name = request.required("name")
    runtime = context.runtime

    def read() -> Any:
        return read_rows(
            runtime.disk,
            directory,
            name,
            position=request.integer("position", 0),
            after=request.integer("after", 0),
            limit=request.integer("limit", _DEFAULT_ROWS, low=1, high=MAX_ROWS),
            records=records,
            topic=partition.topic,
        )

    try:
        found = await runtime.pool.run(read)
    except FileNotFoundError:
        raise ConsoleError(404, "NOT_FOUND", f"{partition} has no file of this name") from None
    except NotReadable as error:
        raise bad_request(str(error)) from None
    return {
        "name": name,
        "kind": shown_kind(name),
        "rows": found.rows,
        "next": found.next,
        "problems": [],
    }


ROUTES: Final = (
    ConsoleRoute("GET", "/api/log-dirs", log_dirs),
    ConsoleRoute("GET", "/api/topics/{topic}/files", files),
    ConsoleRoute("GET", "/api/topics/{topic}/files/rows", rows),
)

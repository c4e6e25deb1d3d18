"""`ottla log`: read the files of partitions, without a node.

`dump` prints what `kafka-dump-log` prints: a line for each batch, record or entry, with the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import FAILED, CliError, WrongUsage
from ottla.cli.options import Json
from ottla.cli.output import note, print_json_line, print_line

if TYPE_CHECKING:
    from ottla.log.dump.dump import Row

HELP: Final = "Read the files of partitions; needs no node."
DECODERS: Final = {
    "metadata": "__cluster_metadata",
    "offsets": "__consumer_offsets",
    "transactions": "__transaction_state",
    "share-state": "__share_group_state",
    "remote-log": "__remote_log_metadata",
    "none": "",
}
app = group("log", HELP)


@command(app, "dump")
def dump(
    paths: Annotated[
        list[str], Argument(metavar="PATH...", help="Files, or directories of partitions or of a node.")
    ],
    records: Annotated[
        bool, Option("--records", "-r", help="Show the records in the batches, not only the batches.")
    ] = False,
    decode: Annotated[
        str | None,
        Option(
            "--decode",
            choices=list(DECODERS),
            help="Decode records as those of an internal topic, wherever the file is.",
        ),
    ] = None,
    verify: Annotated[
        bool, Option("--verify", help="Compare indexes with the log beside them; print only problems.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the content of segments, indexes, snapshots and checkpoints.

    Records of internal topics (metadata, committed offsets, groups, transactions) are decoded. Exits with 1
    if something is damaged.
    """
    import os

    from ottla.log.dump.dump import NotReadable, readable_files
    from ottla.runtime.disk import RealDisk

    disk = RealDisk()
    damaged = False
    for path in paths:
        if not os.path.exists(path):
            raise WrongUsage(f"{path}: there is no such file or directory")
        files = readable_files(disk, os.path.abspath(path))
        if not files:
            raise CliError(f"{path}: there are no files of a partition in this directory")
        for file in files:
            try:
                damaged |= _dump(file, as_json=as_json, records=records, decode=decode, verify=verify)
            except NotReadable as error:
                raise CliError(str(error)) from None
    if damaged:
        raise click.exceptions.Exit(FAILED)


def _dump(path: str, *, as_json: bool, records: bool, decode: str | None, verify: bool) -> bool:
    from ottla.log.dump.dump import Row, RowKind, dump_file
    from ottla.log.dump.index_check import check_index
    from ottla.runtime.disk import RealDisk

    disk = RealDisk()
    topic = DECODERS[decode] if decode is not None else None
    if not as_json and not verify:
        print_line(f"Dumping {path}")
    damaged = False
    for row in dump_file(disk, path, records=records, decode=topic):
        if row.kind is RowKind.PROBLEM:
            damaged = True
        elif verify:
            continue
        _show(path, row, as_json=as_json)
    if verify:
        for text in check_index(disk, path):
            damaged = True
            _show(path, Row(RowKind.PROBLEM, {"problem": text}), as_json=as_json)
    return damaged


def _show(path: str, row: Row, *, as_json: bool) -> None:
    from ottla.log.dump.dump import RowKind

    if as_json:
        print_json_line({"file": path, "kind": row.kind.value, **_plain(row.data)})
    elif row.kind is RowKind.PROBLEM:
        note(f"ottla: {path}: {row.data['problem']}")
    elif row.kind is RowKind.RECORD:
        print_line("| " + _record_line(row.data))
    else:
        print_line(" ".join(f"{name}: {_text(value)}" for name, value in row.data.items()))


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """A value for JSON: bytes as text, or as base64 if they are not UTF-8."""
    shown: dict[str, Any] = {}
    for name, value in data.items():
        if name == "headers":
            shown[name] = [{"key": key, **_bytes("value", content)} for key, content in value]
        elif isinstance(value, bytes) or (name in ("key", "value") and value is None):
            shown |= _bytes(name, value)
        else:
            shown[name] = value
    return shown


def _bytes(name: str, content: bytes | None) -> dict[str, Any]:
    from ottla.cli.formats import json_bytes

    return json_bytes(name, content)


def _record_line(data: dict[str, Any]) -> str:
    parts = [f"{name}: {data[name]}" for name in ("offset", "timestamp", "keySize", "valueSize", "sequence")]
    parts.append(f"headerKeys: [{','.join(key for key, _ in data['headers'])}]")
    if "control" in data:
        parts.append(f"control: {_json(data['control'])}")
    elif "decoded" in data:
        parts += [f"{name}: {_json(value)}" for name, value in data["decoded"].items()]
    else:
        parts += [f"{name}: {_text(data[name])}" for name in ("key", "value") if data[name] is not None]
    return " ".join(parts)


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        from ottla.cli.formats import readable

        return readable(value)
    return "-" if value is None else str(value)

"""What `ottla storage format` is to do: which directories, for which node, with which voters.

It follows from the options and, where one is given, from the node's server.properties.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.cli.errors import CliError, WrongUsage

if TYPE_CHECKING:
    from ottla.node.config.node_config import NodeConfig
    from ottla.raft.voters import VoterSet

_LISTENER: Final = "CONTROLLER"


@dataclass(frozen=True, slots=True)
class FormatPlan:
    paths: list[str]
    node_id: int
    metadata_path: str
    """The directory of the metadata log, one of the paths."""
    directory_id: bytes | None = None
    """The id that the directory of the metadata log must have, if the voters say so."""
    voters: VoterSet | None = None
    """The first voters of a dynamic quorum, if this node has to know them."""


def plan_format(
    directories: Sequence[str],
    file: str | None,
    node_id: int | None,
    *,
    standalone: bool,
    initial_controllers: str | None,
    no_initial_controllers: bool,
    new_directory_id: Callable[[], bytes],
) -> FormatPlan:
    chosen = [standalone, initial_controllers is not None, no_initial_controllers]
    if sum(chosen) > 1:
        raise WrongUsage(
            "--standalone, --initial-controllers and --no-initial-controllers exclude each other"
        )
    config = None if file is None else _config(file)
    paths = [os.path.abspath(path) for path in directories]
    metadata_path = paths[0] if paths else ""
    if config is not None:
        if node_id is not None and config.is_set("node.id") and config.node_id != node_id:
            raise WrongUsage(f"--node-id is {node_id}, and {file} says {config.node_id}")
        node_id = config.node_id if node_id is None else node_id
        if not paths:
            metadata_path = os.path.abspath(config.metadata_log_dir)
            paths = [os.path.abspath(path) for path in config.log_dirs]
            paths = list(dict.fromkeys((*paths, metadata_path)))
        if config.names("controller.quorum.voters") and any(chosen):
            raise WrongUsage(f"{file} sets controller.quorum.voters: then the quorum is not a dynamic one")
        dynamic = config.is_controller and not config.alone and not config.names("controller.quorum.voters")
        if dynamic and not any(chosen):
            raise WrongUsage(
                f"{file} is of a controller and sets no controller.quorum.voters: say how it comes into the "
                "quorum, with --standalone, --initial-controllers or --no-initial-controllers"
            )
    if not paths:
        raise WrongUsage("no directory is given: name them, or give a file with --config")
    id = 1 if node_id is None else node_id
    if standalone:
        if config is None:
            raise WrongUsage("--standalone needs --config: the voter's address is in server.properties")
        directory_id = new_directory_id()
        return FormatPlan(paths, id, metadata_path, directory_id, _alone(config, id, directory_id))
    if initial_controllers is not None:
        listener = config.controller_listener_names[0] if config is not None else _LISTENER
        voters = _parse(initial_controllers, listener)
        own = voters.voters.get(id)
        if own is None:
            raise WrongUsage(f"--initial-controllers: node {id} is not among {voters.ids}")
        return FormatPlan(paths, id, metadata_path, own.key.directory_id, voters)
    return FormatPlan(paths, id, metadata_path)


def _config(file: str) -> NodeConfig:
    from ottla.cli.start import Options, UsageError, settings_of
    from ottla.node.config.errors import ConfigError
    from ottla.node.config.node_config import NodeConfig

    try:
        return NodeConfig(settings_of(Options(file=file)))
    except UsageError as error:
        raise CliError(str(error)) from None
    except ConfigError as error:
        raise CliError(f"{file}: {error}") from None


def _alone(config: NodeConfig, node_id: int, directory_id: bytes) -> VoterSet:
    """This controller, as the only voter."""
    from ottla.raft.voters import ReplicaKey, Voter, VoterSet
    from ottla.runtime.address import Address

    endpoints = {
        each.name: Address(each.host or "localhost", each.port) for each in config.advertised_of_controller
    }
    if not config.is_controller or not endpoints:
        raise WrongUsage("--standalone is for a controller: process.roles and listeners name none")
    return VoterSet.of(Voter(ReplicaKey(node_id, directory_id), endpoints))


def _parse(text: str, listener: str) -> VoterSet:
    """`id@host:port:directory-id`, comma separated, as Kafka writes it."""
    from ottla.protocol.names import parse_uuid
    from ottla.raft.voters import ReplicaKey, Voter, VoterSet
    from ottla.runtime.address import Address

    voters: dict[int, Voter] = {}
    for item in (part.strip() for part in text.split(",")):
        id_text, at, rest = item.partition("@")
        address, colon, directory = rest.rpartition(":")
        host, port_colon, port = address.rpartition(":")
        if not (at and colon and port_colon and host and id_text.isdecimal() and port.isdecimal()):
            raise WrongUsage(f"--initial-controllers: {item!r} is not of the form id@host:port:directory-id")
        try:
            directory_id = parse_uuid(directory)
        except ValueError as error:
            raise WrongUsage(f"--initial-controllers: {item!r}: {error}") from None
        if int(id_text) in voters:
            raise WrongUsage(f"--initial-controllers: {id_text} is named twice")
        endpoint = Address(host.strip("[]"), int(port))
        voters[int(id_text)] = Voter(ReplicaKey(int(id_text), directory_id), {listener: endpoint})
    return VoterSet(voters)

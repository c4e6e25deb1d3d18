"""The environments of a project: the same definitions, run as `dev` here and as `prod` there.

A file beside the specification names them, with what differs: brokers, a prefix of topics, storage, settings.
Each has its own checkpoints, its own tables and its own state. Secrets are not in the file: it names the file
of client settings that has them, or variables of the environment.

Two environments that would write to the same topics, or count what they have read in the same storage, are
refused: each would write all rows once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ottla.spark.pipelines.moved_project import known_storage
from ottla.spark.pipelines.plan import Definitions
from ottla.spark.pipelines.project import (
    BOOTSTRAP,
    CREATE_TOPICS,
    Project,
    ProjectError,
    check_path,
    read_settings,
    topics_to_create,
)

FILE: Final = "environments.yml"
TOPIC_PREFIX: Final = "ottla.topic.prefix"
"""The setting by which definitions find the prefix: `spark.conf.get("ottla.topic.prefix", "")`."""
_SERVERS: Final = "bootstrap.servers"
_PREFIX: Final = "topic.prefix"
_STORAGE: Final = "storage"
_CLIENT_CONFIG: Final = "command.config"
_SETTINGS: Final = "configuration"
_TEXTS: Final = (_SERVERS, _PREFIX, _STORAGE, _CLIENT_CONFIG)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
_VARIABLE: Final = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_EXAMPLE: Final = f"dev: {{{_SERVERS}: 'localhost:9092', {_PREFIX}: 'dev.'}}"


def in_environment(project: Project, name: str, variables: Mapping[str, str] | None = None) -> Project:
    """The project in one of its environments. Raises ProjectError if there is none of that name, or if it
    would write where another one does.
    """
    file = project.directory / FILE
    given = _read(file)
    if name not in given:
        near = get_close_matches(name, given, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(given)}"
        raise ProjectError(f"{file} has no environment {name}{hint}")
    every = os.environ if variables is None else variables
    # Of the others only what is compared: their variables may not be set here.
    others = {each: _texts(file, each, entry, None) for each, entry in given.items() if each != name}
    own = _texts(file, name, given[name], every)
    found = _applied(project, name, own, _settings(file, name, given[name], every))
    for other, texts in others.items():
        _check_apart(file, found, _applied(project, other, texts, {}))
    if known_storage(project.state) is not None:  # it has run without an environment
        _check_apart(file, found, project)
    return found


def check_topic_prefix(project: Project, definitions: Definitions) -> None:
    """Refuse a sink whose topic is without the prefix of its environment: it is the topic of another one."""
    prefix = project.configuration.get(TOPIC_PREFIX, "")
    if project.environment is None or not prefix:
        return
    for sink, topic in definitions.topics.items():
        if topic is not None and not topic.startswith(prefix):
            raise ProjectError(
                f"sink {sink} writes to topic {topic}, and the topics of environment {project.environment} "
                f"begin with {prefix!r}. Definitions read the prefix with "
                f'`spark.conf.get("{TOPIC_PREFIX}", "")`'
            )


def _read(file: Path) -> dict[str, dict[str, Any]]:
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        document = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        raise ProjectError(f"there is no {file}, which names the environments, as `{_EXAMPLE}`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"{file}: {error}") from None
    except yaml.YAMLError as error:
        raise ProjectError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not document:
        raise ProjectError(f"{file}: expected environments by their names, as `{_EXAMPLE}`")
    for name, entry in document.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ProjectError(
                f"{file}: {name!r} is no name for an environment: small letters, digits, _ and -, at most 31"
            )
        if not isinstance(entry, dict):
            raise ProjectError(f"{file}: {name}: expected names and values, as `{_EXAMPLE}`")
        known = (*_TEXTS, _SETTINGS)
        for key in entry:
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise ProjectError(f"{file}: {name}: there is no `{key}`; {hint}")
    return document


def _texts(
    file: Path, name: str, entry: Mapping[str, Any], variables: Mapping[str, str] | None
) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in _TEXTS:
        value = entry.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ProjectError(f"{file}: {name}: `{key}` must be text")
        found[key] = _filled(file, name, value, variables)
    return found


def _settings(
    file: Path, name: str, entry: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, str]:
    given = read_settings(f"{file}: {name}", entry.get(_SETTINGS))
    return {key: _filled(file, name, value, variables) for key, value in given.items()}


def _filled(file: Path, name: str, text: str, variables: Mapping[str, str] | None) -> str:
    """The text with the values of its variables; None for them leaves it as it is."""

    def value(match: re.Match[str]) -> str:
        assert variables is not None
        if match[1] not in variables:
            raise ProjectError(f"{file}: {name}: the variable {match[1]} of {match[0]} is not set")
        return variables[match[1]]

    return text if variables is None else _VARIABLE.sub(value, text)


def _applied(project: Project, name: str, texts: Mapping[str, str], settings: Mapping[str, str]) -> Project:
    prefix = texts.get(_PREFIX, "")
    configuration = {**project.configuration, **settings, TOPIC_PREFIX: prefix}
    if _SERVERS in texts:
        configuration[BOOTSTRAP] = texts[_SERVERS]
    if prefix and (topics := configuration.get(CREATE_TOPICS)):
        wanted = topics_to_create(topics)
        configuration[CREATE_TOPICS] = ", ".join(
            f"{prefix}{topic}:{count}" for topic, count in wanted.items()
        )
    file = texts.get(_CLIENT_CONFIG)
    found = replace(
        project,
        environment=name,
        storage=texts.get(_STORAGE) or f"{project.storage.rstrip('/')}-{name}",
        configuration=configuration,
        client_config=None if file is None else project.directory / file,
    )
    if found.storage_path is not None:
        check_path(found.storage_path)
    return found


def _check_apart(file: Path, one: Project, other: Project) -> None:
    who = (
        f"environment {other.environment}"
        if other.environment
        else "the project without --env, which has run,"
    )
    if _place(one) == _place(other):
        raise ProjectError(
            f"{file}: environment {one.environment} and {who} have the same storage, {one.storage}: each "
            f"would take what the other has read as its own. Give it another `{_STORAGE}`"
        )
    shared = _brokers(one) & _brokers(other)
    prefixes = {each.configuration.get(TOPIC_PREFIX, "") for each in (one, other)}
    if shared and len(prefixes) == 1:
        raise ProjectError(
            f"{file}: environment {one.environment} and {who} have the same brokers and topics: both would "
            f"write each row to them. Give it another `{_PREFIX}`, or other brokers"
        )


def _place(project: Project) -> str:
    path = project.storage_path
    return project.storage.rstrip("/") if path is None else os.path.normpath(path)


def _brokers(project: Project) -> frozenset[str]:
    return frozenset(_addresses((project.bootstrap_servers or "").split(",")))


def _addresses(given: Iterable[str]) -> Iterable[str]:
    for each in given:
        if each.strip():
            parts = urlsplit(f"//{each.strip()}")
            yield parts.netloc.lower()

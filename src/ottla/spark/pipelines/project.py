"""A pipeline's project on disk: its specification, as far as it is needed here.

Spark reads the specification itself when the pipeline runs. Here it is read without Spark, for what has to be
known earlier or without a JVM: where the checkpoints are, and which brokers the pipeline uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

BOOTSTRAP: Final = "ottla.bootstrap.servers"
"""The setting by which definitions find the brokers: `spark.conf.get("ottla.bootstrap.servers")`."""
CREATE_TOPICS: Final = "ottla.create.topics"
"""The setting with the topics that a run creates if they are missing."""
SPEC_NAMES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
CHECKPOINTS: Final = "_checkpoints"
STATE_DIR: Final = ".ottla"
_STRANGE_IN_PATH: Final = re.compile(r"[^A-Za-z0-9_.~/@+=,-]")


class ProjectError(Exception):
    """A project that is missing or invalid; the text says which file and why."""


def check_path(path: Path) -> None:
    """Refuse a directory whose path Spark writes differently in different places, as it does with spaces and
    letters beyond ASCII: it would put the checkpoints of a run elsewhere than the next run looks for them.
    """
    if (strange := _STRANGE_IN_PATH.search(str(path))) is not None:
        raise ProjectError(
            f"{path} has {strange.group()!r} in it: with spaces, quotes, or other than letters from a to z, "
            "digits and ._~@+=,- in a path Spark finds its own files no more; choose another directory"
        )


def spark_location(path: Path) -> str:
    """A directory of this machine as Spark's statements and settings take it."""
    check_path(path)
    return f"file://{path}"


@dataclass(frozen=True, slots=True)
class Project:
    """One pipeline. `configuration` has the settings that its specification passes to Spark, or its
    environment.
    """

    spec: Path
    name: str
    storage: str
    configuration: Mapping[str, str]
    environment: str | None = None
    """The environment in which it runs; None for the specification alone."""
    case_warehouse: Path | None = None
    """Where the tables of a test are."""
    client_config: Path | None = None
    """The file with the settings of clients that the environment names."""

    @property
    def directory(self) -> Path:
        return self.spec.parent

    @property
    def warehouse(self) -> Path:
        """Where tables are unless a setting says otherwise: beside the specification, by which a copy of the
        project is known.
        """
        if self.case_warehouse is not None:
            return self.case_warehouse
        of_environment = f"-{self.environment}" if self.environment else ""
        return (self.directory / f"spark-warehouse{of_environment}").resolve()

    @property
    def state(self) -> Path:
        """Where a run keeps what the next one has to know."""
        state = self.directory / STATE_DIR
        return state / f"environment-{self.environment}" if self.environment else state

    @property
    def bootstrap_servers(self) -> str | None:
        return self.configuration.get(BOOTSTRAP)

    @property
    def storage_path(self) -> Path | None:
        """The storage as a directory on this machine; None for another location."""
        parts = urlsplit(self.storage)
        if parts.scheme == "":
            return self.directory / self.storage
        return Path(parts.path) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def find_project(path: Path) -> Project:
    """Find the project of `path`: its specification, its directory or a directory inside."""
    if path.is_file():
        return load_project(path)
    if not path.is_dir():
        raise ProjectError(f"{path}: no such file or directory")
    for directory in (path.resolve(), *path.resolve().parents):
        found = [directory / name for name in SPEC_NAMES if (directory / name).is_file()]
        if len(found) > 1:
            raise ProjectError(f"{directory} has both {' and '.join(SPEC_NAMES)}; keep one of them")
        if found:
            return load_project(found[0])
    raise ProjectError(
        f"there is no {SPEC_NAMES[0]} in {path.resolve()} or above it; "
        "`ottla pipeline init NAME` creates a project"
    )


def load_project(spec: Path) -> Project:
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        document = yaml.safe_load(spec.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ProjectError(f"{spec}: {error}") from None
    except yaml.YAMLError as error:
        raise ProjectError(f"{spec} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ProjectError(f"{spec}: expected names and values, as `name: orders`")
    project = Project(
        spec.resolve(),
        _text(spec, document, "name"),
        _text(spec, document, "storage"),
        read_settings(str(spec), document.get("configuration")),
    )
    check_path(project.directory)
    if project.storage_path is not None:
        check_path(project.storage_path)
    return project


def topics_to_create(text: str) -> dict[str, int]:
    """Topics and their partitions, as the configuration has them.

    >>> topics_to_create("orders:3, totals")
    {'orders': 3, 'totals': 1}
    """
    topics: dict[str, int] = {}
    for entry in text.replace(",", " ").split():
        name, colon, count = entry.partition(":")
        if colon and (not count.isdecimal() or int(count) < 1):
            raise ProjectError(f"{CREATE_TOPICS}: {entry}: expected TOPIC or TOPIC:PARTITIONS")
        topics[name] = int(count) if colon else 1
    return topics


def _text(spec: Path, document: Mapping[str, Any], field: str) -> str:
    value = document.get(field)
    if not isinstance(value, str) or not value:
        raise ProjectError(f"{spec}: `{field}` must be given, as text")
    return value


def read_settings(where: str, given: Any) -> dict[str, str]:
    """The settings for Spark in a file, which says where it has them."""
    if not given:
        return {}
    if not isinstance(given, dict):
        raise ProjectError(f"{where}: `configuration` must be names and values")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ProjectError(
                f'{where}: in `configuration`, {name} must be text: put quotes around "{value}"'
            )
    return dict(given)

"""The recipes of docs/spark as far as they can be checked without a cluster: commands have the options that
they are given, programs compile, and manifests are what Kubernetes takes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql import SparkSession

from ottla.cli.app import root

DOCS = Path(__file__).parents[2] / "docs" / "spark"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODEL = "io.fabric8.kubernetes.api.model"


def blocks(kind: str) -> list[tuple[str, str]]:
    """The blocks of code of a kind in the documentation, with their files."""
    return [
        (file.name, text)
        for file in sorted(DOCS.glob("*.md"))
        for found, text in BLOCK.findall(file.read_text())
        if found == kind
    ]


def manifests() -> list[dict[str, Any]]:
    return [
        document
        for _, text in blocks("yaml")
        for document in yaml.safe_load_all(text)
        if isinstance(document, dict) and "apiVersion" in document
    ]


def commands_in(line: str) -> Iterator[list[str]]:
    """The arguments of each command `ottla ...` in a line."""
    for part in re.split(r"\||&&", line):
        words = shlex.split(part, comments=True)
        for at, word in enumerate(words):
            if Path(word).name == "ottla":
                yield words[at + 1 :]
                break


def commands() -> list[list[str]]:
    lines = [
        line
        for kind in ("console", "cron")
        for _, text in blocks(kind)
        for line in text.replace("\\\n", " ").splitlines()
        if kind == "cron" or line.startswith("$ ")
    ]
    lines += [line for _, text in blocks("python") for line in re.findall(r'bash_command="(.*)"', text)]
    found = [words for line in lines for words in commands_in(line)]
    return found + [each["args"][1:] for manifest in manifests() for each in containers(manifest)]


def containers(manifest: Any) -> Iterator[dict[str, Any]]:
    if isinstance(manifest, dict):
        yield from manifest.get("containers", ())
        for value in manifest.values():
            yield from containers(value)


def check_command(words: list[str]) -> None:
    """Raise UsageError if the command line is not one of ours."""
    if words[0] == "start":
        return
    command: click.Command = root()
    context = command.make_context("ottla", list(words))
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


def test_commands_have_the_options_that_they_are_given() -> None:
    found = commands()
    assert len(found) >= 15
    for words in found:
        try:
            check_command(words)
        except click.UsageError as error:
            pytest.fail(f"ottla {shlex.join(words)}: {error.format_message()}")
    with pytest.raises(click.UsageError):
        check_command(["pipeline", "run", "--continuos"])


def test_programs_compile() -> None:
    for name, text in blocks("python"):
        compile(text, name, "exec")


def test_specifications_are_yaml() -> None:
    for _, text in blocks("yaml"):
        assert list(yaml.safe_load_all(text))


def test_manifests_are_what_kubernetes_takes(spark: SparkSession) -> None:
    """Spark brings the types of Kubernetes; a field that they do not have is kept apart."""
    jvm: Any = spark._jvm
    kinds = []
    for manifest in manifests():
        found = jvm.io.fabric8.kubernetes.client.utils.Serialization.unmarshal(yaml.safe_dump(manifest))
        kinds.append(found.getClass().getSimpleName())
        assert unknown_fields(found) == [], manifest
    assert {"PersistentVolumeClaim", "CronJob", "Deployment"} <= set(kinds)
    wrong = "apiVersion: batch/v1\nkind: CronJob\nspec: {schedule: x, concurencyPolicy: Forbid}\n"
    found = jvm.io.fabric8.kubernetes.client.utils.Serialization.unmarshal(wrong)
    assert unknown_fields(found) == ["concurencyPolicy"]


def unknown_fields(found: Any) -> list[str]:
    unknown = list(found.getAdditionalProperties())
    for method in found.getClass().getMethods():
        name = method.getName()
        if not name.startswith("get") or method.getParameterCount() or name == "getAdditionalProperties":
            continue
        kind = method.getReturnType().getName()
        if kind.startswith(MODEL):
            value = getattr(found, name)()
            unknown += unknown_fields(value) if value is not None else []
        elif kind == "java.util.List":
            for each in getattr(found, name)():
                unknown += unknown_fields(each) if hasattr(each, "getAdditionalProperties") else []
    return unknown

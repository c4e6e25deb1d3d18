"""The recipes of docs/spark as far as they can be checked without a cluster: manifests are what Kubernetes
takes, and run commands that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql import SparkSession

from tests.house.test_shown_commands import check_command

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


def containers(manifest: Any) -> Iterator[dict[str, Any]]:
    if isinstance(manifest, dict):
        yield from manifest.get("containers", ())
        for value in manifest.values():
            yield from containers(value)


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
        for container in containers(manifest):
            check_command(container["args"][1:])
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

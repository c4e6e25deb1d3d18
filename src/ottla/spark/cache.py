"""Cache small directories for later runs: a Spark home and a Java home made of symbolic links.

They lie under XDG_CACHE_HOME, or ~/.cache; where that cannot be written, in a directory of this user under
the system's temporary one. A directory appears complete or not at all, also if several processes build it at
the same time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_dir() -> Path:
    """A directory that only this user can write."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    wanted = Path(base) / "ottla"
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK):
            return wanted
    except OSError:
        pass
    fallback = Path(tempfile.gettempdir()) / f"ottla-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.stat().st_uid != os.getuid():
        raise PermissionError(f"{fallback} belongs to another user; set XDG_CACHE_HOME")
    return fallback


def publish(name: str, build: Callable[[Path], None]) -> Path:
    """Build the directory `name` of the cache, replacing an old one; `build` fills it. Returns its path."""
    target = cache_dir() / name
    draft = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=target.parent))
    try:
        draft.chmod(0o755)
        build(draft)
        if target.exists():  # outdated: move it away, as a directory cannot be replaced in one step
            target.rename(draft.with_suffix(".old"))
            shutil.rmtree(draft.with_suffix(".old"), ignore_errors=True)
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target

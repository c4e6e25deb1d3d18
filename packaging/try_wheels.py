"""Install the wheels in `dist/` that this machine can run, where there is no compiler, and use them.

    python packaging/try_wheels.py [--root DIRECTORY ...]

Each Python that is installed gets its own wheel in a new environment, whose PATH is empty. Clients without a
compiled kernel, in another environment, talk to its node. A root is a directory with a system of another
kind, such as Debian for arm64 or a Linux with musl: what its Python takes is installed and used there by
`chroot`, which needs rights and, for another processor, `qemu-user-static`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from wheels import PYTHONS, ROOT, interpreters

SMOKE = Path(__file__).with_name("smoke.py")
NO_COMPILER = {"PATH": "", "CC": "/bin/false", "CXX": "/bin/false"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", nargs="+", type=Path, default=[])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    for root in arguments.root:
        try_in_root(root.resolve(), arguments.dist)
    with tempfile.TemporaryDirectory(prefix="ottla-wheels-") as directory:
        plain: tuple[str, ...] = ()
        for version in PYTHONS:
            name = f"*-cp{version.replace('.', '')}-*-manylinux*_{os.uname().machine}.whl"
            wheel, python = next(arguments.dist.glob(name), None), next(interpreters(version), None)
            if python is None or wheel is None:
                print(f"Python {version}: not tried, as it is not installed, or has no wheel")
                continue
            if not plain:
                (any_wheel,) = arguments.dist.glob("*-py3-none-any.whl")
                plain = (installed(python, any_wheel, Path(directory, "plain")),)
            print(f"Python {version}: ", end="", flush=True)
            run(installed(python, wheel, Path(directory, version)), str(SMOKE), *plain)


def installed(python: str, wheel: Path, environment: Path) -> str:
    """The Python of a new environment with the wheel and what it asks for, of which nothing was compiled."""
    run(python, "-m", "venv", str(environment))
    own = str(environment / "bin" / "python")
    run(own, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(wheel))
    return own


def try_in_root(root: Path, dist: Path) -> None:
    """Install what the Python of this root takes, and use it there."""
    inside = root / "ottla-wheels"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.copytree(dist, inside / "dist")
    shutil.copy(SMOKE, inside)
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    python = "/ottla-wheels/venv/bin/python"
    pip = (python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:")
    print(f"{root}: ", end="", flush=True)
    run("chroot", str(root), "/usr/bin/python3", "-m", "venv", "/ottla-wheels/venv")
    run("chroot", str(root), *pip, "--find-links", "/ottla-wheels/dist", "ottla")
    run("chroot", str(root), python, "/ottla-wheels/smoke.py")


def run(*command: str) -> None:
    program = shutil.which(command[0]) or command[0]
    environment = {**os.environ, **NO_COMPILER}
    if subprocess.run((program, *command[1:]), env=environment, check=False).returncode:
        sys.exit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    main()

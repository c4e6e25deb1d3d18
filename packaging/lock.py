"""Write which versions are used together: `python packaging/lock.py WHAT`.

`constraints`, `constraints-dist` and `constraints-docs` are the versions that are installed beside this
Python, for `pip install --constraint`: so a new release of another project comes with a change of ours,
and its tests. `requirements` turns the report of pip on what it would install into a file with hashes, for
`pip install --require-hashes` in an image.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from installed import PROJECT, closure, group, normal

EXTRAS = "dev,kerberos"


def constraints(packages: dict[str, Any]) -> str:
    lines = [f"{name}=={each.version}" for name, each in packages.items() if name != PROJECT]
    return "\n".join(("# Written by `make lock`: the versions that are tested together.", *lines, ""))


def requirements(report: dict[str, Any]) -> str:
    """The packages of pip's report, but for the project itself, with the hashes of their files."""
    lines = []
    for each in report["install"]:
        name, version = normal(each["metadata"]["name"]), each["metadata"]["version"]
        if name == PROJECT:
            continue
        digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return "\n".join(("# Written by `make lock`: for pip install --require-hashes.", *sorted(lines), ""))


def main() -> None:
    match sys.argv[1:]:
        case ["constraints"]:
            text = constraints(closure([f"{PROJECT}[{EXTRAS}]"]))
        case ["constraints-dist"]:
            text = constraints(closure(group("dist")))
        case ["constraints-docs"]:
            text = constraints(closure(group("docs")))
        case ["requirements"]:
            text = requirements(json.load(sys.stdin))
        case _:
            sys.exit(__doc__)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()

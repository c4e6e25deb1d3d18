"""Write what is in an installation, as CycloneDX JSON: `python packaging/sbom.py EXTRA...`.

The packages are those that are installed beside this Python, with their versions and licences, and what needs
what. The same installation gives the same text.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution
from typing import Any

from installed import PROJECT, closure, needs


def bill(extras: list[str]) -> dict[str, Any]:
    packages = closure([f"{PROJECT}[{','.join(extras)}]" if extras else PROJECT])
    own = packages[PROJECT]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**component(own), "type": "application"}},
        "components": [component(each) for name, each in packages.items() if name != PROJECT],
        "dependencies": [
            {"ref": reference(each), "dependsOn": [reference(found) for found in needs(each, packages)]}
            for each in packages.values()
        ],
    }


def reference(package: Distribution) -> str:
    return f"pkg:pypi/{package.name.lower().replace('_', '-')}@{package.version}"


def component(package: Distribution) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "purl": reference(package),
    }
    if licence := licence_of(package):
        found["licenses"] = [licence]
    return found


def licence_of(package: Distribution) -> dict[str, Any] | None:
    """The expression of a package's metadata, else the name that it gives."""
    if expression := package.metadata.get("License-Expression"):
        return {"expression": expression}
    named = [
        each.rpartition(" :: ")[2]
        for each in package.metadata.get_all("Classifier") or ()
        if each.startswith("License :: ")
    ]
    text = named[0] if named else (package.metadata.get("License") or "").strip().partition("\n")[0]
    return {"license": {"name": text}} if text else None


if __name__ == "__main__":
    print(json.dumps(bill(sys.argv[1:]), indent=2))

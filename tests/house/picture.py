"""`python -m tests.house.picture`: draw the floors of the house into `docs/architecture.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.house.checks import FLOORS, Module, imports, load

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/architecture.md"
_PICTURE: Final = re.compile(r"(?<=<!-- floors -->\n```\n).*?(?=```\n<!-- end -->)", re.DOTALL)


def picture(modules: Iterable[Module]) -> str:
    """A line for each floor, the highest first: which of the floors below its modules import."""
    uses: dict[str, set[str]] = {room: set() for room in FLOORS}
    for module in modules:
        if module.room in uses:
            targets = (each.target.split(".") for each in imports(module))
            uses[module.room] |= {parts[1] for parts in targets if parts[0] == "ottla" and len(parts) > 1}
    width = max(map(len, FLOORS))
    lines = []
    for floor, room in reversed(list(enumerate(FLOORS))):
        cells = ["●" if below in uses[room] else "·" for below in FLOORS[:floor]]
        lines.append(f"{floor + 1:2} {room:{width}} " + "".join(f"  {cell}" for cell in cells))
    numbers = "".join(f" {floor + 1:2}" for floor in range(len(FLOORS) - 1))
    lines.append(f"{'':{width + 4}}{numbers}")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def drawn(page: str) -> str:
    """The picture that the page has."""
    found = _PICTURE.search(page)
    assert found is not None, "the page has no picture of the floors"
    return found[0]


def main() -> None:
    page = PAGE.read_text()
    new = picture(load(ROOT / "src/ottla"))
    PAGE.write_text(_PICTURE.sub(lambda _: new, page))


if __name__ == "__main__":
    main()

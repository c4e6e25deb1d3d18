"""The index of `docs/decisions`, from the titles of its pages: `python -m tests.support.decision_index`.

The tens of a number are the area that a decision is about.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).parents[2] / "docs" / "decisions"
INDEX: Final = DIRECTORY / "README.md"
_TITLE: Final = re.compile(r"# (?P<number>\d{4}): (?P<title>.+)")
_AREAS: Final = {
    "000": "The log",
    "001": "Requests and defaults",
    "002": "Groups",
    "003": "Transactions",
    "004": "Clients",
    "005": "Spark",
    "006": "The quorum, and what fails",
    "007": "Security",
    "008": "What operators see, and queues",
    "009": "Remote storage, tables, ZooKeeper, costs",
    "010": "Disks that lie",
    "011": "Packaging",
    "012": "Schemas",
}
_HEAD: Final = """\
# Decisions

One page for each hard decision, and for each deliberate difference from Apache Kafka: what was asked, what
was decided, and why. A decision that no longer holds goes with the code that it was about. This index is
written by `python -m tests.support.decision_index`.
"""


def title_of(page: Path) -> str:
    """The title of a decision, whose number is that of its file."""
    first = page.read_text().partition("\n")[0]
    found = _TITLE.fullmatch(first)
    assert found is not None, f"{page.name} begins with {first!r}, and not with '# NUMBER: TITLE'"
    assert page.name.startswith(f"{found['number']}-"), f"{page.name} has the number {found['number']}"
    return found["title"]


def render() -> str:
    pages = sorted(page for page in DIRECTORY.glob("*.md") if page != INDEX)
    parts = [_HEAD]
    for prefix in dict.fromkeys(page.name[:3] for page in pages):
        parts.append(f"\n## {_AREAS[prefix]}\n\n")
        parts += [
            f"- [{page.name[:4]}]({page.name}) {title_of(page)}\n"
            for page in pages
            if page.name.startswith(prefix)
        ]
    return "".join(parts)


if __name__ == "__main__":
    INDEX.write_text(render())

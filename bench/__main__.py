"""`python -m bench [part …]`: measure, print, and write the tables into docs/benchmarks.md."""

import argparse
import datetime
from importlib import import_module
from pathlib import Path

from bench.harness import machine, markdown

PARTS = {
    "log": "The log of a partition",
    "records": "Record batches",
    "compaction": "Compaction",
    "protocol": "The wire protocol's codecs",
    "clients": "Python clients",
    "node": "A node beside Apache Kafka",
    "coordinators": "Groups and transactions beside Apache Kafka",
    "soak": "A node under many clients",
}
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
INTRODUCTION = """\
# Benchmarks

What `make bench` measured. Machines are noisy: ours and the peer's work ran in interleaved rounds; a ratio
is the median of the rounds, with their spread. Above 1 we are faster than the peer.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="what to measure (default: everything)")
    chosen = parser.parse_args().part or list(PARTS)
    sections = read_sections()
    for part in chosen:
        print(f"{PARTS[part]} …", flush=True)
        table = markdown(list(import_module(f"bench.{part}").rows()))
        print(table, flush=True)
        today = datetime.datetime.now(datetime.UTC).date()
        sections[PARTS[part]] = f"{today}, {machine()}.\n\n{table}\n"
    body = "".join(f"\n## {title}\n\n{sections[title]}" for title in PARTS.values() if title in sections)
    PAGE.write_text(INTRODUCTION + body)


def read_sections() -> dict[str, str]:
    """The tables that are on the page already, by title: what is not measured now stays as it was."""
    if not PAGE.exists():
        return {}
    sections = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        sections[title] = text.strip() + "\n"
    return sections


if __name__ == "__main__":
    main()

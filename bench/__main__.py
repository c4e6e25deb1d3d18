"""`python -m bench [--quick] [part …]`: measure, print, and write the tables into docs/benchmarks.md.

`--against DIR` measures this checkout beside the Ottla of another one, such as the state before a change,
and only prints: 1 means as fast as there, more means faster.
"""

import argparse
import datetime
import os
from importlib import import_module
from pathlib import Path

from bench.harness import machine, show

PARTS = {
    "log": "The log of a partition",
    "records": "Record batches",
    "compaction": "Compaction",
    "protocol": "The wire protocol's codecs",
    "clients": "Python clients",
    "acls": "What an authorizer costs",
    "node": "A node beside Apache Kafka",
    "tls": "TLS beside Apache Kafka",
    "requests": "Small requests beside Apache Kafka",
    "handling": "Requests without their socket",
    "latency": "Latency beside Apache Kafka",
    "durability": "On disk before the acknowledgement, beside Apache Kafka",
    "scale": "Many partitions beside Apache Kafka",
    "restart": "A restart after a crash beside Apache Kafka",
    "coordinators": "Commits and transactions beside Apache Kafka",
    "settling": "Time until a new group is settled, beside Apache Kafka",
    "share": "Share groups beside Apache Kafka",
    "share-retries": "What retries of share groups cost",
    "metrics": "What metrics cost",
    "console": "The console with many topics and groups",
    "quotas": "A noisy client and a quiet one, beside Apache Kafka",
    "cluster": "Three nodes beside three of Apache Kafka",
    "idle-partitions": "Idle partitions of three nodes, beside Apache Kafka",
    "soak": "A node under many clients",
    "pipelines": "A pipeline from the command line, beside Spark's own",
    "continuous": "A pipeline of seven flows that goes on",
    "spark": "Reading into Spark",
    "spark-sink": "Writing from Spark",
    "tables": "Topics as tables",
    "schemas": "Typed records",
    "tiered": "Tiered storage, and Spark without brokers",
    "tiered-memory": "Memory of a node that tiers 100 GB",
}
PLOTS = {
    "node": ("throughput", "throughput by record size"),
    "latency": ("latency", "latency by share of records"),
    "scale": ("partitions", "cost by number of partitions"),
}
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
INTRODUCTION = """\
# Benchmarks

What `make bench` measured. Machines are noisy: ours and the peer's work ran in interleaved rounds; a ratio
is the median of the rounds, with their spread. Above 1 we are faster than the peer. Why rows fall short of
their aims is in [where a microsecond goes](performance.md#rows-below-their-aims).
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="what to measure (default: everything)")
    parser.add_argument("--quick", action="store_true", help="minutes instead of half an hour")
    parser.add_argument("--against", metavar="DIR", help="a built checkout of Ottla to compare with")
    arguments = parser.parse_args()
    if arguments.quick:
        os.environ["BENCH_QUICK"] = "1"
    chosen = arguments.part or list(PARTS)
    if arguments.against is not None:
        os.environ["BENCH_AGAINST"] = arguments.against
        from bench.against import compare_checkouts

        compare_checkouts({part: f"bench.{part.replace('-', '_')}" for part in chosen}, arguments.against)
        return
    # Imported only now: it reads from the environment which peer is measured.
    from bench.versus import without_kafka

    sections = read_sections()
    for part in chosen:
        print(f"{PARTS[part]} …", flush=True)
        table = show(import_module(f"bench.{part.replace('-', '_')}").rows())
        today = datetime.datetime.now(datetime.UTC).date()
        quickly = ", quick" if arguments.quick else ""
        alone = without_kafka() if "beside Apache Kafka" in PARTS[part] else None
        note = "" if alone is None else f"{alone}.\n\n"
        picture = f"\n![{PLOTS[part][1]}](benchmarks/{PLOTS[part][0]}.svg)\n" if part in PLOTS else ""
        sections[PARTS[part]] = f"{today}{quickly}, {machine()}.\n\n{note}{table}\n{picture}"
        write(sections)


def write(sections: dict[str, str]) -> None:
    """Write the page after every part, so that a later failure loses nothing."""
    body = "".join(f"\n## {title}\n\n{sections[title]}" for title in PARTS.values() if title in sections)
    PAGE.write_text(INTRODUCTION + body)


def read_sections() -> dict[str, str]:
    """The tables of the page, by title: parts that are not measured now keep theirs."""
    if not PAGE.exists():
        return {}
    sections = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        sections[title] = text.strip() + "\n"
    return sections


if __name__ == "__main__":
    main()

"""The results of cases, and the file in which a CI reads them: JUnit's XML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

# Characters that XML 1.0 cannot hold.
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class CaseOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case went. `text` says why it failed or was skipped; `variant` where the pipeline was killed."""

    name: str
    file: Path
    seconds: float
    outcome: CaseOutcome
    text: str = ""
    variant: str = ""

    @property
    def title(self) -> str:
        return case_title(self.name, self.variant)


def case_title(name: str, variant: str) -> str:
    return f"{name}, {variant}" if variant else name


def summary(results: Sequence[CaseResult]) -> str:
    """
    >>> summary([CaseResult("a", Path("a.yml"), 1.0, CaseOutcome.PASSED)])
    '1 passed'
    """
    counts = {each: sum(result.outcome is each for result in results) for each in CaseOutcome}
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or "no case"


def write_junit(file: Path, project: str, results: Sequence[CaseResult], seconds: float) -> None:
    """Write the report as JUnit's XML, which CI systems show."""
    suite = ElementTree.Element(
        "testsuite",
        name=project,
        tests=str(len(results)),
        failures=str(sum(result.outcome is CaseOutcome.FAILED for result in results)),
        skipped=str(sum(result.outcome is CaseOutcome.SKIPPED for result in results)),
        errors="0",
        time=f"{seconds:.3f}",
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    for result in results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{project}.{result.file.stem}",
            name=result.title,
            file=str(result.file),
            time=f"{result.seconds:.3f}",
        )
        text = _NOT_XML.sub("?", result.text)
        if result.outcome is CaseOutcome.FAILED:
            first = text.partition("\n")[0]
            ElementTree.SubElement(case, "failure", message=first).text = text
        elif result.outcome is CaseOutcome.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=text)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)

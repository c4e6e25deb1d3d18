"""A diagnosis of `ottla doctor`: what is wrong, and what to type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    WRONG = "wrong"
    """A node does not start, or clients do not work."""
    DOUBTFUL = "doubtful"
    """It works, and may not for long, or not as expected."""
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    severity: Severity
    subject: str
    """What was looked at: `python`, `listeners`, a path, a broker."""
    problem: str
    """What is wrong; for what is fine, what was seen."""
    advice: str = ""
    """What to do, with the command or the setting to type."""


def wrong(subject: str, problem: str, advice: str) -> Diagnosis:
    return Diagnosis(Severity.WRONG, subject, problem, advice)


def doubtful(subject: str, problem: str, advice: str) -> Diagnosis:
    return Diagnosis(Severity.DOUBTFUL, subject, problem, advice)


def fine(subject: str, seen: str) -> Diagnosis:
    return Diagnosis(Severity.FINE, subject, seen)

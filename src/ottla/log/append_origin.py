"""Who hands a batch to the log, which decides how far the log trusts it; the enum lives with the checks."""

from ottla.records.validation import AppendOrigin

__all__ = ["AppendOrigin"]

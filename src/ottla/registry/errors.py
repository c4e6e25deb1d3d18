"""Errors of the registry, with the codes and texts that Confluent's clients and tools know."""

from __future__ import annotations

from typing import Final

_MODES: Final = "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD."
_LEVELS: Final = (
    "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
    "forward_transitive, and full_transitive"
)


class RegistryError(Exception):
    """An answer that is an error. Codes of five digits begin with the status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message

    @property
    def status(self) -> int:
        return self.code // 100 if self.code >= 1000 else self.code

    @property
    def is_missing(self) -> bool:
        """Whether something was not found: a node that lags may not know it yet."""
        return self.status == 404

    # 404

    @classmethod
    def not_found(cls) -> RegistryError:
        return cls(404, "HTTP 404 Not Found")

    @classmethod
    def subject_not_found(cls, subject: str | None) -> RegistryError:
        return cls(40401, f"Subject '{'null' if subject is None else subject}' not found.")

    @classmethod
    def version_not_found(cls, version: int) -> RegistryError:
        return cls(40402, f"Version {version} not found.")

    @classmethod
    def schema_not_found(cls, schema: int | str | None = None) -> RegistryError:
        return cls(40403, "Schema not found" if schema is None else f"Schema {schema} not found")

    @classmethod
    def subject_soft_deleted(cls, subject: str) -> RegistryError:
        return cls(40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")

    @classmethod
    def subject_not_soft_deleted(cls, subject: str) -> RegistryError:
        return cls(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")

    @classmethod
    def version_soft_deleted(cls, subject: str, version: int) -> RegistryError:
        return cls(
            40406,
            f"Subject '{subject}' Version {version} was soft deleted."
            "Set permanent=true to delete permanently",
        )

    @classmethod
    def version_not_soft_deleted(cls, subject: str, version: int) -> RegistryError:
        return cls(
            40407,
            f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted",
        )

    @classmethod
    def no_subject_config(cls, subject: str) -> RegistryError:
        return cls(40408, f"Subject '{subject}' does not have subject-level compatibility configured")

    @classmethod
    def no_subject_mode(cls, subject: str) -> RegistryError:
        return cls(40409, f"Subject '{subject}' does not have subject-level mode configured")

    # 409 and 422

    @classmethod
    def incompatible(cls, subject: str, messages: list[str]) -> RegistryError:
        return cls(
            409,
            f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
            f"details: [{', '.join(messages)}]",
        )

    @classmethod
    def invalid_schema(cls, text: str) -> RegistryError:
        return cls(42201, text)

    @classmethod
    def invalid_version(cls, version: str) -> RegistryError:
        return cls(
            42202,
            f"The specified version '{version}' is not a valid version id. Allowed values are between "
            '[1, 2^31-1] and the string "latest"',
        )

    @classmethod
    def invalid_level(cls) -> RegistryError:
        return cls(42203, _LEVELS)

    @classmethod
    def invalid_mode(cls, text: str = _MODES) -> RegistryError:
        return cls(42204, text)

    @classmethod
    def not_permitted(cls, text: str) -> RegistryError:
        return cls(42205, text)

    @classmethod
    def referenced(cls, subject: str, version: int) -> RegistryError:
        key = f"{{magic=1,keytype=SCHEMA,subject={subject},version={version}}}"
        return cls(42206, f"One or more references exist to the schema {key}.")

    @classmethod
    def invalid_subject(cls, subject: str) -> RegistryError:
        return cls(42208, f"The specified subject '{subject}' is not a valid.")

    @classmethod
    def too_large(cls) -> RegistryError:
        return cls(42209, "Register operation failed because schema is too large")

    @classmethod
    def invalid_rules(cls, text: str) -> RegistryError:
        return cls(42210, text)

    @classmethod
    def context_not_empty(cls, context: str) -> RegistryError:
        return cls(42211, f"The specified context '{context}' is not empty.")

    # 500

    @classmethod
    def store(cls, text: str) -> RegistryError:
        return cls(50001, text)

    @classmethod
    def timed_out(cls, text: str) -> RegistryError:
        return cls(50002, text)

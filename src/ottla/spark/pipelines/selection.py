"""What a run is asked to do: which tables to update or to compute again, and what became of which flow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace


class UnknownTables(Exception):
    """A run was asked to update tables that the definitions do not have."""


def table_key(name: str) -> str:
    """The name of a table without its database, for comparisons: Spark's catalog keeps `rawOrders` as
    `raworders`, while checkpoints, flows and users spell it as the definitions do.

    >>> table_key("shop.rawOrders")
    'raworders'
    """
    return name.rpartition(".")[2].lower()


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of the records' times that is read again, in milliseconds; `end` is not part of it, and None
    is now.
    """

    start: int
    end: int | None = None

    @property
    def name(self) -> str:
        return f"{self.start}-{'' if self.end is None else self.end}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tables a run updates, as `spark-pipelines run` names them; all if none is named."""

    refresh: Sequence[str] = ()
    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    must_exist: bool = True
    """Whether a name of no table is refused; one of an earlier run may be gone from the definitions."""
    sinks: Sequence[str] = ()
    """Sinks whose flows begin again. Spark takes no names of sinks: they run where no table is named."""
    renamed_flows: Mapping[str, str] = field(default_factory=dict)
    """Flows that have another name now, by the name that they had."""
    renamed_sinks: Mapping[str, str] = field(default_factory=dict)
    """Sinks that have another name now, by the name that they had."""
    new_flows: Sequence[str] = ()
    """Flows that are new, although others into the same sink are gone."""

    def spelled(self, tables: Mapping[str, str], sinks: Collection[str] = ()) -> Selection:
        """The same tables, spelled as the definitions do: Spark compares them letter by letter. `tables` has
        the spellings. A name of no table is refused: Spark would update nothing, and report success.

        >>> tables = {"raworders": "rawOrders", "turnover": "turnover"}
        >>> Selection(refresh=["default.RAWORDERS"]).spelled(tables).refresh
        ('default.rawOrders',)
        >>> Selection(full_refresh=["ordres"]).spelled(tables)
        Traceback (most recent call last):
        ottla.spark.pipelines.selection.UnknownTables: there is no table ordres; there are rawOrders, turnover
        """

        def spell(name: str) -> str:
            found = tables.get(table_key(name))
            if found is not None:
                return name[: name.rfind(".") + 1] + found.rpartition(".")[2]
            if table_key(name) in sinks:
                raise UnknownTables(
                    f"{name} is a sink, and none of its flows has a checkpoint on this machine: there is "
                    "nothing to refresh"
                )
            if self.must_exist:
                known = f"there are {', '.join(sorted(tables.values()))}" if tables else "there is none"
                raise UnknownTables(f"there is no table {name}; {known}")
            return name

        for name in self.sinks:
            if table_key(name) not in sinks:
                raise UnknownTables(f"the definitions have no sink {name} any more")
        return replace(
            self,
            refresh=tuple(spell(name) for name in self.refresh),
            full_refresh=tuple(spell(name) for name in self.full_refresh),
        )

    def recomputes(self, table: str) -> bool:
        """Whether this table is computed from scratch."""
        return self.full_refresh_all or table_key(table) in set(map(table_key, self.full_refresh))

    def includes(self, table: str) -> bool:
        chosen = set(map(table_key, (*self.refresh, *self.full_refresh)))
        return not chosen or table_key(table) in chosen

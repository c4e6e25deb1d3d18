"""`ottla configs`: show and change settings, and where their values come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.config_names import check_removed_names, describe_configs, explain_unknown_names
from ottla.cli.errors import CliError, WrongUsage, did_you_mean
from ottla.cli.options import (
    COMMON,
    Common,
    DryRun,
    named_values,
)
from ottla.cli.output import note, print_json, print_line, print_table
from ottla.cli.session import topic_or_fail, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.configs import Config, ResourceType

HELP: Final = "Describe and change the settings of topics, brokers and groups."
app = group("configs", HELP)

Topic = Annotated[str | None, Option("--topic", "-t", metavar="NAME", help="The settings of a topic.")]
Broker = Annotated[
    str | None,
    Option("--broker", metavar="ID|default", help="The settings of a broker, or the default of all brokers."),
]
Logger = Annotated[
    str | None, Option("--broker-logger", metavar="ID", help="The log levels of a broker's loggers.")
]
Group = Annotated[str | None, Option("--group", "-g", metavar="NAME", help="The settings of a group.")]
Metrics = Annotated[
    str | None,
    Option("--client-metrics", metavar="NAME", help="The settings of a client metrics subscription."),
]


def _resource(
    topic: str | None,
    broker: str | None,
    logger: str | None,
    group_name: str | None,
    metrics: str | None,
    *,
    words: Sequence[str] = (),
) -> tuple[ResourceType, str]:
    """The resource that the options name; `words` are the arguments, which may name it by mistake."""
    from ottla.client.admin.configs import ResourceType

    given = [
        (kind, name)
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.BROKER, broker),
            (ResourceType.BROKER_LOGGER, logger),
            (ResourceType.GROUP, group_name),
            (ResourceType.CLIENT_METRICS, metrics),
        )
        if name is not None
    ]
    if len(given) != 1:
        problem = "name one of --topic, --broker, --broker-logger, --group and --client-metrics"
        kinds = {"topic": "--topic", "broker": "--broker", "group": "--group"}
        if not given and words and (meant := kinds.get(words[0].lower().removesuffix("s"))):
            problem += f"; did you mean {' '.join([meant, *words[1:]])}?"
        raise WrongUsage(problem)
    kind, name = given[0]
    if kind is ResourceType.BROKER and name == "default":
        return kind, ""
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and not name.isdecimal():
        raise WrongUsage(f"--broker {name}: expected the id of a broker, or default")
    return kind, name


async def _check(admin: Admin, kind: ResourceType, name: str) -> None:
    """Raise a helpful error if the resource does not exist, before the request."""
    from ottla.client.admin.configs import ResourceType

    if kind is ResourceType.TOPIC:
        await topic_or_fail(admin, name)
    elif kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name:
        brokers = [broker.node_id for broker in (await admin.cluster.describe()).brokers]
        if int(name) not in brokers:
            raise CliError(f"there is no broker {name}; there are {', '.join(map(str, brokers))}")


@command(app, "describe")
def describe(
    keys: Annotated[list[str] | None, Argument(metavar="[SETTING]...", help="Only these settings.")] = None,
    topic: Topic = None,
    broker: Broker = None,
    logger: Logger = None,
    group_name: Group = None,
    metrics: Metrics = None,
    everything: Annotated[
        bool, Option("--all", "-a", help="Show defaults too, not only what is set.")
    ] = False,
    docs: Annotated[bool, Option("--docs", help="Show what each setting means.")] = False,
    common: Common = COMMON,
) -> None:
    """Show settings and where their values come from."""
    kind, name = _resource(topic, broker, logger, group_name, metrics, words=keys or ())

    async def work(admin: Admin) -> dict[str, Config]:
        await _check(admin, kind, name)
        return await describe_configs(admin, kind, name, keys or (), documentation=docs)

    configs = with_admin(common, work)
    for key in keys or ():
        if key not in configs:
            raise CliError(f"there is no setting {key}{did_you_mean(key, configs)}")
    shown = [
        config
        for _, config in sorted(configs.items())
        if (config.name in keys if keys else everything or not _is_inherited(config, kind))
    ]
    if common.as_json:
        print_json([_document(config) for config in shown])
        return
    columns = ["setting", "value", "from"]
    rows = [[c.name, _value(c), c.source.name.lower().replace("_", " ")] for c in shown]
    if docs:
        columns.append("meaning")
        rows = [[*row, c.documentation or ""] for row, c in zip(rows, shown)]
    print_table(columns, rows)
    if not rows:
        note("nothing is set; --all shows the defaults")


def _is_inherited(config: Config, kind: ResourceType) -> bool:
    from ottla.client.admin.configs import ConfigSource, ResourceType

    if kind is ResourceType.TOPIC:
        return config.source is not ConfigSource.TOPIC
    return config.source in (ConfigSource.DEFAULT, ConfigSource.UNKNOWN)


def _value(config: Config) -> str:
    return "(hidden)" if config.is_sensitive else (config.value if config.value is not None else "")


def _document(config: Config) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "source": config.source.name,
        "read_only": config.is_read_only,
        "sensitive": config.is_sensitive,
        "synonyms": [{"name": n, "value": v, "source": s.name} for n, v, s in config.synonyms],
        **({"documentation": config.documentation} if config.documentation is not None else {}),
    }


class _Shown:
    """Values as they may be repeated: what a command prints is seen, logged and sent to others."""

    def __init__(self, kind: ResourceType) -> None:
        self._kind = kind

    def __call__(self, name: str, value: str) -> str:
        from ottla.node.config.describe import is_sensitive

        return "(hidden)" if is_sensitive(int(self._kind), name) else value


@command(app, "alter")
def alter(
    topic: Topic = None,
    broker: Broker = None,
    logger: Logger = None,
    group_name: Group = None,
    metrics: Metrics = None,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set", "-s", metavar="NAME=VALUE", help="Set a value; may be repeated, like the options below."
        ),
    ] = None,
    delete: Annotated[
        list[str] | None, Option("--delete", "-d", metavar="NAME", help="Reset to the default.")
    ] = None,
    append: Annotated[
        list[str] | None, Option("--append", metavar="NAME=VALUE", help="Add a value to a list.")
    ] = None,
    subtract: Annotated[
        list[str] | None, Option("--subtract", metavar="NAME=VALUE", help="Remove a value from a list.")
    ] = None,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Change settings: all that are given, or none."""
    kind, name = _resource(topic, broker, logger, group_name, metrics)
    sets = named_values("--set", set_ or ())
    appends = named_values("--append", append or ())
    subtracts = named_values("--subtract", subtract or ())
    deletes = list(delete or ())
    shown = _Shown(kind)
    changes = [
        *(f"{key}={shown(key, value)}" for key, value in sets.items()),
        *(f"{key} to its default" for key in deletes),
        *(f"{key} with {shown(key, value)}" for key, value in appends.items()),
        *(f"{key} without {shown(key, value)}" for key, value in subtracts.items()),
    ]
    if not changes:
        raise WrongUsage("nothing to change: give --set, --delete, --append or --subtract")

    async def work(admin: Admin) -> None:
        await _check(admin, kind, name)
        await check_removed_names(admin, kind, name, deletes)
        async with explain_unknown_names(admin, kind, name, [*sets, *appends, *subtracts]):
            await admin.configs.alter(
                kind,
                name,
                set=sets,
                delete=deletes,
                append=appends,
                subtract=subtracts,
                validate_only=dry_run,
            )

    with_admin(common, work)
    subject = f"{kind.name.lower().replace('_', ' ')} {name or 'default'}"
    if common.as_json:
        print_json({"resource": kind.name, "name": name, "dry_run": dry_run, "changes": changes})
    else:
        print_line(f"{subject}: {'would change' if dry_run else 'changed'}: {'; '.join(changes)}")


@command(app, "list")
def list_resources(
    common: Common = COMMON,
) -> None:
    """List resources that have settings: topics, brokers, groups, client metrics."""

    async def work(admin: Admin) -> list[tuple[ResourceType, str]]:
        return await admin.configs.resources()

    found = sorted(with_admin(common, work))
    if common.as_json:
        print_json([{"type": kind.name, "name": name} for kind, name in found])
    else:
        print_table(["type", "name"], [(kind.name.lower().replace("_", " "), name) for kind, name in found])

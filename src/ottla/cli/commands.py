"""Build commands from typed functions.

A parameter's type says how its value is parsed, its `Option` or `Argument` how it appears on the command
line, and its default whether it is optional. A parameter that is a dataclass has an option for each field.
Names of commands and options are written nowhere else, so help, parsing and shell completion cannot differ.

    @command(app, "list")
    def list_topics(pattern: Annotated[str | None, Argument(help="...")] = None) -> None: ...
"""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import click
from click.shell_completion import CompletionItem

from ottla.cli import command_config
from ottla.cli.errors import USAGE, Interrupted, OutputClosed, did_you_mean

SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["--help", "-h"], "max_content_width": 100}


class Option:
    """A named parameter. A bool is a flag, a list may be repeated. `implied` is the value of an option that
    is given without one.
    """

    def __init__(
        self,
        *names: str,
        metavar: str | None = None,
        help: str | None = None,
        min: float | None = None,
        max: float | None = None,
        envvar: str | None = None,
        choices: Sequence[str] | None = None,
        implied: str | None = None,
        complete: Callable[[str], list[str]] | None = None,
    ) -> None:
        self.names = names
        self.metavar = metavar
        self.help = help
        self.min = min
        self.max = max
        self.envvar = envvar
        self.choices = choices
        self.implied = implied
        self.complete = complete


@dataclass(frozen=True, slots=True)
class Argument:
    """A positional parameter. A list takes all remaining arguments."""

    metavar: str | None = None
    help: str | None = None
    choices: Sequence[str] | None = None
    complete: Callable[[str], list[str]] | None = None


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags by the names that the function gets as keywords, each with its help."""

    helps: Mapping[str, str]


def group(name: str, help: str) -> click.Group:
    return Group(name, help=help, no_args_is_help=False, context_settings=SETTINGS)


def command(
    parent: click.Group | None, name: str, *, help: str | None = None
) -> Callable[[Callable[..., None]], click.Command]:
    """Build a command from a function, and add it to its group."""

    def build(function: Callable[..., None]) -> click.Command:
        built = make_command(function, name, help)
        if parent is not None:
            parent.add_command(built)
        return built

    return build


def make_command(function: Callable[..., None], name: str, help: str | None = None) -> click.Command:
    hints = get_type_hints(function, include_extras=True)
    bundles = {each: hint for each, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    parameters: dict[str, inspect.Parameter] = {}
    for each, parameter in inspect.signature(function).parameters.items():
        if each in bundles:
            parameters |= inspect.signature(bundles[each]).parameters
            hints |= get_type_hints(bundles[each], include_extras=True)
        else:
            parameters[each] = parameter
    built = [each for p in parameters.values() for each in _parameters(p, hints[p.name])]
    connects = not parameters.keys().isdisjoint(("bootstrap", "registry"))
    if connects:
        built.append(_command_config_option())
    lists = {p.name: _is_optional(hints[p.name]) for p in parameters.values() if _is_list(hints[p.name])}

    def call(**values: Any) -> None:
        with command_config.for_one_command(values.pop("command_config") if connects else None):
            run(values)

    def run(values: dict[str, Any]) -> None:
        for each, optional in lists.items():
            values[each] = None if optional and not values[each] else list(values[each] or ())
        for each, bundle in bundles.items():
            values[each] = bundle(**{field.name: values.pop(field.name) for field in fields(bundle)})
        # Raised under other names, as click handles these two itself.
        try:
            function(**values)
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            raise OutputClosed from None

    text = inspect.cleandoc(help or function.__doc__ or "")
    return Command(name, callback=call, params=built, help=text, context_settings=SETTINGS)


def _command_config_option() -> click.Option:
    return click.Option(
        [command_config.NAME, "command_config"],
        metavar="FILE",
        help="Properties of the client, such as security.protocol and ssl.truststore.location.",
        envvar=command_config.VARIABLE,
        show_envvar=True,
        type=click.STRING,
    )


def _parameters(parameter: inspect.Parameter, hint: Any) -> list[click.Parameter]:
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
        return [_parameter(parameter, hint)]
    (flags,) = hint.__metadata__
    assert isinstance(flags, Flags), f"{parameter.name} has no Flags"
    return [click.Option([f"--{name}"], is_flag=True, help=help) for name, help in flags.helps.items()]


def _parameter(parameter: inspect.Parameter, hint: Any) -> click.Parameter:
    assert get_origin(hint) is Annotated, f"{parameter.name} has no Option or Argument"
    inner, declared = get_args(hint)
    kind = _plain(inner)
    is_list = get_origin(kind) is list
    if is_list:
        kind = get_args(kind)[0]
    required = parameter.default is inspect.Parameter.empty
    default = None if required else parameter.default
    # A default of None is a value to click: a required parameter must not have any default.
    defaults: dict[str, Any] = {} if required else {"default": default}
    complete = partial(_complete, declared.complete) if declared.complete is not None else None
    if isinstance(declared, Argument):
        return DocumentedArgument(
            [parameter.name],
            help=declared.help,
            metavar=declared.metavar,
            required=required,
            **defaults,
            nargs=-1 if is_list else 1,
            type=_type(kind, declared.choices),
            shell_complete=complete,
        )
    assert isinstance(declared, Option)
    if kind is bool:
        return click.Option(
            [*declared.names, parameter.name], is_flag=True, default=default, help=declared.help
        )
    optional: dict[str, Any] = {}
    if declared.implied is not None:
        optional = {"is_flag": False, "flag_value": declared.implied}
    return click.Option(
        [*declared.names, parameter.name],
        help=declared.help,
        metavar=declared.metavar or ("N" if kind in (int, float) else None),
        required=required,
        **defaults,
        show_default=default is not None,
        envvar=declared.envvar,
        show_envvar=True,
        multiple=is_list,
        type=_type(kind, declared.choices, declared.min, declared.max),
        shell_complete=complete,
        **optional,
    )


def _type(
    kind: Any, choices: Sequence[str] | None, least: float | None = None, most: float | None = None
) -> click.ParamType[Any]:
    if choices is not None:
        return click.Choice(choices, case_sensitive=False)
    if kind is int:
        return click.INT if least is None and most is None else click.IntRange(_int(least), _int(most))
    if kind is float:
        return FiniteFloat(least, most)
    assert kind is str, kind
    return click.STRING


def _int(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _plain(hint: Any) -> Any:
    """The type without `| None`."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    return hint


def _is_list(hint: Any) -> bool:
    return get_origin(_plain(get_args(hint)[0])) is list


def _is_optional(hint: Any) -> bool:
    return type(None) in get_args(get_args(hint)[0])


def _complete(
    known: Callable[[str], list[str]], context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    servers = context.params.get("bootstrap") or ""
    return [CompletionItem(name) for name in known(servers) if name.startswith(incomplete)]


class FiniteFloat(click.FloatRange):
    """A number of seconds, minutes or the like: `nan` passes every comparison with a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class DocumentedArgument(click.Argument):
    """An argument with a help text."""

    def __init__(self, *args: Any, help: str | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = help

    def get_help_record(self, context: click.Context) -> tuple[str, str]:
        return self.make_metavar(context), self.help or ""


class Command(click.Command):
    """A command whose help lists arguments before options."""

    def format_arguments(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Do nothing: older versions of click have no section for arguments. See `format_options`."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, kind in (("Arguments", click.Argument), ("Options", click.Option)):
            records = [p.get_help_record(context) for p in self.get_params(context) if isinstance(p, kind)]
            shown = [each for each in records if each is not None and (each[1] or kind is click.Option)]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)


class Group(click.Group):
    """A group that suggests the nearest command for an unknown name, and prints its help without one."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not args and not context.resilient_parsing:
            print(context.get_help(), file=sys.stderr)
            context.exit(USAGE)
        return super().parse_args(context, args)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name == "help":  # `ottla help topics` is `ottla topics --help`
            if args[1:]:
                return self.resolve_command(context, [*args[1:], "--help"])
            print(context.get_help())
            context.exit()
        if self.get_command(context, name) is None and not name.startswith("-"):
            hint = did_you_mean(name, self.list_commands(context))
            raise click.UsageError(f"there is no command {name}{hint}", context)
        return super().resolve_command(context, args)

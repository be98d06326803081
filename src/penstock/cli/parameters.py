"""Parameters of commands: their signatures and docstrings become parsers of argparse.

A parameter is an option, unless its annotation has an `Argument`. Its line in the Args of the
docstring is its help. A parameter whose type is a dataclass stands for the fields of that.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

__all__ = [
    "Argument",
    "BadUsage",
    "Described",
    "Option",
    "Parser",
    "described",
    "directory",
    "plain",
]


class BadUsage(Exception):
    """The arguments of a command can't be used; the text says why. The exit code is 2."""


@dataclass(frozen=True)
class Argument:
    """Marks a parameter that is given by its place.

    Args:
        metavar: its name in the help.
    """

    metavar: str


@dataclass(frozen=True)
class Option:
    """Says more about a parameter that is given by its name.

    Args:
        names: as the user types it. Default: the parameter's name.
        metavar: name of the value in the help.
        low, high: bounds of a number.
        convert: makes the value of a text; raises ValueError.
        hidden: leave it out of the help.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    low: float | None = None
    high: float | None = None
    convert: Callable[[str], Any] | None = None
    hidden: bool = False


METAVARS = {float: "SECONDS", int: "N", str: "TEXT", Path: "FILE"}
"""Names of the values of options in the help, unless an option has one of its own."""


class Parser(argparse.ArgumentParser):
    """Parses the arguments of a command; a wrong one raises BadUsage."""

    def error(self, message: str) -> NoReturn:
        """Raise BadUsage."""
        raise BadUsage(f"{message}; see `{self.prog} --help`")


class _Layout(argparse.HelpFormatter):
    """Wraps each paragraph of a description; keeps the lines of one that is indented."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        wrapped = (
            part if "\n  " in part else textwrap.fill(" ".join(part.split()), width)
            for part in parts
        )
        return textwrap.indent("\n\n".join(wrapped), indent)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command, as its signature and docstring say it."""

    name: str
    kind: Any
    default: Any
    mark: Argument | Option
    help: str

    @property
    def required(self) -> bool:
        """Return whether it has no default."""
        return self.default is inspect.Parameter.empty

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declare it."""
        inner, several = plain(self.kind)
        text = argparse.SUPPRESS if getattr(self.mark, "hidden", False) else self.help
        told: dict[str, Any] = {"help": text.replace("%", "%%")}
        if get_origin(inner) is Literal:
            told["choices"] = get_args(inner)
        elif inner is not bool:
            told["type"] = _converter(inner, self.mark)
        if not self.required:
            told["default"] = self.default
        if isinstance(self.mark, Argument):
            many = ("+" if self.required else "*") if several else "?"
            if several or not self.required:
                told["nargs"] = many
            parser.add_argument(self.name, metavar=self.mark.metavar, **told)
            return
        if inner is bool:
            told["action"] = "store_true"
        else:
            told["metavar"] = self.mark.metavar or METAVARS.get(inner)
            if several:
                told["action"] = "append"
        parser.add_argument(*self.flags, dest=self.name, **told)

    @property
    def flags(self) -> tuple[str, ...]:
        """Return an option's names."""
        names = self.mark.names if isinstance(self.mark, Option) else ()
        return names or (f"--{self.name.replace('_', '-')}",)


@dataclass(frozen=True)
class Described:
    """A function with parameters, as its docstring describes it.

    Attributes:
        text: the docstring before its Args.
        parameters: its parameters.
        examples: command lines, one a line.
        bundles: the parameters whose types are dataclasses.
    """

    text: str
    parameters: list[Parameter]
    examples: list[str]
    bundles: Mapping[str, Any] = field(default_factory=dict)

    def bundle(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the function's own parameters, from those of all options."""
        bundled = {
            name: kind(**{one.name: values.pop(one.name) for one in fields(kind)})
            for name, kind in self.bundles.items()
        }
        return {**values, **bundled}

    def parser(self, prog: str, more: Iterable[Parameter] = ()) -> Parser:
        """Return a parser of its arguments, and of more options."""
        examples = "\n  ".join(["examples:", *self.examples])
        parser = Parser(
            prog,
            description=self.text.replace("%", "%%"),
            epilog=examples.replace("%", "%%") if self.examples else None,
            formatter_class=_Layout,
            allow_abbrev=False,
        )
        for one in (*self.parameters, *more):
            one.add_to(parser)
        return parser


def described(function: Callable[..., Any]) -> Described:
    """Read a function's signature and docstring; a first parameter `session` is left out."""
    head, _, listed = (inspect.getdoc(function) or "").partition("\n\nExamples:\n")
    text, _, args = head.partition("\n\nArgs:\n")
    helps = dict(re.findall(r"^    (\w+): ((?:.|\n {8})+)", args, flags=re.MULTILINE))
    own = [
        one
        for one in inspect.signature(function, eval_str=True).parameters.values()
        if one.name != "session"
    ]
    bundles: dict[str, Any] = {
        one.name: one.annotation for one in own if is_dataclass(one.annotation)
    }
    parameters = list[Parameter]()
    for one in own:
        if one.name in bundles:
            parameters += described(bundles[one.name]).parameters
        else:
            parameters.append(_parameter(one, " ".join(helps.get(one.name, "").split())))
    examples = [line.strip() for line in listed.splitlines() if line]
    return Described(text, parameters, examples, bundles)


def _parameter(one: inspect.Parameter, text: str) -> Parameter:
    kind: Any = one.annotation
    mark: Argument | Option = Option()
    if get_origin(kind) is Annotated:
        kind, mark = get_args(kind)
    return Parameter(one.name, kind, one.default, mark, text[:1].upper() + text[1:])


def plain(kind: Any) -> tuple[Any, bool]:
    """Return the type of one value, and whether there may be several: of `list[str] | None`."""
    if get_origin(kind) in (Union, UnionType):
        [kind] = [one for one in get_args(kind) if one is not type(None)]
    return (get_args(kind)[0], True) if get_origin(kind) is list else (kind, False)


def _converter(kind: Any, mark: Argument | Option) -> Callable[[str], Any]:
    if isinstance(mark, Argument):
        return kind  # type: ignore[no-any-return]  # a type
    make, low, high = mark.convert or kind, mark.low, mark.high

    def convert(text: str) -> Any:
        try:
            value = make(text)
        except ValueError as error:
            reason = str(error) if mark.convert else f"{text!r} is not {NUMBER_WORDS[kind]}"
            raise argparse.ArgumentTypeError(reason) from None
        is_inside = (low is None or value >= low) and (high is None or value <= high)
        if not is_inside:  # NaN is inside no bounds
            bounds = [f"at least {low}"] if low is not None else []
            bounds += [f"at most {high}"] if high is not None else []
            raise argparse.ArgumentTypeError(f"{text} must be {' and '.join(bounds)}")
        return value

    return convert


NUMBER_WORDS = {int: "a whole number", float: "a number"}


def directory(text: str) -> Path:
    """Return the path of a directory.

    Raises:
        ValueError: there is none.
    """
    path = Path(text).resolve()
    if not path.is_dir():
        raise ValueError(f"{text!r} is not a directory")
    return path

"""The command `completion`: a script that completes commands, options and names of queues."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, get_args, get_origin

from penstock.cli import COMMANDS
from penstock.cli.app import COMMON, Session, command, loaded
from penstock.cli.parameters import Argument, Option, Parameter, described, plain

__all__ = ["completion"]

SCRIPT = """\
# Completes the words of penstock in bash. In zsh, first: autoload -U bashcompinit; bashcompinit
_penstock() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local command= place=0 words= name i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "${{COMP_WORDS[i]}}" in
            {valued}) ((i++)) ;;
            -*) ;;
            *) if [[ -z $command ]]; then command=${{COMP_WORDS[i]}}; else ((place++)); fi ;;
        esac
    done
    case "$command $before" in
{choices}
        {other_values}) return ;;
        *)
            case "$command" in
{commands}
            esac ;;
    esac
    # The words are constants, but for the names of queues: those are never expanded.
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [[ $word != -* ]]; then
        case "$command $place" in
            {queues})
                while IFS= read -r name; do
                    [[ $name == "$word"* ]] && COMPREPLY+=("$(printf %q "$name")")
                done < <("${{COMP_WORDS[0]}}" queues 2>/dev/null) ;;
        esac
    fi
}}
complete -o default -F _penstock penstock
"""


@command("completion", common=False)
def completion(
    session: Session,  # noqa: ARG001 - it needs no server
    shell: Annotated[Literal["bash"], Argument("SHELL")] = "bash",  # noqa: ARG001 - there is one
) -> None:
    """Print a script that completes commands, options and names of queues, for bash and zsh.

    Args:
        shell: bash; its script also runs in zsh, after `bashcompinit`.

    Examples:
        penstock completion bash > ~/.local/share/bash-completion/completions/penstock
    """
    sys.stdout.write(script())


def script() -> str:
    """Return the script: it has all words in it, so completing them takes no process."""
    parameters = {name: list(_parameters(name)) for name in COMMANDS}
    options = {
        name: [flag for one in found if _is_shown(one) for flag in one.flags]
        for name, found in parameters.items()
    }
    every = [one for found in parameters.values() for one in found]
    names = " ".join([*COMMANDS, *(flag for one in COMMON for flag in one.flags), "--version"])
    lines = [f'{8 * " "}        "") words={shlex.quote(names)} ;;']
    lines += [
        f"                {name}) words={shlex.quote(' '.join(told))} ;;"
        for name, told in options.items()
    ]
    valued = sorted({flag for one in every if _has_value(one) for flag in one.flags})
    return SCRIPT.format(
        valued="|".join(valued),
        choices="\n".join(_choices(parameters)),
        other_values="|".join(f'*" {flag}"' for flag in valued),
        commands="\n".join(lines),
        queues="|".join(_with_queues(parameters)),
    )


def _parameters(name: str) -> Iterator[Parameter]:
    found = loaded(name)
    yield from described(found.function).parameters
    if found.common:
        yield from COMMON


def _is_shown(one: Parameter) -> bool:
    return isinstance(one.mark, Option) and not one.mark.hidden


def _has_value(one: Parameter) -> bool:
    return isinstance(one.mark, Option) and plain(one.kind)[0] is not bool


def _choices(parameters: dict[str, list[Parameter]]) -> Iterator[str]:
    """Yield a line of the script for each option that takes one of a few words."""
    for name, found in parameters.items():
        for one in found:
            kind, _ = plain(one.kind)
            if get_origin(kind) is Literal and isinstance(one.mark, Option):
                for flag in one.flags:
                    words = shlex.quote(" ".join(get_args(kind)))
                    yield f'        "{name} {flag}") words={words} ;;'


def _with_queues(parameters: dict[str, list[Parameter]]) -> Iterable[str]:
    """Yield patterns of places where the name of a queue stands: "stats 0"."""
    for name, found in parameters.items():
        for one in found:
            if isinstance(one.mark, Argument) and one.mark.metavar == "QUEUE":
                several = plain(one.kind)[1]
                yield f'"{name} "*' if several else f'"{name} 0"'

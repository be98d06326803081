"""The command `completion`: a script that completes commands, options and names of queues."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args, get_origin

from penstock.cli.app import SESSION_PARAMETERS, Session, command, loaded
from penstock.cli.commands import COMMANDS
from penstock.cli.parameters import Argument, Option, described, plain

__all__ = ["completion"]

COMPLETION_SCRIPT = """\
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
{commands}
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
    words = {
        "": [*COMMANDS, *(flag for one in SESSION_PARAMETERS for flag in one.flags), "--version"]
    }
    choices, valued, queues = list[str](), set[str](), list[str]()
    for name in COMMANDS:
        options, arguments = _parameters(name)
        words[name] = [flag for one in options if not one.mark.hidden for flag in one.flags]
        for one in options:
            kind, _ = plain(one.kind)
            valued.update(one.flags if kind is not bool else ())
            if get_origin(kind) is Literal:
                choices += [_case(f'"{name} {flag}"', get_args(kind)) for flag in one.flags]
        for one in arguments:
            if one.mark.metavar == "QUEUE":
                queues.append(f'"{name} "*' if plain(one.kind)[1] else f'"{name} 0"')
    return COMPLETION_SCRIPT.format(
        valued="|".join(sorted(valued)),
        choices="\n".join(choices),
        other_values="|".join(f'*" {flag}"' for flag in sorted(valued)),
        commands="\n".join(_case(f'"{name} "*', told) for name, told in words.items()),
        queues="|".join(queues),
    )


def _parameters(name: str) -> tuple[list[Any], list[Any]]:
    found = loaded(name)
    every = [*described(found.function).parameters, *(SESSION_PARAMETERS if found.common else ())]
    options = [one for one in every if isinstance(one.mark, Option)]
    return options, [one for one in every if isinstance(one.mark, Argument)]


def _case(pattern: str, words: Iterable[str]) -> str:
    return f"        {pattern}) words={shlex.quote(' '.join(words))} ;;"

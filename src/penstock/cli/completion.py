"""The command `completion`: a script that completes commands, options and names of queues."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from penstock.cli.app import SESSION_PARAMETERS, Session, command, loaded
from penstock.cli.commands import COMMANDS
from penstock.cli.parameters import Argument, Option, Parameter, described, plain

__all__ = ["completion"]

COMPLETION_SCRIPT = """\
# Completes the words of penstock in bash and zsh.
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
ZSH_START = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
"""zsh reads completions of bash."""


@command("completion", common=False)
def completion(
    session: Session,  # noqa: ARG001 - it needs no server
    shell: Annotated[Literal["bash", "zsh", "fish"], Argument("SHELL")] = "bash",
) -> None:
    """Print a script that completes commands, options and names of queues.

    Args:
        shell: the shell that reads it; of zsh in ~/.zshrc, by `source`.

    Examples:
        penstock completion bash > ~/.local/share/bash-completion/completions/penstock
        penstock completion fish > ~/.config/fish/completions/penstock.fish
        penstock completion zsh > ~/.penstock.zsh
    """
    if shell == "fish":
        sys.stdout.writelines(f"{line}\n" for line in fish_script())
    else:
        sys.stdout.write((ZSH_START if shell == "zsh" else "") + bash_script())


def bash_script() -> str:
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


def fish_script() -> Iterator[str]:
    """Yield the lines of the script for fish."""
    yield "# Completes the words of penstock in fish."
    before = "-n __fish_use_subcommand"
    yield from (_fish_option(before, one) for one in SESSION_PARAMETERS)
    yield f"complete -c penstock {before} -l version"
    for name, listed in COMMANDS.items():
        yield f"complete -c penstock {before} -f -a {name} -d {_fish_quoted(listed.summary)}"
        behind = f"-n '__fish_seen_subcommand_from {name}'"
        options, arguments = _parameters(name)
        yield from (_fish_option(behind, one) for one in options if not one.mark.hidden)
        for one in arguments:
            kind, _ = plain(one.kind)
            if one.mark.metavar == "QUEUE":
                yield f"complete -c penstock {behind} -f -a '(penstock queues 2>/dev/null)'"
            elif get_origin(kind) is Literal:
                yield f"complete -c penstock {behind} -f -a '{' '.join(get_args(kind))}'"


def _fish_option(condition: str, one: Parameter) -> str:
    kind, _ = plain(one.kind)
    names = " ".join(f"-l {flag[2:]}" if flag[1] == "-" else f"-s {flag[1:]}" for flag in one.flags)
    value = "" if kind is bool else " -r" if kind is Path else " -x"
    if get_origin(kind) is Literal:
        value += f" -a '{' '.join(get_args(kind))}'"
    text = _fish_quoted(one.help.partition(". ")[0])
    return f"complete -c penstock {condition} {names}{value} -d {text}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

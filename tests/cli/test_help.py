"""The help of commands, and the completion of their words."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.cli.app import loaded, main_parser
from penstock.cli.commands import COMMANDS
from penstock.cli.parameters import described
from tests.cli.support import Cli, environment
from tests.support.backends import Backend

EXAMPLES = [line for name in COMMANDS for line in described(loaded(name).function).examples]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_examples(run_cli: Cli, name: str) -> None:
    """Its page ends with them, and they call this command."""
    examples = described(loaded(name).function).examples
    assert examples
    assert all(line.startswith(f"penstock {name}") for line in examples)
    page = run_cli(name, "--help").out
    assert page.endswith("examples:\n" + "".join(f"  {line}\n" for line in examples))


@pytest.mark.parametrize("line", EXAMPLES)
def test_each_example_parses(line: str) -> None:
    """The options and arguments of an example exist."""
    _, *argv = shlex.split(line.partition(" > ")[0])
    given = main_parser().parse_args(argv)
    loaded(given.command).parser().parse_intermixed_args(given.rest)


def test_the_list_agrees_with_the_commands() -> None:
    """Each name stands for the function of that command, and no command is missing."""
    for name in COMMANDS:
        assert loaded(name).name == name
        assert inspect.getdoc(loaded(name).function)
    directory = Path(inspect.getfile(loaded)).parent
    declared = {
        found
        for file in directory.rglob("*.py")
        for found in re.findall(r'^@command\("(\w+)"', file.read_text(), flags=re.MULTILINE)
    }
    assert declared == set(COMMANDS)
    assert max(len(one.summary) for one in COMMANDS.values()) <= 66


def test_a_similar_command_is_named(run_cli: Cli) -> None:
    """A mistyped command is answered with the nearest one."""
    assert "there is no command 'stat' (did you mean 'stats'?)" in run_cli("stat").err


def completed(cli: Cli, *words: str, url: str = "", programs: str = "") -> list[str]:
    """Return the words that bash offers for the last one of a command line."""
    script = cli("completion", "bash").out
    typed = " ".join(map(shlex.quote, words))
    code = (
        f"{script}\n{programs}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}\n"
        '_penstock; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", code],
        env=environment(PENSTOCK_URL=url),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    "words, offered",
    [
        (["penstock", "redr"], ["redrive"]),
        (["penstock", "--ur"], ["--url"]),
        (["penstock", "peek", "q", "--sta"], ["--state", "--start"]),
        (["penstock", "peek", "q", "--state", "re"], ["ready"]),
        (["penstock", "--url", "peek", "stat"], ["stats"]),
        (["penstock", "worker", "--tri"], []),
        (["penstock", "enqueue", "q", "x", "--delay", "1"], []),
    ],
    ids=str,
)
def test_words_are_completed_in_bash(run_cli: Cli, words: list[str], offered: list[str]) -> None:
    """Commands, options, and the words that an option takes."""
    assert completed(run_cli, *words) == offered


def test_completion_in_zsh(run_cli: Cli) -> None:
    """Zsh reads the script of bash by its `bashcompinit`."""
    bash, zsh = (run_cli("completion", shell).out for shell in ("bash", "zsh"))
    first, _, rest = zsh.partition("\n")
    assert "bashcompinit" in first
    assert rest == bash


FISH_LINE = re.compile(
    r"complete -c penstock -n (__fish_use_subcommand|'__fish_seen_subcommand_from \w+')"
    r"( -f| -[xr]| -l [\w-]+| -s \w| -a '[^']*'| -a \w+| -d '(\\'|[^'\\])*')+"
)


def test_completion_in_fish(run_cli: Cli) -> None:
    """Each line is one rule: commands, their options, words, and names of queues."""
    first, *lines = run_cli("completion", "fish").out.splitlines()
    assert first.startswith("# ")
    assert [line for line in lines if not FISH_LINE.fullmatch(line)] == []
    for name in COMMANDS:
        assert any(f" -f -a {name} -d" in line for line in lines)
    peek = [line for line in lines if "from peek'" in line]
    assert any(" -l state -x -a 'ready scheduled parked active dead' " in line for line in peek)
    assert any(" -f -a '(penstock queues 2>/dev/null)'" in line for line in peek)
    assert not any("trial" in line for line in lines)


PROGRAM = f"""penstock() {{ {shlex.quote(sys.executable)} -m penstock "$@"; }}"""


def test_names_of_queues_are_completed(
    run_cli: Cli, real_backend: Backend, client: Penstock, tmp_path: Path
) -> None:
    """They are read from the server and quoted: a hostile name is never run."""
    trap = tmp_path / "trap"
    for name in ("emails", "errors", f"e$(touch {trap})`touch {trap}`"):
        client.queue(name).enqueue(1)
    offered = completed(
        run_cli, "penstock", "stats", "e", url=real_backend.url or "", programs=PROGRAM
    )
    assert {"emails", "errors"} <= set(offered)
    assert rf"e\$\(touch\ {trap}\)".split()[0] in offered
    assert not trap.exists()

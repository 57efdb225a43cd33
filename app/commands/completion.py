"""Build the shell script that completes commands, options and their values (``main.py --completion SHELL``)."""

import argparse
from collections.abc import Callable, Iterator, Mapping

COMMAND = "lenet5-inference"
FUNCTION = "_lenet5_inference"
MOST = 60  # the most characters of an option's description
ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"  # after this, zsh runs bash's script
Parsers = Mapping[str, argparse.ArgumentParser]


def completion_script(shell: str, parsers: Parsers, summaries: Mapping[str, str], main_job: str) -> str:
    """Return the completion script for ``shell``, a key of ``SHELLS``.

    parsers: parser of each command and of ``main_job``, by name. summaries: each command's line in the help, by name.
    """
    return SHELLS[shell](parsers, summaries, main_job)


def _option_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the argparse actions of the parser's options, without its positional arguments."""
    return (action for action in parser._actions if action.option_strings)


def _accepted_values(action: argparse.Action) -> list[str]:
    """Return the values that an option accepts; an empty list if there are too many to list."""
    from app.cuda.cards import DEVICES
    from app.network.definitions import NETWORKS

    known = {"network": [*NETWORKS], "device": [name for name in DEVICES if name != "cuda:N"]}
    return [*map(str, action.choices)] if action.choices else known.get(action.dest, [])


def _bash_script(parsers: Parsers, summaries: Mapping[str, str], main_job: str) -> str:
    cases = []
    for name, parser in parsers.items():
        actions = [*_option_actions(parser)]
        taking = [action for action in actions if action.nargs != 0]
        values = [(action, " ".join(_accepted_values(action))) for action in taking]
        options = " ".join(option for action in actions for option in action.option_strings)
        cases += [
            f"    {'*' if name == main_job else name})",
            '        case "$previous" in',
            *(f'        {"|".join(action.option_strings)}) words="{words}" ;;' for action, words in values),
            f'        *) words="{options}" ;;',
            "        esac ;;",
        ]
    return "\n".join(
        [
            f"{FUNCTION}() {{",
            '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words',
            '    case "${COMP_WORDS[1]}" in',
            *cases,
            "    esac",
            f'    [ "$COMP_CWORD" -gt 1 ] || words="$words {" ".join(summaries)}"',
            '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            f"complete -o default -F {FUNCTION} {COMMAND}",  # complete file names where nothing else fits
            "",
        ]
    )


def _fish_script(parsers: Parsers, summaries: Mapping[str, str], main_job: str) -> str:
    lines = [
        f"complete -c {COMMAND} -n __fish_use_subcommand -a {one} -d {_quote_for_shell(summaries[one])}"
        for one in summaries
    ]
    for name, parser in parsers.items():
        seen = "__fish_seen_subcommand_from"
        place = f"not {seen} {' '.join(summaries)}" if name == main_job else f"{seen} {name}"
        for action in _option_actions(parser):
            dashes = {1: "-s", 2: "-l"}
            options = [(one.lstrip("-"), dashes[one.count("-", 0, 2)]) for one in action.option_strings]
            names = " ".join(f"{kind} {option}" for option, kind in options)
            values = _accepted_values(action)
            takes = "" if action.nargs == 0 else f" -x -a {_quote_for_shell(' '.join(values))}" if values else " -r"
            about = _quote_for_shell((action.help or "").partition(" (")[0][:MOST])
            lines.append(f"complete -c {COMMAND} -n {_quote_for_shell(place)} {names}{takes} -d {about}")
    return "\n".join([*lines, ""])


def _quote_for_shell(text: str) -> str:
    """Return the text as a quoted word of the shell."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[Parsers, Mapping[str, str], str], str]] = {
    "bash": _bash_script,
    "zsh": lambda *parts: ZSH + _bash_script(*parts),
    "fish": _fish_script,
}

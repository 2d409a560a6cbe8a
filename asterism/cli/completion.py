"""``asterism completion``: scripts that complete commands and options in a shell.

They are made from the parser itself, so they know every command and option that it does.
"""

import argparse
from collections.abc import Iterator

from asterism.cli import output
from asterism.cli.arguments import parser

# zsh reads this too: `path` and `words` are names of its own, and it knows no slices of arrays.
_BASH = """\
# bash completion of asterism:  source <(asterism completion bash)
_asterism() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" place="" index offered=""
    for ((index = 1; index < COMP_CWORD; index++)); do
        case "$place ${{COMP_WORDS[index]}}" in
{paths}
        esac
    done
    case "$place" in
{words}
    esac
    case "$place ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    COMPREPLY=($(compgen -W "$offered" -- "$current"))
}}
complete -o default -F _asterism asterism
"""
_ZSH = """\
#compdef asterism
# zsh completion of asterism:  source <(asterism completion zsh)
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""
_FISH_HEAD = "# fish completion of asterism:  asterism completion fish | source\n"


def run(options: argparse.Namespace) -> int:
    output.say({"bash": bash, "zsh": zsh, "fish": fish}[options.shell]().rstrip("\n"))
    return output.DONE


def commands(
    of: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser, str]]:
    """Every command: the words that lead to it, its parser, its help; the whole line first."""
    if not path:
        yield path, of, ""
    for action in _inner(of):
        helps = {str(choice.dest): choice.help or "" for choice in action._choices_actions}
        for name, inner in action.choices.items():
            yield (*path, name), inner, helps.get(name, "")
            yield from commands(inner, (*path, name))


def _inner(
    of: argparse.ArgumentParser,
) -> "list[argparse._SubParsersAction[argparse.ArgumentParser]]":
    return [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]


def words_of(of: argparse.ArgumentParser) -> list[str]:
    """What may come next in a command: its own commands, else its choices and options."""
    words: list[str] = []
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += list(action.choices)
        else:
            words += action.option_strings
            if not action.option_strings and action.choices:
                words += [str(choice) for choice in action.choices]
    return words


def bash() -> str:
    found = list(commands(parser()))
    paths = [
        f'            "{" ".join(path[:-1])} {path[-1]}") place="{" ".join(path)}" ;;'
        for path, _, _ in found
        if path
    ]
    words = [
        f'        "{" ".join(path)}") offered="{" ".join(words_of(inner))}" ;;'
        for path, inner, _ in found
    ]
    values = [
        f'        "{" ".join(path)} {option}") offered="{" ".join(choices)}" ;;'
        for path, inner, _ in found
        for option, choices in values_of(inner).items()
    ]
    parts = {"paths": paths, "words": words, "values": values}
    return _BASH.format(**{name: "\n".join(lines) for name, lines in parts.items()})


def values_of(of: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The options of a command that take a value, and which it may be; none where any may."""
    return {
        option: [str(choice) for choice in action.choices or ()]
        for action in of._actions
        for option in action.option_strings
        if action.nargs != 0
    }


def zsh() -> str:
    return _ZSH + bash()


def fish() -> str:
    lines = [_FISH_HEAD + "complete -c asterism -f"]
    for path, inner, _ in commands(parser()):
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path)
        choices = [name for action in _inner(inner) for name in action.choices]
        unseen = f"not __fish_seen_subcommand_from {' '.join(choices)}" if choices else ""
        condition = "; and ".join(part for part in (seen, unseen) if part) or "true"
        helps = {
            str(choice.dest): choice.help or ""
            for action in _inner(inner)
            for choice in action._choices_actions
        }
        for name in choices:
            about = helps.get(name, "").replace("'", "")
            lines.append(f"complete -c asterism -n '{condition}' -a {name} -d '{about}'")
        for action in inner._actions:
            lines += _fish_options(action, condition)
    return "\n".join(lines) + "\n"


def _fish_options(action: argparse.Action, condition: str) -> list[str]:
    lines = []
    about = (action.help or "").replace("'", "")
    takes = ""
    if action.nargs != 0:
        choices = " ".join(map(str, action.choices or ()))
        takes = f" -r -f -a '{choices}'" if choices else " -r -F"
    for option in action.option_strings:
        kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
        lines.append(f"complete -c asterism -n '{condition}' {kind}{takes} -d '{about}'")
    if (
        not action.option_strings
        and action.choices
        and not isinstance(action, argparse._SubParsersAction)
    ):
        choices = " ".join(map(str, action.choices))
        lines.append(f"complete -c asterism -n '{condition}' -a '{choices}'")
    return lines

"""``headrace completion``: a script with which a shell completes the commands, options and choices of this version.

1. :func:`_rows` reads the commands and their options as they are declared.
2. :func:`_script` writes these rows as cases of a shell. The shell then starts no program to complete a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from inspect import signature
from typing import Annotated, Any, Literal, get_args, get_origin

from headrace.cli.arguments import argument
from headrace.cli.session import Session

# A pattern of what stands before the word, and the words that fit. The first row that matches counts.
Row = tuple[str, str]

_BASH = """\
_headrace() {
    local IFS=' ' found=''
    case "${COMP_WORDS[*]:1:COMP_CWORD-1} " in
%s
    esac
    COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _headrace headrace"""
_ZSH = """\
#compdef headrace
_headrace() {
    local IFS=' ' found=''
    case "${words[2,CURRENT-1]} " in
%s
    esac
    compadd -- ${=found} || _files
}
compdef _headrace headrace"""
_FISH = """\
function __headrace_words
    set -l before (commandline -opc)
    set -e before[1]
    set -l line (string join ' ' -- $before)
    switch "$line "
%s
    end
end
complete -c headrace -a '(__headrace_words)'"""


def completion(
    session: Session,
    shell: Annotated[Literal["bash", "zsh", "fish"], argument("bash|zsh|fish", "The shell that reads the script.")],
) -> None:
    """Print a script that completes commands, options and choices in a shell.

    Write in ~/.bashrc: eval "$(headrace completion bash)". In ~/.zshrc, after compinit: eval "$(headrace completion
    zsh)". In config.fish: headrace completion fish | source. Where nothing fits, the shell offers files.
    """
    session.output.line(_script(shell, _rows()))


def _rows() -> Iterator[Row]:
    from headrace.cli.commands import program

    root = program()
    alone = {str(one.name): one for one in root.registered_commands}
    groups = {str(one.name): one.typer_instance for one in root.registered_groups}
    for name, command in alone.items():
        yield from _rows_of(f"{name} ", command.callback)
    for name, group in groups.items():
        commands = {str(one.name): one for one in group.registered_commands} if group else {}
        for inner, command in commands.items():
            yield from _rows_of(f"{name} {inner} ", command.callback)
        yield f"{name} ", " ".join(commands)
    yield " ", " ".join((*alone, *groups, "--version", "--help"))


def _rows_of(path: str, command: Any) -> Iterator[Row]:
    words = ["--help"]
    for parameter in signature(command).parameters.values():
        kind, declared = get_args(parameter.annotation)
        choices = _choices(kind)
        # Typer keeps the first name as the default until it parses.
        names = [name for name in (declared.default, *(declared.param_decls or ())) if str(name).startswith("-")]
        words += [name for name in names if name.startswith("--")] or choices
        # The value of --reload may be left out.
        if kind is not bool and not declared.metavar.startswith("["):
            yield from ((f"{path}*{name} ", " ".join(choices)) for name in names)
    yield f"{path}*", " ".join(words)


def _choices(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [one.value for one in kind]
    parts = get_args(kind)
    return list(parts) if get_origin(kind) is Literal else [choice for part in parts for choice in _choices(part)]


def _script(shell: str, rows: Iterable[Row]) -> str:
    if shell == "fish":
        lines = [f"        case '{pattern}'\n            string split ' ' -- '{words}'" for pattern, words in rows]
        return _FISH % "\n".join(lines)
    # The space of a pattern is quoted, its star is not.
    quoted = ((pattern.replace(" ", "\\ "), words) for pattern, words in rows)
    lines = [f"        {pattern}) found='{words}' ;;" for pattern, words in quoted]
    return (_BASH if shell == "bash" else _ZSH) % "\n".join(lines)

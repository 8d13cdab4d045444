"""Scripts that complete the commands, options and values of ``bitnet`` in a shell.

A script has the tables of the version that wrote it, and finds models and files by itself: pressing
the tab key starts no process of ours.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import bitnet
from bitnet.commands.declare import Option, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from invoke.collection import Collection

__all__ = ["SHELLS", "script"]

#: Words that stand for values the shell has to look for.
MODEL, FILE, FOLDER = "@model", "@file", "@folder"


@dataclass(frozen=True)
class _Flag:
    """An option: its dashed name, its help, and its values; ``None`` where it takes none."""

    name: str
    text: str
    values: tuple[str, ...] | None


@dataclass(frozen=True)
class _Command:
    """A command as it is typed, its options, and the values of words without a name."""

    name: str
    text: str
    flags: tuple[_Flag, ...]
    values: tuple[str, ...]


def script(shell: str, collection: Collection, models: Iterable[str]) -> str:
    """The script for *shell*, one of :data:`SHELLS`.

    Args:
        shell: its name.
        collection: the commands.
        models: names of models that the program knows.
    """
    commands = [_command(collection[name]) for name in sorted(collection.task_names)]
    head = f"# Completion of bitnet {bitnet.__version__} for {shell}: bitnet completion {shell}"
    return "\n".join([head, *SHELLS[shell](commands, list(models))]) + "\n"


def _command(command: object) -> _Command:
    assert isinstance(command, Task)
    options = [one for one in command.get_arguments() if isinstance(one, Option)]
    flags = [_Flag(f"--{one.names[0]}", one.help or "", _values(one)) for one in options]
    flags += [
        _Flag(f"--no-{one.names[0]}", f"not: {one.help}", None)
        for one in options
        if one.kind is bool and one.default is True
    ]
    flags.append(_Flag("--help", "what the command does and takes", None))
    values = [value for one in options if one.positional for value in _values(one) or ()]
    text = (command.__doc__ or "").strip().partition("\n")[0]
    return _Command(command.typed, text, tuple(flags), tuple(dict.fromkeys(values)))


def _values(option: Option) -> tuple[str, ...] | None:
    """Possible values of *option*; ``None`` where it takes no value."""
    if not option.takes_value:
        return None
    if option.choices:
        return tuple(filter(None, option.choices))
    kinds = option.metavar.split("|")
    found = [MODEL] * (option.names[0] == "model")
    found += [FILE] * ("FILE" in kinds or ("PATH" in kinds and not found))
    return (*found, *[FOLDER] * ("DIR" in kinds))


def _first_words(commands: list[_Command]) -> list[str]:
    return sorted({command.name.split()[0] for command in commands})


def _groups(commands: list[_Command]) -> dict[str, list[str]]:
    """Second words of the commands of two words, by the first."""
    found: dict[str, list[str]] = {}
    for command in commands:
        first, _, second = command.name.partition(" ")
        if second:
            found.setdefault(first, []).append(second)
    return found


def _tables(commands: list[_Command], models: list[str]) -> Iterator[str]:
    """Functions that bash and zsh read alike: what a command has, and what an option takes."""
    yield f"_bitnet_names='{' '.join(models)}'"
    yield f"_bitnet_commands='{' '.join(_first_words(commands))}'"
    yield "_bitnet_flags() {\n    case $1 in"
    for command in commands:
        names = " ".join(flag.name for flag in command.flags)
        yield f"        '{command.name}') echo '{names}' ;;"
    for first, second in _groups(commands).items():
        yield f"        {first}) echo '{' '.join(second)}' ;;"
    yield "    esac\n}"
    yield "# The values of an option of a command, or of a word without one; nothing: no value."
    yield '_bitnet_values() {\n    case "$1 $2" in'
    for command in commands:
        yield f"        '{command.name} ') echo '{' '.join(command.values)}' ;;"
    for values, places in _by_values(commands).items():
        yield f"        {'|'.join(places)}) echo '{values}' ;;"
    yield "    esac\n}"


def _by_values(commands: list[_Command]) -> Mapping[str, list[str]]:
    """Patterns of a command and its option, by the values; one where all commands agree."""
    alike: dict[str, set[str]] = {}
    for flag in (flag for command in commands for flag in command.flags):
        alike.setdefault(flag.name, set()).add(_words(flag))
    found: dict[str, list[str]] = {}
    for command in commands:
        for flag in command.flags:
            one = len(alike[flag.name]) == 1
            place = f"*' {flag.name}'" if one else shlex.quote(f"{command.name} {flag.name}")
            places = found.setdefault(_words(flag), [])
            if flag.values is not None and place not in places:
                places.append(place)
    return {values: places for values, places in found.items() if places}


def _words(flag: _Flag) -> str:
    return "" if flag.values is None else " ".join(flag.values) or "@text"


_CACHED = r"""_bitnet_models() {
    local each cache=${BITNET_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/bitnet}
    printf '%s\n' $=_bitnet_names
    for each in "$cache"/models/hf/*/*@*(N); do
        each=${each#"$cache"/models/hf/}
        printf 'hf:%s\n' "${each%@main}"
    done
}"""

_BASH = r"""_bitnet() {
    COMPREPLY=()
    local line=${COMP_LINE:0:COMP_POINT} word flag= values= skip= command= each
    local current=${line##*[[:space:]]} found=()
    line=${line%"$current"}
    for word in ${line#*[[:space:]]}; do
        if [ -n "$skip" ]; then skip=; continue; fi
        flag=
        case $word in
            --*=*) ;;
            -*) if [ -n "$(_bitnet_values "$command" "$word")" ]; then skip=1 flag=$word; fi ;;
            *) case $command in "" | cache | bundle) command=${command:+$command }$word ;; esac ;;
        esac
    done
    [ -n "$skip" ] || flag=
    case $current in --*=*) flag=${current%%=*} current=${current#*=} ;; esac
    if [ -n "$flag" ]; then
        values=$(_bitnet_values "$command" "$flag")
    elif [ -z "$command" ]; then
        values=$_bitnet_commands
    else
        case $current in
            -*) values=$(_bitnet_flags "$command") ;;
            *) case $command in
                cache | bundle) values=$(_bitnet_flags "$command") ;;
                *) values=$(_bitnet_values "$command" "") ;;
            esac ;;
        esac
    fi
    for each in $values; do
        case $each in
            @text) ;;
            @model)
                found+=("$(_bitnet_models)" "$(compgen -d -- "$current")")
                found+=("$(compgen -f -X '!*.gguf' -- "$current")")
                ;;
            @file) found+=("$(compgen -f -- "$current")") ;;
            @folder) found+=("$(compgen -d -- "$current")") ;;
            *) found+=("$each") ;;
        esac
    done
    case $values in *@*) compopt -o filenames ;; esac
    word=${current%"${current##*:}"} # a colon ends a word of bash: what is before it stays
    while IFS= read -r each; do
        if [ -n "$each" ] && [[ $each == "$current"* ]]; then COMPREPLY+=("${each#"$word"}"); fi
    done < <(printf '%s\n' "${found[@]}")
}
complete -F _bitnet bitnet"""

_ZSH = r"""_bitnet() {
    local word flag= values= skip= command= each current=$words[CURRENT]
    for word in ${words[2,CURRENT-1]}; do
        if [[ -n $skip ]]; then skip=; continue; fi
        case $word in
            --*=*) ;;
            -*) if [[ -n $(_bitnet_values "$command" "$word") ]]; then skip=1 flag=$word; fi ;;
            *) case $command in ("" | cache | bundle) command=${command:+$command }$word ;; esac ;;
        esac
    done
    [[ -n $skip ]] || flag=
    if [[ $current == --*=* ]]; then flag=${current%%=*}; compset -P '*='; fi
    if [[ -n $flag ]]; then
        values=$(_bitnet_values "$command" "$flag")
    elif [[ -z $command ]]; then
        values=$_bitnet_commands
    elif [[ $current == -* || $command == (cache|bundle) ]]; then
        values=$(_bitnet_flags "$command")
    else
        values=$(_bitnet_values "$command" "")
    fi
    for each in $=values; do
        case $each in
            @text) ;;
            @model)
                compadd -- ${(f)"$(_bitnet_models)"}
                _path_files -g '*.gguf(-.)'
                _path_files -/
                ;;
            @file) _files ;;
            @folder) _path_files -/ ;;
            *) compadd -- "$each" ;;
        esac
    done
}
compdef _bitnet bitnet"""

_FISH = r"""function __bitnet_words
    set -l found
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; or set -a found $word
    end
    string join ' ' -- $found
end
function __bitnet_begins
    test -z "$(__bitnet_words)"
end
function __bitnet_after
    set -l words (__bitnet_words)
    test "$words" = "$argv[1]"
end
function __bitnet_is
    string match -qr -- "^$argv[1]( |\$)" (__bitnet_words)
end
function __bitnet_models
    set -l cache $BITNET_CACHE_DIR
    test -n "$cache"; or set cache $XDG_CACHE_HOME/bitnet
    test "$cache" != /bitnet; or set cache $HOME/.cache/bitnet
    string split ' ' -- $__bitnet_names
    for each in $cache/models/hf/*/*@*
        string replace -r '@main$' '' -- hf:(string replace -- $cache/models/hf/ '' $each)
    end
    set -l token (commandline -ct)
    for each in $token*.gguf $token*/
        echo $each
    end
end"""


def _bash(commands: list[_Command], models: list[str]) -> Iterator[str]:
    yield from _tables(commands, models)
    yield (
        _CACHED.replace("$=_", "$_")
        .replace("(N)", "")
        .replace("        each=${each#", '        [ -e "$each" ] || continue\n        each=${each#')
    )
    yield _BASH


def _zsh(commands: list[_Command], models: list[str]) -> Iterator[str]:
    yield from _tables(commands, models)
    yield _CACHED
    yield _ZSH


def _fish(commands: list[_Command], models: list[str]) -> Iterator[str]:
    yield _FISH
    yield f"set -g __bitnet_names {shlex.quote(' '.join(models))}"
    yield "complete -c bitnet -f"
    sources = {
        MODEL: "-a '(__bitnet_models)'",
        FILE: "-F",
        FOLDER: "-a '(__fish_complete_directories)'",
    }
    for first in _first_words(commands):
        text = next((one.text for one in commands if one.name == first), "")
        yield f"complete -c bitnet -n __bitnet_begins -a {first} -d {shlex.quote(text)}"
    for first, second in _groups(commands).items():
        words = " ".join(second)
        yield f"complete -c bitnet -n '__bitnet_after {first}' -a '{words}'"
    for command in commands:
        start = f"complete -c bitnet -n '__bitnet_is \"{command.name}\"'"
        for value in command.values:
            yield f"{start} {sources.get(value, f'-a {value}')}"
        for flag in command.flags:
            takes = "" if flag.values is None else " -r"
            plain = [value for value in flag.values or () if value not in sources]
            found = [sources[value] for value in flag.values or () if value in sources]
            found += [f"-a '{' '.join(plain)}'"] * bool(plain)
            text = shlex.quote(flag.text)
            yield f"{start} -l {flag.name[2:]}{takes} {' '.join(found)} -d {text}".rstrip()


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}

"""Completion in shells, where names of threads hold spaces, colons and quotes.

What click ships for zsh and fish quotes such names by itself. Bash inserts what it is given, and it replaces only what
stands behind the last colon, `=` or `@`: so here the whole line is read as bash would, and each name is sent in the
form that is to be inserted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from click.shell_completion import BashComplete, CompletionItem, FishComplete, add_completion_class, split_arg_string

_BASH = """\
%(complete_func)s() {
    local line type value
    COMPREPLY=()
    while IFS= read -r line; do
        type=${line%%%%,*}
        value=${line#*,}
        if [[ $type == dir ]]; then
            compopt -o dirnames
        elif [[ $type == file ]]; then
            compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("$value")
        fi
    done < <(COMP_TYPED="${COMP_LINE:0:COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

# What bash takes for the end of a word and what needs no backslash in one.
_BREAKS = frozenset(":=@")
_UNSAFE = re.compile(r"[^\w@%+=:,./^~-]")
_UNSAFE_IN_QUOTES = re.compile(r'["$`\\]')
_ESCAPED_IN_QUOTES = re.compile(r"\\([$`])")
_UNSAFE_FIRST = ("~", "#")


class Bash(BashComplete):
    """Completion for bash."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is typed, and that one, as the command would get them."""
        typed = os.environ["COMP_TYPED"]
        words = split_arg_string(typed)
        incomplete = ""
        if words and _is_in_word(typed):
            incomplete = words.pop()
        if _open_quote(typed) == '"':
            # There a backslash also stands before these, which is not known where words are split.
            incomplete = _ESCAPED_IN_QUOTES.sub(r"\1", incomplete)
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return what is to be inserted in place of the word that bash sees."""
        if item.type != "plain":
            return super().format_completion(item)
        typed = os.environ["COMP_TYPED"]
        quote = _open_quote(typed)
        if quote == '"':
            return f"plain,{_UNSAFE_IN_QUOTES.sub(_escape, item.value)}"
        if quote == "'":
            return f"plain,{item.value}"
        escaped = _UNSAFE.sub(_escape, item.value)
        if escaped.startswith(_UNSAFE_FIRST):
            escaped = "\\" + escaped
        _, incomplete = self.get_completion_args()
        if not item.value.startswith(incomplete):
            # The value of an option, behind its `=`.
            return f"plain,{escaped}"
        return f"plain,{_behind_breaks(escaped, _count_breaks(typed))}"


class Fish(FishComplete):
    """Completion for fish, also of names with commas."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


def register() -> None:
    """Let click use these."""
    add_completion_class(Bash)
    add_completion_class(Fish)


def _escape(found: re.Match[str]) -> str:
    return "\\" + found[0]


def _characters(typed: str) -> Iterator[tuple[str, str]]:
    """Yield each character that is not escaped, with the quote that it stands in."""
    quote = ""
    is_escaped = False
    for character in typed:
        if is_escaped:
            is_escaped = False
            yield "", quote
        elif character == "\\" and quote != "'":
            is_escaped = True
        elif character == quote:
            quote = ""
            yield "", quote
        elif character in "\"'" and not quote:
            quote = character
            yield "", quote
        else:
            yield character, quote


def _open_quote(typed: str) -> str:
    """Return the quote that is open at the end of a line."""
    _, quote = _last_character(typed)
    return quote


def _is_in_word(typed: str) -> bool:
    """Whether a line ends inside a word, and not with a space behind one."""
    character, quote = _last_character(typed)
    return bool(quote) or not character.isspace()


def _last_character(typed: str) -> tuple[str, str]:
    return [("", ""), *_characters(typed)][-1]


def _count_breaks(typed: str) -> int:
    """Return how many signs that bash breaks words at stand in the last word."""
    breaks = _breaks()
    count = 0
    for character, quote in _characters(typed):
        if quote:
            continue
        if character.isspace():
            count = 0
        elif character in breaks:
            count += 1
    return count


def _behind_breaks(text: str, count: int) -> str:
    """Return the word that bash sees: what stands behind so many signs that it breaks words at."""
    breaks = _breaks()
    start = 0
    for place, character in enumerate(text):
        if count and character in breaks:
            count -= 1
            # Bash takes this one for a part of the word behind it, since it may begin the name of a host.
            start = place if character == "@" else place + 1
    return text[start:]


def _breaks() -> frozenset[str]:
    return _BREAKS & set(os.environ.get("COMP_BREAKS", ""))

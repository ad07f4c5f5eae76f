"""What happens to a text between the shop's database and its feed: markup, mojibake, typos.

What is done to titles changes neither the first letter of a word, nor a number, nor how many words
there are, once it is read as it was meant: the split into train and test relies on that (see
listing.side).
"""

from __future__ import annotations

import html.entities

_NAMED = {
    code: f"&{name};"
    for code, name in html.entities.codepoint2name.items()
    if code > 127 or chr(code) in '&"<>'
}
_NUMBERED = {code: f"&#{code};" for code in _NAMED}


def escape(text: str, pick: int) -> str:
    """HTML entities for what is not ASCII, and for `&`, `"`, `<`, `>`: named or numbered."""
    return text.translate(_NAMED if pick % 4 else _NUMBERED)


def escape_twice(text: str, pick: int) -> str:
    """Entities of entities: the shop's system escaped what already was escaped."""
    return escape(text, pick).replace("&", "&amp;")


def wrap(text: str, pick: int) -> str:
    """A description with the tags that a shop's editor leaves in it."""
    match pick % 6:
        case 0:
            return f"<p>{text}</p>"
        case 1:
            return text.replace(". ", ".<br />") + "<br />"
        case 2:
            return f"<ul><li>{text.replace(', ', '</li><li>')}</li></ul>"
        case 3:
            return f'<div class="desc"><b>{text}</b></div>'
        case 4:
            return f"<span style='color:#333'>{text}</span>"
        case _:
            return text.replace(", ", "<br>")


def mojibake(text: str) -> str:
    """UTF-8 read as Latin-1: "für" becomes "fÃ¼r"."""
    return text.encode().decode("latin-1")


def lose(text: str) -> str:
    """What an ASCII export leaves: the replacement character for every letter with an accent.

    For descriptions alone: nobody can read back what was lost.
    """
    return text.encode("ascii", "replace").decode().replace("?", "\ufffd")


def misspell(text: str, pick: int) -> str:
    """A typo after the first letter of a word: two letters swapped, one doubled, or one lost.

    Where the place that `pick` names is no such letter, nothing happens.
    """
    at = 1 + (pick >> 2) % max(1, len(text) - 2)
    before, here, after = text[at - 1 : at], text[at : at + 1], text[at + 1 : at + 2]
    if not (before.isalpha() and here.isalpha()):
        return text
    match pick % 4:
        case 0 | 1 if after.isalpha():
            return f"{text[:at]}{after}{here}{text[at + 2 :]}"
        case 2:
            return f"{text[:at]}{here}{text[at:]}"
        case _:
            return text[:at] + text[at + 1 :]

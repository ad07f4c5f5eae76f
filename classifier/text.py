"""The text recipe: an offer becomes the one line that a model reads, in training and serving alike.

A version of the recipe never changes: whatever alters a single text makes a new version, since an
artefact trained with one recipe must not be served with another.
"""

from __future__ import annotations

import html
import re
import unicodedata

import msgspec
from ftfy import fix_encoding
from ftfy.badness import is_bad

from classifier.offer import Offer

VERSION = 1

RAW_FACTOR = 8
"""A field is read up to this many times its budget: room for markup, an end for bombs."""
RAW_CHARACTERS = 1024
"""But at least so many raw characters, for short fields wrapped in long tags."""

_MARKUP = re.compile(
    r"<!--.*?-->|<(script|style)\b[^<>]*>.*?</\1\s*>|</?[a-z][^<>]*>|<![^<>]*>",
    re.IGNORECASE | re.DOTALL,
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INVISIBLE_CHARACTERS = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff"
)
_INVISIBLE = re.compile(f"[{_INVISIBLE_CHARACTERS}]")
_BLANK_START = re.compile(f"[\\s\x00-\x1f\x7f-\x9f{_INVISIBLE_CHARACTERS}]+")
_JOINTS = " -|:,.;\u2026"
# UTF-8 read as another encoding leaves non-ASCII characters side by side, or "Ã" before a blank.
# This costs a fiftieth of the full test, which most accented texts need not take.
_MOJIBAKE = re.compile("[^\x00-\x7f]{2}|Ã ")
_LETTER = re.compile(r"[^\W\d_]")
_PLACEHOLDERS = frozenset(
    [
        "n/a",
        "na",
        "n.a.",
        "nan",
        "null",
        "none",
        "nil",
        "undefined",
        "unknown",
        "tbd",
        "tba",
        "-",
        "--",
        ".",
        "..",
        "...",
        "?",
        "empty",
    ]
)


class FieldBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One field of the offer and how many characters of it the text may hold."""

    name: str
    characters: int

    def __post_init__(self) -> None:
        if self.name not in TEXT_FIELDS:
            raise ValueError(f"the text recipe names {self.name!r}; fields are {TEXT_FIELDS}")
        if self.characters < 1:
            raise ValueError(f"the text recipe gives {self.name} {self.characters} characters")


TEXT_FIELDS = ("title", "brand", "category_path", "description")


class TextRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a text is made of an offer: the fields in their order, each within its budget.

    `prefix` is what the encoder wants before every text (E5: "query: ").
    """

    version: int = VERSION
    prefix: str = ""
    separator: str = " | "
    fields: tuple[FieldBudget, ...] = (
        FieldBudget("title", 200),
        FieldBudget("brand", 40),
        FieldBudget("category_path", 100),
        FieldBudget("description", 160),
    )

    def text(self, offer: Offer) -> str:
        """The text of an offer, or "" when it has no usable text at all."""
        return self.render(offer)[0]

    def render(self, offer: Offer) -> tuple[str, bool]:
        """The text of an offer ("" when it has none that is usable) and whether it was cut.

        A field without a letter or digit, or that says only "n/a" and the like, is left out, and
        so is what the fields before it said already: shops repeat the brand in the title and the
        title in the description, and a repeated token costs as much as a new one.
        """
        parts: list[str] = []
        first = said = ""
        was_cut = False
        for field in self.fields:
            raw = getattr(offer, field.name)
            if not raw:
                continue
            value, cut = clean(raw, field.characters)
            lowered = value.lower()
            if not value or lowered in _PLACEHOLDERS or _says(said, lowered):
                continue
            if first and _starts(value, first):
                value = value[len(first) :].lstrip(_JOINTS)
                if not value:
                    continue
            parts.append(value)
            first = first or value
            said = f"{said}\n{lowered}" if said else lowered
            was_cut |= cut
        if not any(map(_LETTER.search, parts)):
            return "", was_cut
        return self.prefix + self.separator.join(parts), was_cut


DEFAULT_RECIPE = TextRecipe()


def _says(said: str, words: str) -> bool:
    """Whether the words stand in what was said, and not as a part of longer ones."""
    at = said.find(words)
    while at >= 0:
        end = at + len(words)
        if not _joined(said[at - 1 : at], words[0]) and not _joined(words[-1], said[end : end + 1]):
            return True
        at = said.find(words, at + 1)
    return False


def _starts(value: str, first: str) -> bool:
    """Whether the value begins by saying `first` again, in small letters or large."""
    end = len(first)
    return value[:end].lower() == first.lower() and not _joined(first[-1], value[end : end + 1])


def _joined(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word."""
    return left.isalnum() and right.isalnum()


def clean(raw: str, characters: int) -> tuple[str, bool]:
    """One field as plain text of at most so many characters, and whether it had to be cut.

    HTML entities (however often escaped) and tags, mojibake, compatibility forms, control and
    zero-width characters and runs of white space go; "<5kg R&D" stays. Cleaning a cleaned text
    changes nothing.
    """
    limit = max(RAW_CHARACTERS, RAW_FACTOR * characters)
    was_cut = False
    if len(raw) > limit:
        blank = _BLANK_START.match(raw)
        start = blank.end() if blank else 0
        was_cut = len(raw) - start > limit
        raw = raw[start : start + limit]
    value = " ".join(raw.split())
    if not (value.isascii() and value.isprintable()) or "&" in value or "<" in value:
        value = _plain(value)
    while len(value) > characters:
        was_cut = True
        value = value[:characters].rstrip()
        if _MOJIBAKE.search(value):
            # What could not be repaired because of its end may be repaired now that this is gone.
            value = _plain(value)
    return value, was_cut


def _plain(value: str) -> str:
    # One step can uncover work for another ("&am&shy;p;", full-width "＆lt;"), hence until nothing
    # changes. Each step but NFKC shortens the text, so this ends; real offers take two rounds.
    while True:
        before = value
        if "&" in value:
            value = html.unescape(value)
        if "<" in value:
            value = _MARKUP.sub(" ", value)
        if not value.isascii():
            if _MOJIBAKE.search(value) and is_bad(value):
                value = fix_encoding(value)
            value = unicodedata.normalize("NFKC", value)
            value = _INVISIBLE.sub("", value)
        if not value.isprintable():
            value = _CONTROL.sub(" ", value)
        value = " ".join(value.split())
        if value == before:
            return value

"""The text recipe: shops' raw text becomes clean text, the same in training and in serving."""

from __future__ import annotations

import time
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.offer import Offer
from classifier.text import DEFAULT_RECIPE, TEXT_FIELDS, FieldBudget, TextRecipe, clean

# What dirty text is made of: halves of entities, tags and mojibake that may meet and become whole.
PIECES = st.sampled_from(
    [
        "&", "&amp;", "&am", "p;", "&lt;", "&quot;", "&#39;", "&#", "x", "1", ";", "amp", "not",
        "<", ">", "</", "b>", "<b>", "<!--", "-->", "<script>", "</script>",
        "Ã¼", "Ã", "Â", "â€™", "â€", "™", "ÃƒÂ¼", "Ã\u00a0", "ï¼†", "ðŸ˜€",
        " ", "  ", "\u00a0", "\u3000", "\t", "\x00", "\x85", "\u2028", "\u200b", "\u00ad", "\ufe0f",
        "＆", "；", "ﬁ", "½", "ﷺ", "İ", "e", "\u0301", "é", "日", "\ud800", "\N{GRINNING FACE}",
    ]
)  # fmt: skip
DIRTY = st.lists(PIECES | st.text(max_size=2), max_size=14).map("".join)


def plain(raw: str) -> str:
    return clean(raw, 200)[0]


@given(DIRTY, st.integers(1, 12))
def test_cleaning_is_bounded_and_leaves_nothing_to_clean(raw: str, characters: int) -> None:
    value, _ = clean(raw, characters)
    assert len(value) <= characters
    assert value == " ".join(value.split())
    assert not {unicodedata.category(character) for character in value} & {"Cc", "Cs", "Zl", "Zp"}
    assert clean(value, characters) == (value, False)


@given(
    st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="&<"))
)
def test_plain_text_is_left_as_it_is(raw: str) -> None:
    assert clean(raw, 100) == (raw, False) if len(raw) <= 100 else (raw[:100], True)


# Entities and tags


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Br&uuml;he 0,5 L", "Brühe 0,5 L"),
        ("Br&amp;uuml;he 0,5 L", "Brühe 0,5 L"),
        ("Br&amp;amp;amp;uuml;he 0,5 L", "Brühe 0,5 L"),
        ("Levi&amp;#39;s", "Levi's"),
        ("Monitor 27&quot;", 'Monitor 27"'),
        ("&lt;i&gt;Lampe&lt;/i&gt; LED", "Lampe LED"),
        ("<p>Switch</p><br/>8 Port", "Switch 8 Port"),
        ("Switch<br>8<br>Port", "Switch 8 Port"),
        ('<a href="https://shop.example/?a=1&amp;b=2">Tee</a>', "Tee"),
        ("<!-- old > price -->Tee", "Tee"),
        ("<style>p { color: red }</style>Tee<script>if (a < b) x()</script>", "Tee"),
        ("\uff1cb\uff1eTee\uff1c/b\uff1e", "Tee"),
        ("&am&shy;p;", "&"),
        ("&#xD83D; Tee", "\ufffd Tee"),
        ("&#0; Tee &#x110000;", "\ufffd Tee \ufffd"),
        ("Dogs <9kg R&D kit", "Dogs <9kg R&D kit"),
        ("x < y > z", "x < y > z"),
        ("A&B", "A&B"),
        ("Tee &; &unknown; &#; &", "Tee &; &unknown; &#; &"),
    ],
)
def test_markup_goes_and_meaning_stays(raw: str, expected: str) -> None:
    assert plain(raw) == expected


# Characters


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("MÃ¼sli", "Müsli"),
        ("MÃƒÂ¼sli", "Müsli"),
        ("lâ€™huile", "l’huile"),
        ("à la carte", "à la carte"),
        ("CaÃ±a y jamÃ³n", "Caña y jamón"),
        ("Größe ÄÖÜ ß", "Größe ÄÖÜ ß"),
        ("SÃO PAULO", "SÃO PAULO"),
        ("ﬁne ２５０ ｍｌ", "fine 250 ml"),
        ("cafe\u0301", "café"),
        ("10\u00a0000\u202f€", "10 000 €"),
        ("Tee\u200b\ufeff\u00adkanne", "Teekanne"),
        ("\u202eTee\u202c", "Tee"),
        ("T\ud83dee", "Tee"),
        ("a\x00b\x07c\x7fd\x9fe", "a b c d e"),
        ("a\r\n\tb \u2029 c", "a b c"),
        ("  Tee  ", "Tee"),
        ("\u200b \u00ad", ""),
        ("", ""),
    ],
)
def test_characters_that_say_nothing_go(raw: str, expected: str) -> None:
    assert plain(raw) == expected


def test_cutting_says_so_and_leaves_no_blank_at_the_end() -> None:
    assert clean("12345 789", 9) == ("12345 789", False)
    assert clean("12345 789", 8) == ("12345 78", True)
    assert clean("12345 789", 6) == ("12345", True)
    assert clean(" 12345   789 ", 9) == ("12345 789", False)


# Bombs


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("q" * 2_000_000, "q" * 200),
        (" " * 2_000_000 + "usb cable", "usb cable"),
        ("\u200d" * 5_000 + "usb cable", "usb cable"),
        ("\n\t\u00a0\u2060" * 500_000 + "usb cable", "usb cable"),
        ("&nbsp;" * 300 + "x" * 2_000_000, None),
        ("&" + "amp;" * 500_000, None),
        ("<" * 1_000_000, None),
        ("<script>" * 200_000, None),
        ("<!--" * 200_000, None),
        ("Ã¼日" * 500_000, None),
        ("\ufdfa" * 1_000_000, None),
        ("\u0301" * 1_000_000, None),
    ],
)
def test_no_text_takes_long(raw: str, expected: str | None) -> None:
    started = time.process_time()
    value, _ = clean(raw, 200)
    assert time.process_time() - started < 0.5
    assert len(value) <= 200
    assert expected is None or value == expected


def test_cut_before_cleaning_is_told() -> None:
    assert clean("q" * 2_000_000, 200)[1]
    assert clean("<b></b>" * 1_000, 200)[1]
    assert not clean(" " * 2_000_000 + "usb cable", 200)[1]


# Rendering


def text(**fields: str | None) -> str:
    return DEFAULT_RECIPE.text(Offer("1", **fields))  # type: ignore[arg-type]


def test_fields_come_in_their_order_with_their_separator() -> None:
    offer = Offer(
        "1", title="Kettle 1.7 L", brand="Norvik", category_path="Home > Tea", description="Steel"
    )
    assert DEFAULT_RECIPE.text(offer) == "Kettle 1.7 L | Norvik | Home > Tea | Steel"
    recipe = TextRecipe(
        prefix="query: ",
        separator=" ",
        fields=(FieldBudget("description", 3), FieldBudget("title", 6)),
    )
    assert recipe.render(offer) == ("query: Ste Kettle", True)


def test_language_shop_and_revision_do_not_change_the_text() -> None:
    offer = Offer("1", title="Kopfhörer", revision=1, language="de", shop_id="a")
    others = [
        Offer("2", title="Kopfhörer", language=language, shop_id="b", revision=9)
        for language in ("en", "xx", None, "")
    ]
    assert {DEFAULT_RECIPE.text(other) for other in others} == {DEFAULT_RECIPE.text(offer)}


@pytest.mark.parametrize(
    "title",
    [None, "", "   ", "\u200b", ":)", "\N{GRINNING FACE}" * 3, "n/a", "N/A", "null", "NaN", "-",
     "4012345678901", "12 / 34", "&nbsp;", "<br>", "<b></b>", "&#8203;", "???"],
)  # fmt: skip
def test_nothing_to_classify_is_no_text(title: str | None) -> None:
    assert text(title=title) == ""
    assert text(title=title, brand="12", description="--") == ""
    assert TextRecipe(prefix="query: ", separator=" [SEP] ").text(
        Offer("1", title=title, brand="12")
    ) == ""  # fmt: skip
    assert text(title=title, description="Kettle").endswith("Kettle")


def test_what_was_said_already_is_left_out() -> None:
    assert text(title="Norvik Kettle", brand="NORVIK") == "Norvik Kettle"
    assert text(title="Kettle, Norvik", brand="Norvik") == "Kettle, Norvik"
    assert text(title="Kettle", description="KETTLE") == "Kettle"
    assert text(title="Kettle", description="Kettle - steel, 1 l") == "Kettle | steel, 1 l"
    assert text(title="Kettle", category_path="Tea", description="tea") == "Kettle | Tea"


def test_part_of_a_longer_word_was_not_said() -> None:
    assert text(title="Algerian dates", brand="LG") == "Algerian dates | LG"
    assert text(title="Algerian LG dates", brand="LG") == "Algerian LG dates"
    assert text(title="Boschgrill", brand="Bosch") == "Boschgrill | Bosch"
    assert text(title="Kettle", description="Kettlebell 8 kg") == "Kettle | Kettlebell 8 kg"
    assert text(title="Sofa", category_path="Sofas > Corner") == "Sofa | Sofas > Corner"


def test_repetition_is_found_where_small_letters_are_longer_than_large() -> None:
    assert "\u0130".lower() != "i"
    assert text(title="\u0130\u0130\u0130", description="\u0130\u0130\u0130 abcdef") == (
        "\u0130\u0130\u0130 | abcdef"
    )


WORDS = st.none() | DIRTY | st.sampled_from(["Kettle", "kettle", "Kettle 2 l", "n/a", "\u0130st"])
OFFERS = st.builds(
    Offer,
    offer_id=st.just("1"),
    title=WORDS,
    brand=WORDS,
    category_path=WORDS,
    description=WORDS,
    language=st.none() | st.text(max_size=3),
)
RECIPES = st.builds(
    TextRecipe,
    prefix=st.sampled_from(["", "query: "]),
    separator=st.sampled_from([" | ", " ", " [SEP] "]),
    fields=st.lists(
        st.builds(FieldBudget, st.sampled_from(TEXT_FIELDS), st.integers(1, 10)),
        min_size=1,
        max_size=4,
        unique_by=lambda field: field.name,
    ).map(tuple),
)


@given(RECIPES, OFFERS)
def test_any_offer_has_a_text_within_its_budgets_or_none(recipe: TextRecipe, offer: Offer) -> None:
    rendered, _ = recipe.render(offer)
    assert rendered == recipe.text(offer)
    if not rendered:
        return
    assert rendered.startswith(recipe.prefix)
    words = rendered.removeprefix(recipe.prefix)
    most = sum(field.characters for field in recipe.fields)
    assert 0 < len(words) <= most + len(recipe.separator) * (len(recipe.fields) - 1)
    assert any(map(str.isalpha, words.replace("[SEP]", "")))
    words.encode()


@pytest.mark.parametrize(
    "recipe",
    [
        {"fields": [{"name": "title", "characters": 0}]},
        {"fields": [{"name": "price", "characters": 10}]},
        {"fields": [{"name": "title", "characters": 10, "tokens": 3}]},
        {"prefixes": ""},
    ],
)
def test_recipe_that_makes_no_sense_is_refused(recipe: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(recipe, TextRecipe)


def test_recipe_comes_back_from_json_as_it_was() -> None:
    assert msgspec.json.decode(msgspec.json.encode(DEFAULT_RECIPE), type=TextRecipe) == (
        DEFAULT_RECIPE
    )

"""The page: whole, escaped, and in need of nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.training.answered import Row, both, chance, predictions, row
from tests.training.test_history import FIRST
from training import history
from training.judgement import Judgement, judge
from training.measures import Estimate
from training.parameters import EvaluateParameters
from training.report import bar, p_value, percent, points, render

QUICK = EvaluateParameters(resamples=20)
SECTIONS = ["figures", "coverage", "reliability", "slices", "confusions", "categories", "history"]
_VOID = {"meta", "br", "link", "img"}
_DRAWN = {"path", "use", "rect", "circle", "line"}


class Page(HTMLParser):
    """What a page holds; raises when an element is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        if each := values.get("id"):
            self.ids.append(each)
        self.links += [
            each for name in ("href", "xlink:href", "src") if (each := values.get(name)) is not None
        ]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(judged: Judgement, *before: Judgement) -> str:
    past: list[history.Entry] = []
    for each in (*before, judged):
        past = history.add(past, history.entry(each, FIRST))
    return render(judged, past)


def judged(tmp_path: Path, rows: list[Row], **training_offers: int) -> Judgement:
    return judge(predictions(tmp_path, rows), {}, None, training_offers or None, QUICK)


def guessing(rows: list[Row]) -> list[Row]:
    """The same offers, all answered alike."""
    return [each | {"category_id": "c1" if each["category_id"] else None} for each in rows]


def shifted(rows: list[Row]) -> list[Row]:
    """The same answers of another model."""
    return [each | {"model": "fedcba98"} for each in rows]


def test_page_holds_every_section_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    own, other = both(
        tmp_path,
        chance(0, 120),
        [each | {"model": "fedcba98"} for each in guessing(chance(0, 120))],
    )
    before = judge(other, {}, None, None, QUICK)
    text = page(judge(own, {"svm": other}, None, {"c1": 30}, QUICK), before)
    found = Page(text)
    assert {*SECTIONS, "against", "unanswered", "formulas"} <= set(found.ids)
    assert {f"by-{kind}" for kind in ("language", "shop", "text_length", "category_frequency")} <= (
        set(found.ids)
    )
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith("#") and link[1:] in found.ids for link in found.links)
    assert "svm" in found.text
    assert "fedcba98" in found.text
    assert text.count("<svg viewBox") == 3  # coverage, reliability, history


def test_page_asks_for_nothing_and_runs_nothing(tmp_path: Path) -> None:
    text = page(judged(tmp_path, chance(0, 60)))
    assert "script" not in Page(text).tags
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_offers_cannot_write_into_the_page(tmp_path: Path) -> None:
    evil = "</td></table><script>alert(1)</script>&amp;'\"><img src=x onerror=y>$x^2$"
    rows = [
        row(
            i,
            evil,
            f"other {evil}",
            title=evil,
            language=evil,
            shop_id=evil,
            source=evil,
            model=evil,
        )
        for i in range(3)
    ]
    rows.append(row(9, "a", title=evil) | {"error": {"reason": evil, "detail": evil}})
    own, other = both(tmp_path, rows, [each | {"category_id": "b"} for each in rows[:3]] + rows[3:])
    before = judge(own, {}, None, None, QUICK)
    found = Page(page(judge(own, {evil: other}, None, None, QUICK), before))
    assert not found.tags & {"script", "img"}
    # As text, letter by letter, in the title, the tables and the legend of the plot.
    assert found.text.count(evil) > 8
    assert found.text.count("<script>alert(1)</script>") == found.text.count(evil)


@pytest.mark.parametrize(
    "rows",
    [
        [row(1, "a", "a")],
        [row(1, "a")],
        [row(1, "a", "b", score=0.1, weight=2.0)],
        [row(1, "a", "a", weight=0.0, language="de"), row(2, "b", "b", weight=1.0, language="fr")],
        [row(i, f"c{i}") for i in range(40)],
    ],
)
def test_page_of_hardly_anything_is_whole(tmp_path: Path, rows: list[Row]) -> None:
    found = Page(page(judged(tmp_path, rows)))
    assert set(SECTIONS) <= set(found.ids)
    assert "nan" not in found.text.split()
    assert "None" not in found.text.split()


def test_figures_on_the_page_are_those_of_the_judgement(tmp_path: Path) -> None:
    rows = [row(i, "a", "a" if i < 87 else "b", title=f"number {i}") for i in range(100)]
    text = Page(page(judged(tmp_path, rows, a=1_234))).text
    assert "87.0" in text
    assert "number 87" in text
    assert "1,234" in text
    assert "number 1 " not in text


def test_page_says_nothing_of_alternatives_that_were_not_kept(tmp_path: Path) -> None:
    kept = [row(1, "a", "a", "b", "c"), row(2, "b", "c", "a", "b")]
    assert "among the first three" in Page(page(judged(tmp_path, kept))).text
    found = judged(tmp_path, [*kept, row(3, "a", "b")])
    assert found.overall["unweighted"].figures["top_3"] == Estimate(None)
    assert {each.top_3 for each in found.categories} == {None}
    assert "among the first three" not in Page(page(found)).text


def test_history_follows_the_model_of_the_page_wherever_it_stands(tmp_path: Path) -> None:
    # It was the second of twelve, and stands apart from the latest; half of its offers are right.
    past: list[history.Entry] = []
    shown = []
    for number in range(12):
        answers = "ab" if number == 1 else "bb" if number == 0 else "aa"
        rows = [row(i, "a", each, model=f"m{number:02}") for i, each in enumerate(answers)]
        shown.append(judged(tmp_path, rows))
        past = history.add(past, history.entry(shown[-1], FIRST))
    text = render(shown[1], past)
    found = [f"m{number:02}" for number in range(12) if f"<code>m{number:02}</code>" in text]
    assert found == ["m00", "m01", "m06", "m07", "m08", "m09", "m10", "m11"]
    # Its F1 of the category is 2 / 3, that of the model before it 0.
    rows_of_a = [line for line in text.splitlines() if "+66.7" in line]
    assert len(rows_of_a) == 1
    assert "+66.7" not in render(shown[11], past)
    # The first model has none before it.
    assert "+66.7" not in render(shown[0], past)


def test_categories_on_the_page_are_production_s_where_there_are_weights(tmp_path: Path) -> None:
    answers = [("a", "a", 1.8), ("b", "a", 0.2)]
    weighted = [row(i, a, b, weight=w) for i, (a, b, w) in enumerate(answers)]
    plain = [each | {"weight": None, "model": "m0"} for each in weighted]
    before, own = judged(tmp_path, plain), judged(tmp_path, weighted)
    # Of "a" the F1 is 2 / 3 and in production 18 / 19; the precision 1 / 2 and 9 / 10.
    table = Page(page(own)).text.partition("Those with the most wrong")[2]
    assert all(each in table for each in ("94.7", "90.0"))
    assert "66.7" not in table
    # In the history only where all have it.
    assert "F1 of every category in production" in page(own, judged(tmp_path, shifted(weighted)))
    text = page(own, before)
    assert "F1 of every category, those" in text
    assert "66.7" in text.partition("F1 of every category")[2]


def test_equal_judgements_make_equal_pages(tmp_path: Path) -> None:
    rows = chance(0, 80)
    assert page(judged(tmp_path, rows)) == page(judged(tmp_path, rows[::-1]))


def test_numbers_for_people() -> None:
    assert [percent(each) for each in (0.1234, 1.0, None)] == ["12.3", "100.0", "–"]
    assert [points(each) for each in (0.01, -0.0349, 0.0, None)] == ["+1.0", "−3.5", "+0.0", "–"]
    assert [p_value(each) for each in (0.00001, 0.0123, 0.5)] == ["< 0.0001", "0.012", "0.50"]


def test_bar_spans_the_interval() -> None:
    drawn = bar(Estimate(0.5, 0.25, 1.0))
    assert "M25.0 5H100.0" in drawn
    assert "M50.0 1V9" in drawn
    assert bar(Estimate(None)) == ""

"""Which offers int8 is calibrated on and weighed by."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from classifier.offer import Offer
from classifier.text import DEFAULT_RECIPE
from compile import offers
from compile.offers import OffersError, draw, draw_labelled
from tests.compile.conftest import write_offers

MANY = [(Offer(offer_id=str(i), title=f"kettle {i}"), "kettles") for i in range(9_000)]


def test_draw_is_bounded_and_the_rows_order_has_no_part_in_it(tmp_path: Path) -> None:
    first = draw(write_offers(tmp_path / "a.jsonl", MANY), DEFAULT_RECIPE)
    shuffled = random.Random(0).sample(MANY, len(MANY))
    again = draw(write_offers(tmp_path / "b.jsonl", shuffled + shuffled[:500]), DEFAULT_RECIPE)
    assert first == again
    assert len(first.calibration) == offers.CALIBRATION_TEXTS
    assert len(first.apart) == offers.APART_TEXTS
    assert not set(first.calibration) & set(first.apart)
    # Neither the first rows nor the first in the alphabet.
    assert len({int(text.split()[1]) // 1_000 for text in first.calibration}) == 9


def test_of_a_small_file_half_is_kept_apart(tmp_path: Path) -> None:
    drawn = draw(write_offers(tmp_path / "few.jsonl", MANY[:100]), DEFAULT_RECIPE)
    assert (len(drawn.calibration), len(drawn.apart)) == (50, 50)


def test_too_few_texts_are_refused(tmp_path: Path) -> None:
    same = [MANY[0]] * 500 + MANY[:63]
    with pytest.raises(OffersError, match="63 different texts are too few"):
        draw(write_offers(tmp_path / "same.jsonl", same), DEFAULT_RECIPE)


def test_file_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OffersError, match=r"nothing\.jsonl") as caught:
        draw(tmp_path / "nothing.jsonl", DEFAULT_RECIPE)
    assert "\n" not in str(caught.value)


def test_labels_are_the_models_own_places(tmp_path: Path) -> None:
    rows = [
        (Offer(offer_id="1", title="kettle"), "kettles"),
        (Offer(offer_id="2", title="tent"), "tents"),
        (Offer(offer_id="3", title="yacht"), "yachts"),
        (Offer(offer_id="4"), "tents"),  # no text
    ]
    drawn = draw_labelled(
        write_offers(tmp_path / "labelled.jsonl", rows),
        DEFAULT_RECIPE,
        ["sofas", "tents", "kettles"],
    )
    assert dict(zip(drawn.texts, drawn.labels.tolist(), strict=True)) == {
        "kettle": 2, "tent": 1, "yacht": -1,
    }  # fmt: skip


def test_labels_of_another_taxonomy_are_refused(tmp_path: Path) -> None:
    file = write_offers(tmp_path / "other.jsonl", MANY[:3])
    with pytest.raises(OffersError, match="none of its labels is one of the model's"):
        draw_labelled(file, DEFAULT_RECIPE, ["sofas"])

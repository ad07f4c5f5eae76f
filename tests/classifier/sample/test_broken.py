"""Every broken message is really broken, and in the way that its name says."""

from __future__ import annotations

import zlib
from typing import get_args

import msgspec
import pytest

from classifier.offer import Offer
from classifier.record import Reason, decode_offer
from classifier.sample import events
from classifier.sample.broken import DEFECTS, Defect, broken
from classifier.text import DEFAULT_RECIPE

GOOD = next(event.value for event in events(0, 1))

WHY: dict[Defect, set[Reason]] = {
    "cut": {Reason.JSON, Reason.ENCODING},
    "latin-1": {Reason.ENCODING},
    "utf-16": {Reason.ENCODING},
    "array": {Reason.SCHEMA},
    "empty": {Reason.JSON},
    "no id": {Reason.SCHEMA},
    "empty id": {Reason.SCHEMA},
    "framed": {Reason.FRAMED},
    "wrong type": {Reason.SCHEMA},
    "not json": {Reason.JSON},
    "gzipped": {Reason.COMPRESSED},
    "bad revision": {Reason.SCHEMA},
}


def test_the_message_to_break_is_good() -> None:
    assert GOOD is not None
    assert isinstance(decode_offer(GOOD), Offer)


@pytest.mark.parametrize("which", range(len(DEFECTS)), ids=DEFECTS)
def test_every_defect_is_really_one(which: int) -> None:
    assert GOOD is not None
    for pick in range(2 * len(GOOD)):
        defect, value = broken(GOOD, which, pick)
        assert defect == DEFECTS[which]
        read = decode_offer(value)
        if defect == "no text":
            assert isinstance(read, Offer)
            assert DEFAULT_RECIPE.text(read) == ""
        else:
            assert not isinstance(read, Offer), value
            assert read[0] in WHY[defect]


def test_all_defects_are_drawn() -> None:
    assert set(get_args(Defect)) == set(DEFECTS) == {*WHY, "no text"}


def test_the_archive_is_one_that_unpacks() -> None:
    assert GOOD is not None
    _, value = broken(GOOD, DEFECTS.index("gzipped"), 0)
    assert zlib.decompress(value, wbits=31) == GOOD


def test_a_framed_message_holds_the_offer_behind_its_frame() -> None:
    assert GOOD is not None
    _, value = broken(GOOD, DEFECTS.index("framed"), 77)
    assert value[:5] == b"\x00\x00\x00\x00M"
    assert msgspec.json.decode(value[5:]) == msgspec.json.decode(GOOD)


def test_every_broken_event_is_really_broken() -> None:
    drawn = [event for event in events(9, 20_000) if event.kind == "broken"]
    assert {event.defect for event in drawn} == set(DEFECTS)
    for event in drawn:
        assert event.value is not None
        read = decode_offer(event.value)
        assert not isinstance(read, Offer) or not DEFAULT_RECIPE.text(read), event

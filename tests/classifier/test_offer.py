"""The offer's contract: the struct, and the JSON Schema made from it, say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier import offer
from classifier.offer import Offer, schema

DECODER = msgspec.json.Decoder(Offer)


def is_offer(value: object) -> bool:
    try:
        DECODER.decode(json.dumps(value).encode())
    except msgspec.ValidationError:
        return False
    return True


def fits_schema(value: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema()).is_valid(value))


def test_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema()["required"] == ["offer_id"]


def test_published_schema_file_is_what_the_code_says() -> None:
    file = Path(offer.__file__).with_name("offer.schema.json")
    assert json.loads(file.read_text(encoding="utf-8")) == schema()


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ({"offer_id": "7"}, True),
        ({"offer_id": "x" * 512}, True),
        ({"offer_id": "x" * 513}, False),
        ({"offer_id": ""}, False),
        ({"offer_id": 7}, False),
        ({"offer_id": None}, False),
        ({"title": "Kettle"}, False),
        ({"offer_id": "7", "title": None, "brand": None}, True),
        ({"offer_id": "7", "title": 12}, False),
        ({"offer_id": "7", "title": 12.5}, False),
        ({"offer_id": "7", "title": True}, False),
        ({"offer_id": "7", "title": ["Kettle"]}, False),
        ({"offer_id": "7", "description": {"de": "Stuhl"}}, False),
        ({"offer_id": "7", "revision": 0}, True),
        ({"offer_id": "7", "revision": 2**63 - 1}, True),
        ({"offer_id": "7", "revision": 2**63}, False),
        ({"offer_id": "7", "revision": -1}, False),
        ({"offer_id": "7", "revision": "3"}, False),
        ({"offer_id": "7", "revision": True}, False),
        ({"offer_id": "7", "revision": None}, True),
        ({"offer_id": "7", "seller_no": 98765432109876543210, "size.cm": {"$gt": [None]}}, True),
        ([], False),
        ("7", False),
        (None, False),
    ],
)
def test_code_and_schema_take_and_refuse_the_same(value: object, taken: bool) -> None:
    assert is_offer(value) is taken
    assert fits_schema(value) is taken


SCALARS = st.none() | st.booleans() | st.integers(-2, 2**64) | st.text(max_size=3)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(Offer.__struct_fields__, SCALARS | st.lists(SCALARS, max_size=1)),
            "price": SCALARS,
        },
    )
)
def test_code_and_schema_never_disagree(value: dict[str, Any]) -> None:
    assert is_offer(value) is fits_schema(value)


def test_ids_that_look_alike_stay_apart() -> None:
    ids = [DECODER.decode(json.dumps({"offer_id": name}).encode()).offer_id
           for name in ("12", " 12", "012", "12.0")]  # fmt: skip
    assert ids == ["12", " 12", "012", "12.0"]


def test_an_offer_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Offer("1").title = "other"  # type: ignore[misc]

"""The offer: what a shop sends, and the JSON Schema of it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

OFFER_ID_CHARACTERS = 512
"""Longest offer id. MongoDB indexes ids of any length, but a longer one is never an id."""

OfferId = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=OFFER_ID_CHARACTERS,
        description="Names the offer; the `_id` of its classification.",
    ),
]
Text = Annotated[str, msgspec.Meta(description="Raw text as the shop sends it; may hold HTML.")]
Revision = Annotated[
    int,
    msgspec.Meta(
        ge=0,
        le=2**63 - 1,
        description="Grows with each change; without one the Kafka timestamp decides.",
    ),
]


class Offer(msgspec.Struct, frozen=True, gc=False):
    """One offer of one shop. Unknown fields pass by; a text field is a string or null.

    Of a key that stands twice in the JSON object the last one counts.
    """

    offer_id: OfferId
    shop_id: str | None = None
    language: str | None = None
    title: Text | None = None
    description: Text | None = None
    category_path: Text | None = None
    brand: Text | None = None
    revision: Revision | None = None


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a record's value on the offers topic."""
    (described,), components = msgspec.json.schema_components([Offer])
    body = components[described["$ref"].rsplit("/", 1)[-1]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **body,
        "title": "Offer",
        "description": (
            "A record of the offers topic. A null value is a tombstone: it removes the "
            "classification of the offer that the key names."
        ),
    }

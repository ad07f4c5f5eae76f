"""What comes out of the catalogue: labelled offers, and the events that shops send over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from classifier.offer import Offer
from classifier.sample import broken, draws
from classifier.sample.listing import Listing, Split, listings

Kind = Literal["new", "repeat", "revision", "late", "tombstone", "broken"]

# Thousandths of the events; the rest is new offers.
SHARES: dict[Kind, int] = {
    "repeat": 120,  # the same offer at another price
    "revision": 60,  # the same offer in other words
    "late": 10,  # an older revision, after a newer one
    "tombstone": 15,  # the offer is gone
    "broken": 10,  # bytes that are no offer
}

# An offer comes back within so many new ones: a window, so that memory stays flat.
_WINDOW = 4096
# An older revision comes late, after at most so many changes of other offers.
_LATEST = 64

_NEWS = {
    "de": "Jetzt mit 3 Jahren Garantie.",
    "en": "Now with a 3 year guarantee.",
    "fr": "Maintenant garanti 3 ans.",
    "es": "Ahora con 3 años de garantía.",
    "it": "Ora con 3 anni di garanzia.",
}

# Streams of random numbers: what is listed, and what becomes of it.
_LISTING_STREAMS: dict[Split, int] = {"train": 0, "test": 1}
_EVENT_STREAM = 2


class Event(NamedTuple):
    """A record to put on the topic, and what is known about it.

    `truth` is the category id, None for tombstones and broken messages. `kind` says what the event
    is, and `defect` in which way a broken one is broken.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    truth: str | None
    kind: Kind
    defect: broken.Defect | None = None


class _Message(msgspec.Struct, gc=False):
    """An offer on the wire: the contract's fields, and others that pass by."""

    offer_id: str
    shop_id: str
    language: str | UnsetType | None
    title: str | UnsetType | None
    description: str | UnsetType | None
    category_path: str | UnsetType | None
    brand: str | UnsetType | None
    price: float
    currency: str
    url: str | UnsetType
    gtin: str | UnsetType
    revision: int | UnsetType


class _Labelled(Offer, frozen=True, gc=False, kw_only=True):
    label: str


class _Listed:
    """An offer that may come back: its listing, its message, its last revision."""

    __slots__ = ("gone", "listing", "message", "older")

    def __init__(self, listing: Listing, message: _Message) -> None:
        self.listing = listing
        self.message = message
        self.older = b""  # its last revision but one
        self.gone = False


_encode = msgspec.json.Encoder().encode


def offers(seed: int, count: int, split: Split = "train") -> Iterator[tuple[Offer, str]]:
    """`count` good offers of one split, each with its category id.

    No text of one split is in the other, whatever the seeds.
    """
    for offer, listing in listed(seed, count, split):
        yield offer, listing.category


def listed(seed: int, count: int, split: Split = "train") -> Iterator[tuple[Offer, Listing]]:
    """`offers`, each with the listing that it is of."""
    drawn = listings(seed, split, _LISTING_STREAMS[split])
    for number, listing in enumerate(islice(drawn, count)):
        offer = Offer(
            offer_id=_offer_id(listing, seed, number),
            shop_id=listing.shop.id,
            language=listing.language,
            title=listing.title,
            description=listing.description,
            category_path=listing.category_path,
            brand=listing.brand,
            revision=number % 5 if listing.shop.revisions else None,
        )
        yield offer, listing


def labelled(seed: int, count: int, split: Split = "train") -> Iterator[bytes]:
    """`offers` as lines of JSON, without line ends, with the category id as `label`."""
    for offer, label in offers(seed, count, split):
        yield _encode(_Labelled(**msgspec.structs.asdict(offer), label=label))


def events(
    seed: int, count: int, split: Split = "test", *, texts: int | None = None
) -> Iterator[Event]:
    """`count` events of shops over time: offers of one split that come, change and go.

    Most are new offers; the others are repeats at a new price, revisions, older revisions that
    come late, tombstones (some with the header `revision`), and broken messages. With `texts`,
    only so many products are drawn, and later new offers list those again under new ids: so many
    different texts, besides those of revisions.

    Raises ValueError when `seed` is negative.
    """
    drawn = listings(seed, split, _LISTING_STREAMS[split])
    if texts is not None:
        drawn = _again(drawn, texts)
    window: list[_Listed] = []
    changed: deque[_Listed] = deque(maxlen=_LATEST)
    oldest = 0
    for number, row in enumerate(islice(draws.rows(seed, _EVENT_STREAM), count)):
        place = row[1] % len(window) if window else 0
        match _kind(row[0] % 1000) if window else "new":
            case "repeat":
                yield _repeat(window[place], row)
                changed.append(window[place])
                continue
            case "revision":
                yield _revise(window[place], row)
                changed.append(window[place])
                continue
            case "late" if changed:
                listed = changed.popleft()
                if listed.older and not listed.gone:
                    yield _good(listed, listed.older, "late")
                    continue
            case "tombstone":
                listed, window[place] = window[place], window[-1]
                window.pop()
                yield _remove(listed, row)
                continue
            case "broken":
                yield _break(window[place], seed, number, row)
                continue
        listing = next(drawn)
        listed = _Listed(listing, _message(listing, seed, number, row))
        if len(window) < _WINDOW:
            window.append(listed)
        else:
            oldest = (oldest + 1) % _WINDOW
            window[oldest] = listed
        yield _good(listed, _encode(listed.message), "new")


def _kind(chance: int) -> Kind:
    for kind, share in SHARES.items():
        if chance < share:
            return kind
        chance -= share
    return "new"


def _again(drawn: Iterator[Listing], texts: int) -> Iterator[Listing]:
    kept = []
    for listing in islice(drawn, texts):
        kept.append(listing)
        yield listing
    yield from cycle(kept)


def _offer_id(listing: Listing, seed: int, number: int) -> str:
    return f"{listing.shop.id}-{seed:x}-{number:07x}"


def _message(listing: Listing, seed: int, number: int, row: list[int]) -> _Message:
    shop = listing.shop
    missing = None if shop.nulls else UNSET
    offer_id = _offer_id(listing, seed, number)
    return _Message(
        offer_id,
        shop.id,
        listing.language or missing,
        listing.title or missing,
        listing.description or missing,
        listing.category_path or missing,
        listing.brand or missing,
        listing.cents / 100,
        "GBP" if shop.language == "en" else "EUR",
        f"https://{shop.id}.example/p/{number}" if shop.links else UNSET,
        f"{listing.gtin:013d}" if shop.gtins else UNSET,
        1 + row[2] % 40 if shop.revisions else UNSET,
    )


def _good(listed: _Listed, value: bytes, kind: Kind) -> Event:
    return Event(listed.message.offer_id.encode(), value, (), listed.listing.category, kind)


def _advance(listed: _Listed, row: list[int]) -> None:
    message = listed.message
    if message.revision is not UNSET:
        listed.older = _encode(message)
        message.revision += 1 + row[3] % 3
    message.price = round(message.price * (0.8 + (row[4] % 41) / 100), 2)


def _repeat(listed: _Listed, row: list[int]) -> Event:
    _advance(listed, row)
    return _good(listed, _encode(listed.message), "repeat")


def _revise(listed: _Listed, row: list[int]) -> Event:
    # The title keeps its words: they say to which split the product belongs.
    _advance(listed, row)
    message = listed.message
    match row[5] % 3:
        case 0 if message.title and not message.title.endswith(" !"):
            message.title = f"{message.title} !"
        case 1 if message.category_path:
            message.category_path = None
        case _:
            said = f"{message.description or ''} {_NEWS[listed.listing.shop.language]}"
            message.description = said.lstrip()
    return _good(listed, _encode(message), "revision")


def _remove(listed: _Listed, row: list[int]) -> Event:
    message = listed.message
    listed.gone = True
    headers: tuple[tuple[str, bytes], ...] = ()
    if message.revision is not UNSET and row[5] & 1:
        headers = (("revision", str(message.revision + 1).encode()),)
    return Event(message.offer_id.encode(), None, headers, None, "tombstone")


def _break(listed: _Listed, seed: int, number: int, row: list[int]) -> Event:
    offer_id = _offer_id(listed.listing, seed, number)
    message = msgspec.structs.replace(listed.message, offer_id=offer_id)
    defect, value = broken.broken(_encode(message), row[6], row[7])
    key = None if row[8] & 7 == 0 else offer_id.encode()
    return Event(key, value, (), None, "broken", defect)

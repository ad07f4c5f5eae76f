"""The prediction cache: same text, same model, same answer.

A cache belongs to one artefact and dies with it, so an entry needs no model in its key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from classifier.scores import Prediction


class PredictionCache:
    """Predictions by text hash, at most `capacity` of them; the least recently used goes first.

    The worker's tokenising and computing threads share it, hence the lock, taken once a batch.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[bytes, Prediction] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get_many(self, keys: Iterable[bytes]) -> list[Prediction | None]:
        """The prediction of each key, None where there is none."""
        found: list[Prediction | None] = []
        entries = self._entries
        with self._lock:
            for key in keys:
                prediction = entries.get(key)
                if prediction is not None:
                    entries.move_to_end(key)
                found.append(prediction)
        return found

    def put_many(self, items: Iterable[tuple[bytes, Prediction]]) -> None:
        """Remembers predictions, and forgets the least recently used beyond the capacity."""
        entries = self._entries
        with self._lock:
            for key, prediction in items:
                entries[key] = prediction
                entries.move_to_end(key)
            while len(entries) > self._capacity:
                entries.popitem(last=False)

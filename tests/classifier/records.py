"""A Kafka record as the consumer gives it, made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

TIMESTAMP = 1_700_000_000_000


@dataclass(frozen=True)
class Record:
    """Stands in for aiokafka's ConsumerRecord."""

    value: bytes | None = None
    key: bytes | None = None
    topic: str = "offers"
    partition: int = 0
    offset: int = 0
    timestamp: int = TIMESTAMP
    headers: tuple[tuple[str, bytes], ...] = field(default=())

    @property
    def serialized_value_size(self) -> int:
        return -1 if self.value is None else len(self.value)

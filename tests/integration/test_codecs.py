"""Compressed batches, by every codec that a producer may use."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaProducer

from classifier.client import CodecError, check_codecs
from tests.integration.harness import Place, classifications, done, offer, working


async def test_every_codec_is_read(place: Place) -> None:
    codecs = [None, "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        producer = AIOKafkaProducer(
            bootstrap_servers=place.kafka, compression_type=codec, linger_ms=20
        )
        await producer.start()
        for number in range(50):
            sent = await producer.send(place.topic, offer(f"{codec}-{number}"), partition=0)
        place.ends[0] = (await sent).offset + 1
        await producer.stop()
    async with working(place.settings()):
        await done(place)
    assert set(await classifications(place)) == {f"{c}-{n}" for c in codecs for n in range(50)}


def test_missing_codec_package_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    check_codecs()
    monkeypatch.setattr("aiokafka.codec.cramjam", None)
    with pytest.raises(CodecError, match="snappy, lz4, zstd; pip install cramjam"):
        check_codecs()

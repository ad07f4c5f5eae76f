"""Compressed batches, by every codec that a producer may use."""

from __future__ import annotations

from aiokafka import AIOKafkaProducer

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

"""Served: an artefact answers a file as `classifier classify` does, and its CPU time is taken."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from pydantic import BaseModel

from classifier import bulk
from classifier.model import Model
from classifier.settings import Settings

_FIELDS = Settings.model_fields


class Serving(BaseModel):
    """As the service does by default, but one thread, which never waits for another one, and no
    cache, which would answer a text for nothing that was seen before.
    """

    threads: int = 1
    cache_offers: int = 0
    batch_tokens: int = _FIELDS["batch_tokens"].default
    alternatives: int = _FIELDS["alternatives"].default


class Asked(msgspec.Struct, frozen=True):
    """What it took to answer a file."""

    offers: int
    errors: int  # offers without an answer
    cpu_seconds: float  # of the process, from the file's first byte to the answers' last


def classify(artifact: Path, offers: Path, target: Path, serving: Serving) -> Asked:
    """Answer the offers into `target`; for a process that does nothing else.

    Raises ArtifactError, EngineError, ModelError, FileError.
    """
    model = Model.load(artifact, **serving.model_dump())
    started = time.process_time()
    counts = bulk.classify_file(offers, target, model, record_bytes=_FIELDS["record_bytes"].default)
    seconds = time.process_time() - started
    model.close()
    return Asked(counts.rows, counts.errors, seconds)

"""What the endpoints answer, as documented in /openapi.json: plain data, one class a report."""

from __future__ import annotations

from pydantic import BaseModel, Field

from classifier.link import Alternative, ModelInfo, Problem


class WorkerReport(BaseModel):
    """One worker, as it says itself."""

    slot: int
    state: str = Field(description="absent, starting, running or draining")
    ready: bool
    golden: bool = Field(description="the model answered its golden questions")
    joined: bool = Field(description="the consumer group is joined")
    mongodb: bool = Field(description="MongoDB takes writes")
    waiting_on: list[str] = Field(description="outages that explain why work stands still")
    in_flight: int = Field(description="offers fetched and not yet committed")
    restarts: int
    reasons: list[str] = Field(description="why it is not ready")
    model: ModelInfo | None


class Health(BaseModel):
    """Alive: the loop turns, and no worker hangs that cannot be replaced."""

    alive: bool
    reasons: list[str]


class Readiness(BaseModel):
    """Ready: at least one worker has a sound model, its partitions, and a MongoDB that writes."""

    ready: bool
    reasons: list[str]
    workers: list[WorkerReport]


class ModelReport(BaseModel):
    """The artefact the service was started with, and what each worker has loaded."""

    artifact: str
    kind: str
    target: str
    precision: str
    checkpoint: str
    created_at: str
    data: dict[str, str | int]
    taxonomy: str
    labels: int
    max_tokens: int
    temperature: float
    threshold: float
    versions: dict[str, str]
    promotion: int
    workers: dict[str, ModelInfo | None] = Field(description="by slot")


class Category(BaseModel):
    """A category that the model can answer."""

    id: str
    names: dict[str, str] = Field(description="by language")
    parents: list[str] = Field(description="category ids, the nearest first")


class Categories(BaseModel):
    """All categories that the model can answer."""

    taxonomy: str
    categories: list[Category]


# The two below describe link.Classified and link.Refused, whose tags, which tell them apart between
# the processes, no client is shown: neither pydantic nor msgspec describes them without.
class ClassifiedReport(BaseModel):
    """An offer's category."""

    offer_id: str
    category_id: str
    score: float = Field(description="calibrated probability")
    alternatives: list[Alternative]
    status: str = Field(description="classified, or uncertain below the category's threshold")
    model: str
    taxonomy: str


class RefusedReport(BaseModel):
    """An offer that cannot be classified; its neighbours are not touched."""

    offer_id: str | None
    error: Problem


class Classifications(BaseModel):
    """One result an offer, in the order of the offers."""

    results: list[ClassifiedReport | RefusedReport]


class ErrorReport(BaseModel):
    """What is wrong with a request, in one line."""

    error: str

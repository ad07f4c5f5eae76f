"""An artefact is all or nothing: whatever is missing, changed, extra or at odds is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from classifier import artifact
from classifier.artifact import Artifact, ArtifactError, Description, Label, publish
from classifier.text import TextRecipe

LABELS = [
    {"id": "kettles", "names": {"de": "Wasserkocher", "en": "Kettles"}, "parents": ["kitchen"]},
    {"id": "sofas", "names": {}, "parents": []},
    {"id": "tents", "names": {"fr": "Tentes"}, "parents": []},
]
GOLDEN = [
    {"text": "steel kettle 1.7 l", "category_id": "kettles", "logits": {"kettles": 2, "sofas": -1}},
    {"text": "zelt", "category_id": "tents", "logits": {"tents": 1.5}},
]


def describe(**changes: Any) -> Description:
    fields: dict[str, Any] = {
        "created_at": "2026-03-01T10:00:00+00:00",
        "kind": "encoder",
        "target": "onnx-cpu",
        "precision": "fp32",
        "checkpoint": "0123456789abcdef",
        "data": {"name": "three", "rows": 3},
        "taxonomy": "1",
        "text": TextRecipe(),
        "max_tokens": 32,
        "versions": {"torch": "2.13.0"},
        "temperature": 1.25,
        "threshold": 0.5,
        "thresholds": {"sofas": 0.25},
    }
    return Description(**(fields | changes))


def stage(
    parent: Path, labels: list[dict[str, Any]] = LABELS, golden: list[dict[str, Any]] = GOLDEN
) -> Path:
    staging = parent / "staging"
    staging.mkdir(parents=True)
    (staging / "labels.json").write_text(json.dumps(labels))
    (staging / "golden.jsonl").write_text("".join(json.dumps(row) + "\n" for row in golden))
    (staging / "tokenizer.json").write_text("{}")
    (staging / "report.json").write_text("{}")
    (staging / "model.onnx").write_bytes(b"weights")
    return staging


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return publish(stage(tmp_path), describe(), tmp_path)


def rewrite(path: Path, change: Callable[[dict[str, Any]], object], *, reseal: bool = True) -> None:
    """Change a published manifest; resealed, so that only the changed value can be found wrong."""
    raw = json.loads((path / "manifest.json").read_text())
    change(raw)
    if reseal:
        raw["id"] = artifact._identity(raw)
    (path / "manifest.json").write_text(json.dumps(raw))


def refusal(path: Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        Artifact.load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_was_published_is_what_is_loaded(published: Path) -> None:
    loaded = Artifact.load(published)
    assert loaded.path == published
    assert loaded.manifest.id == published.name
    assert len(published.name) == 16
    assert set(loaded.manifest.files) == {
        "labels.json", "golden.jsonl", "tokenizer.json", "report.json", "model.onnx"
    }  # fmt: skip
    assert loaded.manifest.files["model.onnx"] == hashlib.sha256(b"weights").hexdigest()
    assert [label.id for label in loaded.labels] == ["kettles", "sofas", "tents"]
    assert loaded.labels[0] == Label(
        "kettles", {"de": "Wasserkocher", "en": "Kettles"}, ("kitchen",)
    )
    assert loaded.golden[0].logits == {"kettles": 2.0, "sofas": -1.0}
    assert loaded.manifest.temperature == 1.25
    assert loaded.manifest.text == TextRecipe()
    assert loaded.manifest.pad_multiple == 8


def test_staging_is_gone_after_publishing(published: Path) -> None:
    assert [entry.name for entry in published.parent.iterdir()] == [published.name]


def test_publishing_the_same_again_changes_nothing(published: Path) -> None:
    before = (published / "manifest.json").stat()
    again = publish(stage(published.parent), describe(), published.parent)
    assert again == published
    assert (published / "manifest.json").stat() == before
    assert not (published.parent / "staging").exists()


def test_publishing_over_a_damaged_artefact_is_refused(published: Path) -> None:
    (published / "model.onnx").write_bytes(b"other")
    with pytest.raises(ArtifactError, match=r"model\.onnx was changed"):
        publish(stage(published.parent), describe(), published.parent)
    assert (published / "model.onnx").read_bytes() == b"other"


def test_other_bytes_get_another_id(published: Path, tmp_path: Path) -> None:
    staging = stage(tmp_path / "other")
    (staging / "model.onnx").write_bytes(b"weightS")
    assert publish(staging, describe(), tmp_path / "other").name != published.name


def test_nothing_wrong_is_published(tmp_path: Path) -> None:
    staging = stage(tmp_path)
    with pytest.raises(ArtifactError, match="temperature is 0"):
        publish(staging, describe(temperature=0.0), tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_half_written_artefact_is_refused(tmp_path: Path) -> None:
    assert "has no manifest.json" in refusal(stage(tmp_path))


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    assert "no such directory" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name", ["labels.json", "golden.jsonl", "tokenizer.json", "report.json", "model.onnx"]
)
def test_every_changed_file_is_found(published: Path, name: str) -> None:
    content = (published / name).read_bytes()
    (published / name).write_bytes(content + b" ")
    assert f"{name} was changed" in refusal(published)


@pytest.mark.parametrize(
    "name", ["labels.json", "golden.jsonl", "tokenizer.json", "report.json", "model.onnx"]
)
def test_every_missing_file_is_found(published: Path, name: str) -> None:
    (published / name).unlink()
    assert f"{name} is missing" in refusal(published)


def test_file_that_does_not_belong_is_found(published: Path) -> None:
    (published / "extra.json").write_text("{}")
    assert "extra.json does not belong" in refusal(published)


def test_link_is_refused_even_to_the_right_bytes(published: Path, tmp_path: Path) -> None:
    (published / "model.onnx").rename(tmp_path / "elsewhere")
    (published / "model.onnx").symlink_to(tmp_path / "elsewhere")
    assert "model.onnx is not a regular file" in refusal(published)


def test_linked_manifest_is_refused(published: Path, tmp_path: Path) -> None:
    (published / "manifest.json").rename(tmp_path / "elsewhere")
    (published / "manifest.json").symlink_to(tmp_path / "elsewhere")
    assert "manifest.json is not a regular file" in refusal(published)


@pytest.mark.parametrize(
    "name", ["../model.onnx", "/etc/passwd", "a/b.json", "..", "", ".hidden.json", "manifest.json"]
)
def test_path_tricks_in_file_names_are_refused(published: Path, name: str) -> None:
    rewrite(published, lambda raw: raw["files"].update({name: "0" * 64}))
    assert "is no plain file name" in refusal(published)


@pytest.mark.parametrize("name", ["model.pt", "model.pkl", "model.bin", "model.joblib", "model"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    staging = stage(tmp_path)
    (staging / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ArtifactError, match="belong in an artefact"):
        publish(staging, describe(), tmp_path)


def test_changed_manifest_is_found(published: Path) -> None:
    rewrite(published, lambda raw: raw.update(threshold=0.1), reseal=False)
    assert "was changed" in refusal(published)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2"),
        ({"kind": "oracle"}, "kind 'oracle'"),
        ({"target": ""}, "names no target"),
        ({"precision": "fp4"}, "precision 'fp4'"),
        ({"checkpoint": "latest"}, "checkpoint is no hash"),
        ({"max_tokens": 2}, "max_tokens is 2"),
        ({"pad_multiple": 0}, "pad_multiple is 0"),
        ({"temperature": 0}, "temperature is 0"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": None}, "temperature"),
        ({"threshold": 1.5}, "threshold 1.5"),
        ({"thresholds": {"sofas": -0.5}}, "threshold -0.5"),
        ({"thresholds": {"chairs": 0.5}}, "'chairs', which is no label"),
        ({"created_at": "yesterday"}, "is no ISO 8601 time"),
        ({"created_at": "2026-03-01T10:00:00+02:00"}, "is not in UTC"),
        ({"created_at": "2026-03-01T10:00:00"}, "is not in UTC"),
        ({"labels_sha256": "0" * 64}, "not the label map"),
        ({"files": {}}, "lists no golden.jsonl"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_wrong_value_in_the_manifest_is_refused(
    published: Path, change: dict[str, Any], message: str
) -> None:
    rewrite(published, lambda raw: raw.update(change))
    assert message in refusal(published)


def test_other_text_recipe_version_is_refused(published: Path) -> None:
    rewrite(published, lambda raw: raw["text"].update(version=99))
    assert "text recipe version 99" in refusal(published)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000, b'{"id":"\xe9"}']
)
def test_unreadable_manifest_is_one_line(published: Path, content: bytes) -> None:
    (published / "manifest.json").write_bytes(content)
    assert "manifest.json" in refusal(published)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "holds no labels"),
        ([*LABELS, LABELS[0]], "'kettles' stands there twice"),
        ([*LABELS, {"id": " "}], "has no id"),
        ([*LABELS, {"id": 7}], "cannot be read"),
    ],
)
def test_wrong_labels_are_refused(
    tmp_path: Path, labels: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        publish(stage(tmp_path, labels=labels), describe(), tmp_path)


@pytest.mark.parametrize(
    ("golden", "message"),
    [
        ([], "holds no golden question"),
        ([{"text": "x", "category_id": "chairs", "logits": {"chairs": 1}}], "which is no label"),
        ([{"text": "x", "category_id": "sofas", "logits": {}}], "is not the answer"),
        (
            [{"text": "x", "category_id": "sofas", "logits": {"tents": 2, "sofas": 1}}],
            "is not the answer",
        ),
        ([{"text": "x", "category_id": "sofas"}], "cannot be read"),
    ],
)
def test_wrong_golden_questions_are_refused(
    tmp_path: Path, golden: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        publish(stage(tmp_path, golden=golden), describe(), tmp_path)


def test_label_map_hash_depends_on_order_and_ids_alone() -> None:
    a, b = Label("a", {"en": "A"}), Label("b")
    assert artifact.labels_hash((a, b)) != artifact.labels_hash((b, a))
    assert artifact.labels_hash((a, b)) == artifact.labels_hash((Label("a"), b))
    assert artifact.labels_hash((Label("a"), Label("bc"))) != artifact.labels_hash(
        (Label("ab"), Label("c"))
    )


def test_swapped_labels_are_refused(published: Path) -> None:
    swapped = json.dumps([LABELS[1], LABELS[0], LABELS[2]])
    (published / "labels.json").write_text(swapped)
    rewrite(
        published,
        lambda raw: raw["files"].update(
            {"labels.json": artifact.file_hash(published / "labels.json")}
        ),
    )
    assert "not the label map" in refusal(published)


def test_id_is_a_hash_of_the_manifest_as_written() -> None:
    raw = msgspec.to_builtins(describe())
    assert artifact._identity(raw) == artifact._identity(dict(reversed(raw.items())))
    assert artifact._identity(raw) == artifact._identity(raw | {"id": "anything"})
    assert artifact._identity(raw) != artifact._identity(raw | {"a_later_field": 0})


def test_current_names_the_artefact_last_set(published: Path) -> None:
    parent = published.parent
    artifact.set_current(parent, published)
    assert artifact.current(parent) == published
    second = publish(stage(parent), describe(taxonomy="2"), parent)
    artifact.set_current(parent, second)
    assert artifact.current(parent) == second
    assert (parent / "current").read_text() == second.name + "\n"
    assert oct((parent / "current").stat().st_mode & 0o777) == "0o644"
    assert {entry.name for entry in parent.iterdir()} == {published.name, second.name, "current"}


def test_what_is_served_is_the_current_artefact_or_the_one_itself(
    published: Path, tmp_path: Path
) -> None:
    assert artifact.resolve(published) == published
    artifact.set_current(published.parent, published)
    assert artifact.resolve(published.parent) == published
    assert artifact.resolve(tmp_path / "nowhere") == tmp_path / "nowhere"
    (published.parent / "current").write_text("../x")
    with pytest.raises(ArtifactError, match="is no artefact's id"):
        artifact.resolve(published.parent)
    with pytest.raises(ArtifactError, match="cannot be read: File name too long"):
        artifact.resolve(tmp_path / ("x" * 300))


def test_current_outside_its_directory_is_refused(published: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ArtifactError, match="only an artefact in"):
        artifact.set_current(other, published)


@pytest.mark.parametrize("content", ["", "../x", "0123456789abcdef", "\udcff"])
def test_current_that_names_no_artefact_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "current").write_text(content, errors="surrogateescape")
    with pytest.raises(ArtifactError, match="current"):
        artifact.current(tmp_path)
    with pytest.raises(ArtifactError, match="cannot be read"):
        artifact.current(tmp_path / "nowhere")

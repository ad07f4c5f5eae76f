"""The models under measurement: the demonstration's, and one of the size that serves."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from transformers import BertConfig

from classifier import sample
from classifier.artifact import Label
from classifier.demo.training import model
from classifier.encoder import OfferEncoder
from classifier.text import DEFAULT_RECIPE
from classifier.tokens import Tokeniser
from compile import checkpoint
from compile.build import build, versions
from compile.verify import golden_answers
from training.vocabulary import train_tokeniser

KEPT = Path("models")

LABELS = 2_205
"""Categories of the large model, as many as the site's taxonomy has."""


@cache
def demonstration() -> Path:
    """The folder of the demonstration model, trained first when there is none."""
    return model(None, KEPT, lambda line: print(line, file=sys.stderr)).path


def student_size(directory: Path) -> Path:
    """An artefact of six layers and 384 width with random weights, made as a trained one is."""
    texts = [DEFAULT_RECIPE.text(offer) for offer, _ in sample.offers(0, 5_000)]
    tokenizer = train_tokeniser(texts, 12_000)
    tokeniser = Tokeniser(tokenizer, 64)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1_536,
        max_position_embeddings=64,
        type_vocab_size=1,
        pad_token_id=tokeniser.pad_id,
    )
    encoder = OfferEncoder.new(config, LABELS).eval()
    labels = tuple(Label(f"category-{number:04d}") for number in range(LABELS))
    checkpoint.write(
        directory / "checkpoint",
        encoder,
        tokenizer,
        labels,
        golden_answers(encoder, tokeniser, labels, texts[:32]),
        checkpoint.Description(
            data={"name": "random weights"},
            taxonomy="benchmark",
            text=DEFAULT_RECIPE,
            max_tokens=64,
            temperature=1.0,
            threshold=0.5,
            versions=versions(),
            report={},
        ),
    )
    return build(directory / "checkpoint", "onnx-cpu", directory)

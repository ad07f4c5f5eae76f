"""An encoder of one's own, for where none that is pretrained is to be had.

Its tokeniser is learnt from the offers. Its weights start at random, and its table of pieces is
then trained as training.fit's first passes do: labels from the mean of the embeddings alone, which
costs a tenth of a pass through the layers. So it knows the shops' words before teacher and student
are made of it, and nothing more: an encoder that has read a language is better, where there is one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from classifier import cpu
from classifier.encoder import OfferEncoder
from classifier.progress import bar
from classifier.tokens import Tokeniser
from compile.labelled import read_labelled
from training import encoders, fit
from training.examples import examples, hold_out, texts_of
from training.fit import Schedule
from training.parameters import OwnEncoderParameters
from training.scratch import HELD_OUT, Shape, encode
from training.sets import Say
from training.stage import Record, Stage, StageError, hash_inputs

ENCODER = "encoder"
"""The result of the stage, in its directory: what teacher.encoder and student.encoder can name."""
MOST_HELD_OUT = 2_000


def make(
    parameters: OwnEncoderParameters, train: Path, transfer: Path | None, out: Path, say: Say
) -> Record:
    """Make `out`/encoder of labelled offers; unlabelled ones have a part in its pieces.

    Raises StageError, DataError.
    """
    paths = {"train": train} if transfer is None else {"train": train, "transfer": transfer}
    stage = Stage("encoder", out, parameters, hash_inputs(paths))
    if record := stage.done():
        return record
    stage.begin()
    recipe = parameters.recipe()
    given = examples(read_labelled(train), recipe)
    unlabelled = [] if transfer is None else texts_of(transfer, recipe)
    texts = sorted({*given.texts, *unlabelled})
    rng = np.random.default_rng(parameters.seed)
    training, held = hold_out(given, HELD_OUT, MOST_HELD_OUT, rng)
    encoder = encoders.make(texts, _shape(parameters), parameters.seed)
    tokeniser = Tokeniser(encoder.tokenizer, parameters.max_tokens)
    rows = encode(tokeniser, training.texts)
    pieces, length = encoder.tokenizer.get_vocab_size(), float(np.mean([len(row) for row in rows]))
    say(f"{len(rows):,} texts of {length:.0f} tokens; {pieces:,} pieces, of {len(texts):,} texts")
    torch.set_num_threads(cpu.quota())
    torch.manual_seed(parameters.seed)
    model = OfferEncoder(encoder.model, len(given.label_ids))
    schedule = Schedule(table_passes=parameters.passes, passes=parameters.layer_passes)
    try:
        with bar("encoder") as show:
            fit.fit(model, rows, training.labels, schedule, tokeniser.pad_id, parameters.seed, show)
    except FloatingPointError as error:
        raise StageError(f"encoder: {error}") from error
    accuracy = None
    if held.texts:
        logits = fit.logits(
            model,
            encode(tokeniser, held.texts),
            tokeniser.pad_id,
            table_only=not parameters.layer_passes,
        )
        accuracy = round(float((logits.argmax(axis=1) == held.labels).mean()), 4)
        say(f"encoder: its words alone tell {accuracy:.1%} of {len(held.texts):,} offers right")
    encoder.tokenizer.no_truncation()
    encoders.save(out / ENCODER, encoder.model, encoder.tokenizer)
    return stage.finish(
        {
            "texts": len(texts),
            "labels": len(given.label_ids),
            "pieces": pieces,
            "tokens_a_text": round(length, 1),
            "weights": sum(weights.numel() for weights in encoder.model.parameters()),
            "accuracy": accuracy,  # of held-out offers
        },
        {f"{ENCODER}/{file.name}": file for file in (out / ENCODER).iterdir()},
    )


def _shape(parameters: OwnEncoderParameters) -> Shape:
    return Shape(
        pieces=parameters.pieces,
        hidden=parameters.width,
        layers=parameters.layers,
        heads=parameters.heads,
        inner=parameters.inner,
        max_tokens=parameters.max_tokens,
        dropout=parameters.dropout,
    )

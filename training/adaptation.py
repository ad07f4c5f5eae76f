"""Domain adaptation: masked-language pretraining goes on, on offers, before a label is seen.

Gururangan et al. 2020, "Don't Stop Pretraining". A share of general text in every batch (replay)
and a tenth of the rate that the encoder was pretrained with keep what it knew (Ibrahim et al. 2024,
"Simple and Scalable Strategies to Continually Pre-train"); what was gained on offers and what was
lost elsewhere is measured on texts held out of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import (
    AutoModelForMaskedLM,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from classifier import jsonl
from classifier.jsonl import FileError
from classifier.tokens import Tokeniser
from compile.labelled import DataError
from training import encoders, loop, processes
from training.encoders import EncoderError
from training.examples import texts_of
from training.fit import Rows, collate
from training.loop import Clock
from training.parameters import AdaptParameters
from training.sets import Say
from training.stage import Record, Stage, StageError, hash_inputs

VERSION = 1

MASKED = 0.15
"""Share of the pieces that are asked for; of these 80 % are masked, 10 % replaced by any other and
10 % left alone (Devlin et al. 2019)."""
IGNORED = -100
"""The label of a piece that is not asked for."""
POOL = 32
"""Batches of like length are cut from so many batches' rows."""

ENCODER = "encoder"
"""The result of the stage, in its directory: what teacher.encoder and student.encoder can name."""


def make(
    parameters: AdaptParameters, offers: Path, general: Path | None, out: Path, say: Say
) -> Record:
    """Offers and general text in, `out`/encoder adapted to the first.

    `general` is a text a line. An encoder that comes without the head of a masked-language model
    gets one first, trained while the encoder stands still: else the loss before would be that of a
    random head. Raises StageError, DataError.
    """
    if parameters.replay and general is None:
        raise StageError("replay needs general texts: give some, or set adapt.replay to 0")
    if parameters.accumulation % processes.count():
        raise StageError(
            f"adapt: {parameters.accumulation} batches of a step cannot be dealt out evenly among"
            f" {processes.count()} processes: change adapt.accumulation"
        )
    inputs = hash_inputs({"offers": offers} | ({} if general is None else {"general": general}))
    try:
        inputs["encoder"] = encoders.sha256(parameters.encoder)
        stage = Stage("adapt", out, parameters, inputs, version=VERSION)
        if (record := stage.done()) is not None:
            return record
        parts = stage.begin()
        tokenizer = encoders.load_tokenizer(parameters.encoder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(parameters.seed)  # a head that does not come along is random
            model = encoders.load_model(AutoModelForMaskedLM, parameters.encoder)
        summary = _adapt(model, tokenizer, parameters, offers, general, parts, say)
        encoder = out / ENCODER
        with processes.lead_first():
            if processes.leads():
                encoders.save(encoder, model.cpu(), _uncut(tokenizer))
    except EncoderError as error:
        raise StageError(str(error)) from error
    return stage.finish(summary, {f"{ENCODER}/{file.name}": file for file in encoder.iterdir()})


def _adapt(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    parameters: AdaptParameters,
    offers: Path,
    general: Path | None,
    parts: Path,
    say: Say,
) -> dict[str, Any]:
    """Trains the model in place; gives what the stage says of that."""
    torch.set_num_threads(processes.threads())
    rng = np.random.default_rng(parameters.seed)
    read = {"offers": texts_of(offers, parameters.recipe()), "general": _lines(general)}
    tokeniser = Tokeniser(tokenizer, parameters.max_tokens)
    masks = Masks(tokenizer, model)
    domain, domain_held = _hold_out(_encode(tokeniser, read["offers"]), parameters.held_out, rng)
    other, other_held = _hold_out(_encode(tokeniser, read["general"]), parameters.held_out, rng)
    if not domain_held or (parameters.replay and not other):
        raise StageError(
            f"{len(read['offers'])} texts of offers and {len(read['general'])} general ones"
            " are too few"
        )
    say(f"{len(domain):,} offers and {len(other):,} general texts, others held out")

    def measured() -> dict[str, float]:
        held = {"offers": domain_held, "general": other_held}
        return {name: loss(model, rows, masks) for name, rows in held.items() if rows}

    steps = Batches(domain, other, parameters, masks)
    has_head = any("ForMaskedLM" in name for name in model.config.architectures or ())
    if not has_head:
        model.base_model.requires_grad_(False)
        first = Batches(domain, other, parameters, masks, parameters.head_batches)
        _run(model, first, parameters, parameters.head_rate, parts / "head")
        model.base_model.requires_grad_(True)
    before = measured()
    rate = parameters.original_rate * parameters.rate_share
    _run(model, steps, parameters, rate, parts / "encoder")
    after = measured()
    for name in before:
        say(f"{name}: loss {before[name]:.3f} before, {after[name]:.3f} after")
    return {
        "loss_before": before,
        "loss_after": after,
        "gain": round(before["offers"] - after["offers"], 4),
        "forgotten": round(after["general"] - before["general"], 4) if other_held else None,
        "texts": {"offers": len(domain), "general": len(other)},
        "batches": len(steps),
        "rate": rate,
        "head_came_along": has_head,
    }


def _lines(path: Path | None) -> list[str]:
    """The lines of a file of text, plain or gzipped, each once, sorted. Raises DataError."""
    if path is None:
        return []
    try:
        return sorted({line for raw in jsonl.read(path) if (line := raw.decode().strip())})
    except (FileError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no text in UTF-8: {error}") from error


class Masks:
    """Which pieces are asked for, and what stands in their places."""

    def __init__(self, tokenizer: Tokenizer, model: PreTrainedModel) -> None:
        self._mask_id = encoders.piece_id(tokenizer, "mask_token")
        self.pad_id = encoders.piece_id(tokenizer, "pad_token")
        added = tokenizer.get_added_tokens_decoder()
        special = np.zeros(model.config.vocab_size, dtype=bool)
        special[[i for i, token in added.items() if token.special]] = True
        special[tokenizer.get_vocab_size(with_added_tokens=True) :] = True
        self._special = special
        self._others = np.flatnonzero(~special)

    def batch(self, rows: Rows, rng: np.random.Generator) -> dict[str, Tensor]:
        """Ids with masks, attention and labels, all (rows, longest) int64.

        At least one piece is asked for, if there is any that is not special.
        """
        ids, attention = collate(rows, self.pad_id)
        numbers = ids.numpy()
        able = ~self._special[numbers] & (attention.numpy() == 1)
        chance = np.where(able, rng.random(numbers.shape), np.inf)
        asked = chance < MASKED
        if able.any() and not asked.any():
            asked[np.unravel_index(chance.argmin(), chance.shape)] = True
        labels = np.where(asked, numbers, IGNORED)
        fate = rng.random(numbers.shape)
        any_other = rng.choice(self._others, numbers.shape)
        masked = np.where(asked & (fate < 0.8), self._mask_id, numbers)
        masked = np.where(asked & (fate >= 0.9), any_other, masked)
        return {
            "input_ids": torch.from_numpy(masked),
            "attention_mask": attention,
            "labels": torch.from_numpy(labels),
        }


class Batches(Dataset[dict[str, Tensor]]):
    """Every batch of a run by its number: its rows and masks hang on the seed and that alone.

    So a run that was killed goes on with the very batch that came next.
    """

    def __init__(
        self,
        domain: Rows,
        general: Rows,
        parameters: AdaptParameters,
        masks: Masks,
        count: int | None = None,
    ) -> None:
        self._domain, self._general, self._masks = domain, general, masks
        self._seed = parameters.seed
        replayed = 0
        if parameters.replay:
            wanted = max(1, round(parameters.replay * parameters.batch))
            replayed = min(parameters.batch - 1, wanted)
        fresh = parameters.batch - replayed
        count = count or parameters.epochs * -(-len(domain) // fresh)
        steps = -(-count // parameters.accumulation)  # whole ones, however many processes there are
        count = steps * parameters.accumulation
        self.domain_rows = _like_lengths(domain, fresh, count, self._seed)
        self.general_rows = _like_lengths(general, replayed, count, self._seed + 1)

    def __len__(self) -> int:
        return len(self.domain_rows)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        rows = [self._domain[i] for i in self.domain_rows[number]]
        rows += [self._general[i] for i in self.general_rows[number]]
        return self._masks.batch(rows, np.random.default_rng([self._seed, number]))


def _like_lengths(rows: Rows, size: int, count: int, seed: int) -> NDArray[np.int64]:
    """Row numbers (count, size): all rows in turn, again and again, each batch of like length."""
    if not size:
        return np.empty((count, 0), dtype=np.int64)
    rng = np.random.default_rng(seed)
    passes = -(-count * size // len(rows))
    order = np.concatenate([rng.permutation(len(rows)) for _ in range(passes)])[: count * size]
    lengths = np.array([len(row) for row in rows])
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), POOL * size):
        pool = order[start : start + POOL * size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    return np.array([batches[i] for i in rng.permutation(len(batches))])


def loss(model: PreTrainedModel, rows: Rows, masks: Masks) -> float:
    """Mean cross-entropy of the pieces asked for, in nats; the same are asked for every time."""
    was = model.training
    model.train(False)
    device = model.device
    summed, asked = 0.0, 0
    with torch.inference_mode():
        for number, start in enumerate(range(0, len(rows), 64)):
            batch = masks.batch(rows[start : start + 64], np.random.default_rng([1, number]))
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            labels = batch.pop("labels")
            logits = model(**batch).logits.float()
            summed += functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
            ).item()
            asked += int((labels != IGNORED).sum())
    model.train(was)
    return round(summed / max(1, asked), 4)


class _Trainer(Trainer):
    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        labels = inputs["labels"]
        logits = model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        ).logits
        return functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )


def _run(
    model: PreTrainedModel,
    batches: Batches,
    parameters: AdaptParameters,
    rate: float,
    checkpoints: Path,
) -> None:
    """Train what of the model is not frozen, from the last whole checkpoint on."""
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=1,  # the batches are those of all passes
        per_device_train_batch_size=1,  # a batch is one item here
        # The batches of a step are dealt out among the processes.
        gradient_accumulation_steps=parameters.accumulation // processes.count(),
        learning_rate=rate,
        lr_scheduler_type="cosine",
        warmup_steps=parameters.warm_up,
        weight_decay=parameters.weight_decay,
        train_sampling_strategy="sequential",
        **loop.usual(parameters.seed, parameters.precision),
    )
    with processes.bar("adapt") as show, encoders.quiet():
        trainer = _Trainer(
            model,
            arguments,
            data_collator=lambda items: items[0],
            train_dataset=batches,
            callbacks=[Clock(parameters.checkpoint_minutes, parameters.batch, show)],
        )
        trainer.model_accepts_loss_kwargs = False  # the loss above is a batch's mean
        trainer.remove_callback(PrinterCallback)  # standard output is the command's result
        trainer.train(resume_from_checkpoint=loop.last(checkpoints))
    if not all(bool(torch.isfinite(weights).all()) for weights in model.parameters()):
        raise StageError(f"training diverged at a rate of {rate:g}: weights are not finite")


def _encode(tokeniser: Tokeniser, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    rows, _ = tokeniser.encode(list(texts))
    return [np.array(row, dtype=np.int64) for row in rows]


def _hold_out(
    rows: list[NDArray[np.int64]], most: int, rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """The rows to train on and those to measure on, a tenth at most."""
    order = rng.permutation(len(rows)).tolist()
    held = min(most, len(rows) // 10)
    return [rows[i] for i in order[held:]], [rows[i] for i in order[:held]]


def _uncut(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    return tokenizer

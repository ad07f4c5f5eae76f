"""The training loop for encoders that know something already: transformers' Trainer, made exact.

The whole run is one sequence of batches that hangs on the seed alone, so a killed run goes on at
the next batch from its last checkpoint and ends with the very weights of an undisturbed one; and
each process of several takes its share of the same batches.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from training import distillation, processes
from training.distillation import UNLABELLED, Learner
from training.fit import Rows, collate, thin
from training.parameters import LoopParameters, Precision

WHOLE = "whole"
"""The file that says that a checkpoint was written to its end."""
POOL = 32
"""Batches of like length are cut from so many batches' rows."""

Show = Callable[[float, int, str], None]


@dataclass(frozen=True)
class Data:
    """What is trained on, row by row."""

    rows: Rows  # token ids, specials included
    labels: NDArray[np.int64]  # (rows,), UNLABELLED where there is none
    targets: NDArray[np.float16] | None = None  # the teacher's embeddings (rows, width)


def fit(
    learner: Learner,
    data: Data,
    parameters: LoopParameters,
    pad_id: int,
    checkpoints: Path,
    *,
    loss_weight: float = 0.0,
    show: Show = lambda share, rows, note: None,
) -> None:
    """Train the learner in place, from the last checkpoint in `checkpoints` if there is one.

    A checkpoint must be of the same data and parameters. With several processes (torchrun,
    accelerate launch) a batch is dealt out among them. Raises FloatingPointError when it diverges.
    """
    batches = Batches(data, parameters)
    with _prepared(learner.model.encoder, parameters):
        trainer = _Trainer(
            learner, data, parameters, batches, pad_id, checkpoints, loss_weight, show
        )
        trainer.train(resume_from_checkpoint=last(checkpoints))
    if not all(bool(torch.isfinite(weights).all()) for weights in learner.parameters()):
        raise FloatingPointError("training ended with weights that are not finite")
    learner.eval()


@contextmanager
def _prepared(encoder: PreTrainedModel, parameters: LoopParameters) -> Iterator[None]:
    """The encoder with its dropout and, on a CPU, attention as plain products while it is trained.

    There PyTorch's fused attention is slow backwards.
    """
    dropouts = [
        (module, module.p) for module in encoder.modules() if isinstance(module, nn.Dropout)
    ]
    attention = encoder.config._attn_implementation
    if parameters.dropout is not None:
        for module, _ in dropouts:
            module.p = parameters.dropout
    if not torch.cuda.is_available():
        encoder.set_attn_implementation("eager")
    try:
        yield
    finally:
        for module, share in dropouts:
            module.p = share
        encoder.set_attn_implementation(attention)


class Draw(NamedTuple):
    """A row in one of the passes, which may read it with other pieces left out."""

    row: int
    epoch: int


class Batches:
    """All batches of the run, `epochs` passes, each of exactly `batch` rows of like length.

    The last batch of a pass is filled up with rows of its first. "sampling" draws the labelled rows
    of a pass with a probability that falls with the root of their label's frequency; unlabelled
    ones all come once.
    """

    drop_last = False

    def __init__(self, data: Data, parameters: LoopParameters) -> None:
        self.batch_size = parameters.batch
        self._lengths = np.array([len(row) for row in data.rows])
        self._labels = data.labels
        self._parameters = parameters

    def __len__(self) -> int:
        return self._parameters.epochs * -(-len(self._lengths) // self.batch_size)

    def __iter__(self) -> Iterator[list[Draw]]:
        for epoch in range(self._parameters.epochs):
            for batch in self._pass(np.random.default_rng([self._parameters.seed, epoch])):
                yield [Draw(row, epoch) for row in batch]

    def _pass(self, rng: np.random.Generator) -> list[list[int]]:
        size = self.batch_size
        order = rng.permutation(self._drawn(rng))
        order = np.resize(order, -(-len(order) // size) * size)  # repeats its start
        batches: list[list[int]] = []
        for start in range(0, len(order), POOL * size):
            pool = order[start : start + POOL * size]
            pool = pool[np.argsort(self._lengths[pool], kind="stable")]
            batches += [pool[i : i + size].tolist() for i in range(0, len(pool), size)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def _drawn(self, rng: np.random.Generator) -> NDArray[np.int64]:
        if self._parameters.balance != "sampling":
            return np.arange(len(self._labels))
        labelled = np.flatnonzero(self._labels != UNLABELLED)
        share = 1 / np.sqrt(np.bincount(self._labels[labelled]))[self._labels[labelled]]
        drawn = rng.choice(labelled, len(labelled), p=share / share.sum())
        return np.concatenate([drawn, np.flatnonzero(self._labels == UNLABELLED)])


def log_prior(labels: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """The logarithm of each label's share (count,), with one more of each so that none is 0."""
    found = np.bincount(labels[labels != UNLABELLED], minlength=count) + 1.0
    shares: NDArray[np.float32] = np.log(found / found.sum()).astype(np.float32)
    return shares


def groups(learner: Learner, parameters: LoopParameters) -> list[dict[str, Any]]:
    """Weights with their learning rates: a new head must go far, a pretrained encoder must not.

    Biases, norms and embedding tables do not decay: decay would pull at every piece in every step,
    and most occur in few.
    """
    new, decaying, others = [], [], []
    tables = {
        id(weights)
        for module in learner.modules()
        if isinstance(module, nn.Embedding)
        for weights in module.parameters()
    }
    for name, weights in learner.named_parameters():
        if not name.startswith("model.encoder."):
            new.append(weights)
        elif weights.ndim > 1 and id(weights) not in tables:
            decaying.append(weights)
        else:
            others.append(weights)
    decay = parameters.weight_decay
    return [
        {"params": decaying, "lr": parameters.rate, "weight_decay": decay},
        {"params": others, "lr": parameters.rate, "weight_decay": 0.0},
        {"params": new, "lr": parameters.head_rate, "weight_decay": decay},
    ]


class _Rows(Dataset[Draw]):
    """What was drawn; the collator looks the rows up."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, drawn: Draw) -> Draw:
        return drawn


class _Trainer(Trainer):
    def __init__(
        self,
        learner: Learner,
        data: Data,
        parameters: LoopParameters,
        batches: Batches,
        pad_id: int,
        checkpoints: Path,
        loss_weight: float,
        show: Show,
    ) -> None:
        self._data, self._batches, self._pad_id = data, batches, pad_id
        self._loss_weight = loss_weight
        self._parameters = parameters
        self._log_prior = None
        if parameters.balance == "logits":
            labels = learner.model.head.out_features
            self._log_prior = torch.from_numpy(log_prior(data.labels, labels))
        arguments = _arguments(parameters, len(batches), checkpoints)
        optimiser = torch.optim.AdamW(groups(learner, parameters), fused=True)
        super().__init__(
            learner,
            arguments,
            train_dataset=_Rows(len(data.rows)),
            optimizers=(optimiser, None),
            callbacks=[Clock(parameters.checkpoint_minutes, parameters.batch, show)],
        )
        self.remove_callback(PrinterCallback)  # standard output is the command's result

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader = DataLoader(
            _Rows(len(self._data.rows)),
            batch_sampler=self._batches,
            collate_fn=self._collate,
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def _collate(self, drawn: Sequence[Draw]) -> dict[str, Tensor]:
        numbers = [each.row for each in drawn]
        ids, mask = collate([self._read(each) for each in drawn], self._pad_id)
        batch = {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": torch.from_numpy(self._data.labels[numbers]),
        }
        if self._data.targets is not None:
            targets = self._data.targets[numbers].astype(np.float32)
            batch["targets"] = torch.from_numpy(targets)
        return batch

    def _read(self, drawn: Draw) -> NDArray[np.int64]:
        """The row without some of its pieces: the same ones whichever process reads it."""
        row, share = self._data.rows[drawn.row], self._parameters.piece_dropout
        if not share:
            return row
        rng = np.random.default_rng([self._parameters.seed, drawn.epoch, drawn.row])
        return thin(row, share, rng)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        logits, embedded = model(inputs["input_ids"], inputs["attention_mask"])
        prior = self._log_prior
        return distillation.loss(
            logits,
            inputs["labels"],
            embedded,
            inputs.get("targets"),
            weight=self._loss_weight,
            label_smoothing=self._parameters.label_smoothing,
            log_prior=None if prior is None else prior.to(logits.device),
        )


class Clock(TrainerCallback):
    """When to keep a checkpoint, every so many minutes and at the end, and what is shown meanwhile.

    `batch` is the number of rows that the Trainer takes for one item of its data.
    """

    def __init__(self, minutes: float, batch: int, show: Show) -> None:
        self._every = 60 * minutes
        self._batch = batch
        self._show = show
        self._last = time.monotonic()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        step = state.global_step
        rows = step * self._batch * args.gradient_accumulation_steps
        self._show(step / state.max_steps, rows, "training")
        if step == state.max_steps:
            control.should_save = True
        elif args.world_size > 1:
            # Every process has to save in the same step, and their clocks differ.
            control.should_save = step % 500 == 0
        elif time.monotonic() - self._last >= self._every:
            control.should_save = True
            self._last = time.monotonic()

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        processes.wait()  # each has written the state of its own random numbers
        if args.should_save:
            (Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / WHOLE).touch()


def _arguments(parameters: LoopParameters, batches: int, checkpoints: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=-(-batches // parameters.accumulation),
        per_device_train_batch_size=parameters.batch,
        gradient_accumulation_steps=parameters.accumulation,
        learning_rate=parameters.rate,
        lr_scheduler_type="linear",
        warmup_steps=parameters.warm_up,
        max_grad_norm=1.0,
        accelerator_config={"split_batches": True},  # a batch is dealt out, whoever is there
        **usual(parameters.seed, parameters.precision),
    )


def usual(seed: int, precision: Precision) -> dict[str, Any]:
    """The Trainer's arguments that every loop has: where it runs, and that it says nothing."""
    on_gpu = torch.cuda.is_available()
    return {
        "bf16": in_bf16(precision),
        "use_cpu": not on_gpu,
        "seed": seed,
        "dataloader_pin_memory": on_gpu,
        "save_strategy": "no",  # the clock says when
        "save_total_limit": 2,
        "eval_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
    }


def in_bf16(precision: Precision) -> bool:
    """What a precision comes to here."""
    return precision == "bf16" or (precision == "auto" and multiplies_bf16())


def multiplies_bf16() -> bool:
    """Whether the device multiplies matrices of bf16: a GPU of the last years, a CPU with AMX."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))


def last(checkpoints: Path) -> str | None:
    """The last checkpoint that is whole; others are removed."""
    found = []
    for path in checkpoints.glob("checkpoint-*"):
        if (path / WHOLE).is_file():
            found.append((int(path.name.removeprefix("checkpoint-")), path))
        elif processes.leads():
            shutil.rmtree(path, ignore_errors=True)
    return str(max(found)[1]) if found else None

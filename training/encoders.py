"""Encoders: what is pretrained, by name or by path, as something to train on.

An encoder is a directory in Hugging Face's form (or its name on the hub): config.json,
model.safetensors and a tokeniser. No code of it is run and no pickle of it is read. A checkpoint of
a teacher is one, too: a student can start from some of its layers.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging
from transformers.utils.hub import cached_file

from classifier.artifact import file_hash, flush
from classifier.encoder import Attention
from compile.checkpoint import DESCRIPTION, Checkpoint, CheckpointError
from training.scratch import Shape
from training.stage import write_json
from training.vocabulary import train_tokeniser

Which = Literal["first", "last", "spread"]
"""Which layers of a deeper encoder a shallower one keeps."""

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENISER = "tokenizer.json"

# What the special pieces are called, by their role: SentencePiece's kind, BERT's.
SPECIALS = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "cls_token": ("<s>", "[CLS]"),
    "sep_token": ("</s>", "[SEP]"),
    "mask_token": ("<mask>", "[MASK]"),
}


class EncoderError(Exception):
    """There is no such encoder, or it cannot be trained on. The message is one line."""


@dataclass(frozen=True)
class Encoder:
    """A model that gives a vector a token, and the tokeniser that goes with it."""

    model: PreTrainedModel  # no pooler, no head, float32, in evaluation mode
    tokenizer: Tokenizer

    @property
    def layers(self) -> nn.ModuleList:
        """The layers, the one next to the embeddings first."""
        return _layers(self.model)

    @property
    def pad_id(self) -> int:
        """The id of the piece that fills rows up; the configuration says the same."""
        return piece_id(self.tokenizer, "pad_token")


def load(name_or_path: str | Path, attention: Attention = "sdpa") -> Encoder:
    """The encoder of that name on the hub, or in that directory; of a checkpoint the one under its
    head. Raises EncoderError.
    """
    name = str(name_or_path)
    config = load_config(name)
    tokenizer = load_tokenizer(name)
    path = _directory(name)
    if path is not None and (path / DESCRIPTION).is_file():
        model = _of_checkpoint(path, attention)
    else:
        model = load_model(AutoModel, name, attention)
    if getattr(model, "pooler", None) is not None:
        model.register_module("pooler", None)  # the mean over tokens takes its place
    _agree(name, model, tokenizer)
    if len(_layers(model)) != config.num_hidden_layers:
        raise EncoderError(f"{name}: its layers are not where an encoder has them")
    model.train(False)
    return Encoder(model, tokenizer)


def _of_checkpoint(path: Path, attention: Attention) -> PreTrainedModel:
    try:
        return Checkpoint.load(path).encoder(attention).encoder
    except CheckpointError as error:
        raise EncoderError(str(error)) from error


def load_config(name: str) -> PreTrainedConfig:
    """The configuration of an encoder. Raises EncoderError."""
    path = _directory(name)
    if path is not None and not (path / CONFIG).is_file():
        raise EncoderError(f"{path}: has no {CONFIG}, so it is no encoder")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        raise EncoderError(f"{name}: no encoder that can be had: {_reason(error)}") from error
    if getattr(config, "is_encoder_decoder", False):
        raise EncoderError(f"{name}: a {config.model_type} has a decoder, and is no encoder")
    return config


def load_model(kind: Any, name: str, attention: Attention = "sdpa") -> PreTrainedModel:
    """The weights under a class such as AutoModel, all of them. Raises EncoderError.

    Weights that the files lack are refused, since they would be random and nothing would say so:
    but for the pooler, which is not used, and for a head.
    """
    path = _directory(name)
    if path is not None and not any((path / file).is_file() for file in (WEIGHTS, INDEX)):
        raise EncoderError(
            f"{path}: has no {WEIGHTS}; a pickle is not read,"
            " so save it anew with save_pretrained of a recent transformers"
        )
    try:
        with quiet():
            model, info = kind.from_pretrained(
                name,
                attn_implementation=attention,
                dtype=torch.float32,
                use_safetensors=True,  # a pickle is never read
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise EncoderError(f"{name}: its weights cannot be read: {_reason(error)}") from error
    encoder = getattr(model, model.base_model_prefix, model)
    prefix = "" if encoder is model else f"{model.base_model_prefix}."
    lacking = sorted(
        key
        for key in info["missing_keys"]
        if key.startswith(prefix) and not key.removeprefix(prefix).startswith("pooler.")
    )
    if lacking:
        raise EncoderError(f"{name}: its weights lack {len(lacking)}, {lacking[0]} among them")
    assert isinstance(model, PreTrainedModel)
    return model


def load_tokenizer(name: str) -> Tokenizer:
    """The tokeniser of an encoder, as it is served. Raises EncoderError.

    Its tokenizer.json, or else what transformers makes of an older form: of vocab.txt by itself, of
    a SentencePiece model with the package sentencepiece.
    """
    try:
        file = cached_file(name, TOKENISER, _raise_exceptions_for_missing_entries=False)
        if file is not None:
            return Tokenizer.from_file(str(file))
        made = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    # The package of tokenisers raises nothing more special than Exception.
    except Exception as error:
        raise EncoderError(f"{name}: no tokeniser that can be read: {_reason(error)}") from error
    assert isinstance(made, PreTrainedTokenizerBase)
    if not made.is_fast:
        raise EncoderError(f"{name}: has no fast tokeniser, and no other is served")
    tokenizer = made.backend_tokenizer
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def sha256(name_or_path: str | Path) -> str:
    """A hash of an encoder's files, by which a stage knows it again. Raises EncoderError."""
    name = str(name_or_path)
    load_config(name)
    digest = hashlib.sha256()
    found = 0
    for file in (CONFIG, WEIGHTS, INDEX, TOKENISER):
        try:
            path = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        except OSError as error:
            raise EncoderError(f"{name}: {file} cannot be had: {_reason(error)}") from error
        if path is not None:
            digest.update(f"{file} {file_hash(Path(path))}\n".encode())
            found += file in (WEIGHTS, INDEX)
    if not found:
        raise EncoderError(f"{name}: has no {WEIGHTS}")
    return digest.hexdigest()


def kept_layers(layers: int, keep: int, which: Which = "spread") -> list[int]:
    """Which `keep` of so many layers stay, counted from 0, in order.

    "spread" takes them at even distances with the first and the last among them (0, 2, 4, 7, 9, 11
    of 12), as DistilBERT took every other one (Sanh et al. 2019): the first knows spelling, the
    last what pretraining was for. One alone is the first, which is used to raw embeddings. Raises
    EncoderError when there are not so many.
    """
    if not 1 <= keep <= layers:
        raise EncoderError(f"{keep} layers cannot be kept of {layers}")
    if which == "first":
        return list(range(keep))
    if which == "last":
        return list(range(layers - keep, layers))
    gaps = max(1, keep - 1)
    return [(2 * i * (layers - 1) + gaps) // (2 * gaps) for i in range(keep)]


def keep_layers(encoder: Encoder, keep: int, which: Which = "spread") -> list[int]:
    """Leaves the encoder's model with `keep` of its layers; gives which. Raises EncoderError."""
    model, layers = encoder.model, encoder.layers
    kept = kept_layers(len(layers), keep, which)
    chosen = [layers[i] for i in kept]
    del layers[:]
    layers.extend(chosen)
    model.config.num_hidden_layers = keep
    types = getattr(model.config, "layer_types", None)
    if types is not None:  # encoders with layers of several kinds of attention
        model.config.layer_types = [types[i] for i in kept]
    return kept


def make(texts: Sequence[str], shape: Shape, seed: int = 0) -> Encoder:
    """An encoder that knows nothing, for where none is pretrained: a BERT with random weights.

    Its tokeniser is learnt from the texts. Equal arguments give an equal encoder.
    """
    tokenizer = train_tokeniser(texts, shape.pieces)
    tokenizer.add_special_tokens([SPECIALS["mask_token"][1]])
    config = shape.config(tokenizer.get_vocab_size(), piece_id(tokenizer, "pad_token"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(config, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    model.register_module("pooler", None)
    model.train(False)
    return Encoder(model, tokenizer)


def save(path: Path, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    """Writes an encoder, or one under a head, to `path`, which it replaces: whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=path.parent))
    try:
        with quiet():
            model.save_pretrained(staging)
        tokenizer.save(str(staging / TOKENISER))
        # What transformers' own AutoTokenizer wants to know besides.
        known: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        for role, names in SPECIALS.items():
            if present := [n for n in names if tokenizer.token_to_id(n) is not None]:
                known[role] = present[0]
        write_json(staging / "tokenizer_config.json", known)
        for file in staging.iterdir():
            flush(file)
        staging.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' own bars and tables off the terminal: what matters raises here."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def piece_id(tokenizer: Tokenizer, role: str) -> int:
    """The id of the special piece of a role ("pad_token", ...). Raises EncoderError."""
    for name in SPECIALS[role]:
        found = tokenizer.token_to_id(name)
        if found is not None:
            return found
    raise EncoderError(f"the tokeniser has no {' and no '.join(SPECIALS[role])}")


def _agree(name: str, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    """Raises EncoderError where model and tokeniser do not belong together."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise EncoderError(f"{name}: a {model.config.model_type} reads no pieces of text")
    pieces = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    if pieces > table.num_embeddings:
        raise EncoderError(
            f"{name}: the tokeniser has {pieces:,} pieces, the model only {table.num_embeddings:,}"
        )
    pad_id = piece_id(tokenizer, "pad_token")
    if model.config.pad_token_id == pad_id:
        return
    if counts_from_padding(model):
        raise EncoderError(
            f"{name}: padding is {pad_id} for the tokeniser, {model.config.pad_token_id} for the"
            " model, which counts positions from it on"
        )
    # Multilingual MiniLM and E5-small are BERTs with XLM-R's vocabulary and BERT's padding, 0:
    # there their tokeniser has <s>, whose row would then never get a gradient.
    model.config.pad_token_id = pad_id
    table.padding_idx = pad_id


def counts_from_padding(model: PreTrainedModel) -> bool:
    """Whether the id of padding has a part in positions, as in RoBERTa's kind."""
    positions = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    return isinstance(positions, nn.Embedding) and positions.padding_idx is not None


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    wanted = model.config.num_hidden_layers
    for _, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return module
    raise EncoderError(f"a {model.config.model_type} has no list of {wanted} layers")


def _directory(name: str) -> Path | None:
    """The directory that is meant; None where a name on the hub is. Raises EncoderError."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.is_absolute() or name.startswith(".") or len(path.parts) > 2:
        raise EncoderError(f"{name}: there is no such directory")
    return None


def _reason(error: Exception) -> str:
    """The first sentence of an error that may be a page long."""
    line = " ".join(str(error).split())
    return line.split(". ", 1)[0][:300] or type(error).__name__

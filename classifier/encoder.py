"""The neural classifier: a Hugging Face encoder, the mean over its real tokens, a linear head.

Needs torch and transformers: the PyTorch engine, training and compiling import it, nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

Attention = Literal["sdpa", "eager"]


class OfferEncoder(nn.Module):
    """Token ids in, one logit a category out.

    `attention` says how attention is computed, not what: "sdpa" is fastest in PyTorch, "eager" is
    what an ONNX exporter writes as the graph that ONNX Runtime knows how to fuse.
    """

    encoder: PreTrainedModel
    head: nn.Linear

    def __init__(self, encoder: PreTrainedModel, labels: int) -> None:
        super().__init__()
        self.encoder = encoder
        if getattr(encoder, "pooler", None) is not None:
            encoder.register_module("pooler", None)  # the mean takes its place
        self.head = nn.Linear(encoder.config.hidden_size, labels)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def new(
        cls, config: PreTrainedConfig, labels: int, attention: Attention = "sdpa"
    ) -> OfferEncoder:
        """Random weights in the shape that `config` gives."""
        encoder = AutoModel.from_config(config, attn_implementation=attention)  # type: ignore[no-untyped-call]
        return cls(encoder, labels)

    @classmethod
    def pretrained(
        cls, name_or_path: str | Path, labels: int, attention: Attention = "sdpa"
    ) -> OfferEncoder:
        """A pretrained encoder of the hub or a directory, under a new head."""
        encoder = AutoModel.from_pretrained(
            name_or_path,
            attn_implementation=attention,
            dtype=torch.float32,
            use_safetensors=True,  # a pickle is never read
        )
        return cls(encoder, labels)

    @classmethod
    def load(cls, directory: Path, labels: int, attention: Attention = "sdpa") -> OfferEncoder:
        """What `directory` holds as config.json and model.safetensors; in evaluation mode.

        Raises ValueError, in one line, when the weights are not those of this shape.
        """
        config = AutoConfig.from_pretrained(directory)
        model = cls.new(config, labels, attention)
        file = directory / "model.safetensors"
        try:
            model.load_state_dict(load_file(file), strict=True)
        except (RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{file}: not the weights of this model: {reason[:200]}") from error
        return model.eval()

    def embed(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The texts' embeddings (B, H) float32 of ids and mask (B, T) int64; 1 is a real token."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0].float()
        return mean_over_real(hidden, attention_mask)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits (B, labels) float32 of ids and mask (B, T) int64."""
        logits: Tensor = self.head(self.embed(input_ids, attention_mask))
        return logits.float()


def mean_over_real(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean (B, H) of hidden (B, T, H) over the tokens whose mask (B, T) is 1.

    Padding has no part in it, so a text's embedding does not depend on the batch's longest text.
    A row without a real token gives zeros, not NaN.
    """
    mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1.0)


def longest_input(model: OfferEncoder) -> int | None:
    """How many tokens, specials included, the encoder has positions for; None where any number do.

    RoBERTa's kind counts positions from the padding id on, so its configuration says 514 where 512
    tokens fit.
    """
    positions = getattr(getattr(model.encoder, "embeddings", None), "position_embeddings", None)
    if not isinstance(positions, nn.Embedding):
        return None
    skipped = 0 if positions.padding_idx is None else positions.padding_idx + 1
    return positions.num_embeddings - skipped

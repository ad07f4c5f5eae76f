"""Parameters: what pipeline.yaml says about each stage, checked before anything runs.

A section a stage. An unknown key, a wrong type or a value out of range is refused with one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from classifier.text import DEFAULT_RECIPE, FieldBudget, TextRecipe
from compile import strict_yaml

Share = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Rate = Annotated[float, Field(gt=0)]
Bound = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]
Precision = Literal["auto", "fp32", "bf16"]


class ParameterError(Exception):
    """pipeline.yaml, or an override of it, is wrong. The message is one line."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LakeParameters(_Section):
    """The sample lake: made-up offers, labelled and unlabelled, as a site keeps them."""

    offers: Positive = 300_000
    labelled_share: Share = 0.7
    seed: Seed = 0


_SETS = ("train", "validation", "test", "transfer")


class DatasetParameters(_Section):
    """What is drawn from the lake."""

    seed: Seed = 0
    validation_share: Share = 0.1  # of the clusters
    test_share: Share = 0.1  # of the clusters
    training_offers: Positive = 60_000  # about so many, near-uniform over categories
    floor: Positive = 50  # at least so many a category, where the lake has them
    cap: Positive = 4_000  # at most so many a category
    validation_offers: Positive = 6_000
    test_offers: Positive = 10_000
    test_floor: Positive = 5  # at least so many test offers a category, where the lake has them
    experiment_offers: dict[str, Positive] = {"s": 5_000, "m": 20_000, "l": 60_000}
    transfer_offers: Positive = 60_000  # unlabelled
    plots: bool = True  # before and after, as a picture
    memory: Annotated[str, Field(pattern=r"^\d+(\.\d+)?[KMGT]i?B$")] = "3GB"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None  # None: the CPU quota

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share leave nothing to train on")
        if self.floor > self.cap:
            raise ValueError("floor is above cap")
        for name in self.experiment_offers:
            if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", name) or name in _SETS:
                raise ValueError(f"{name!r} cannot be an experiment's name")
        return self


class BaselineParameters(_Section):
    """The linear SVM: its text, its n-grams and how it is tuned."""

    seed: Seed = 0
    fields: Annotated[dict[str, Positive], Field(min_length=1)] = {
        field.name: field.characters for field in DEFAULT_RECIPE.fields
    }  # characters of each, in this order
    words: tuple[Positive, Positive] | None = (1, 2)  # n-grams of words, from and to
    letters: tuple[Positive, Positive] | None = (3, 5)  # n-grams of letters within a word
    min_offers: Positive = 2  # an n-gram of fewer training offers is none
    most_letters: Positive = 300_000  # at most so many n-grams of letters, the most frequent
    costs: Annotated[tuple[float, ...], Field(min_length=1)] = (0.1, 0.3, 1.0)  # C, tuned
    tuning_offers: Positive = 30_000  # C is tuned on so many
    refit: bool = True  # the final fit is on training and validation offers
    precision: Share = 0.9  # thresholds are set so that of the certain answers so many are right

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.words is None and self.letters is None:
            raise ValueError("neither words nor letters make n-grams")
        for span in (self.words, self.letters):
            if span is not None and span[0] > span[1]:
                raise ValueError(f"n-grams of {span[0]} to {span[1]} are none")
        if min(self.costs) <= 0:
            raise ValueError("a cost must be positive")
        self.recipe()  # raises ValueError on a field that no offer has
        return self

    def recipe(self) -> TextRecipe:
        """The text recipe that these fields make."""
        return TextRecipe(fields=tuple(FieldBudget(*item) for item in self.fields.items()))


class LoopParameters(_Section):
    """How an encoder is trained on."""

    seed: Seed = 0
    epochs: Positive = 4
    batch: Positive = 64  # rows of a step, over all processes
    accumulation: Positive = 1  # so many batches make one step of the optimiser
    rate: Rate = 5e-5  # highest learning rate of the encoder
    head_rate: Rate = 1e-3  # of what is new: the head, a projection
    warm_up: Share = 0.1  # share of the steps over which the rates rise; then they fall to 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.05
    balance: Literal["none", "sampling", "logits"] = "none"  # what is done for rare categories
    # Share of a text's pieces that each pass leaves out, at random: against learning by heart.
    piece_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    # Of the encoder's modules, in training; None: as it was pretrained. 0 is fastest on a CPU.
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    precision: Precision = "auto"  # auto: bf16 where the device multiplies in it
    checkpoint_minutes: Annotated[float, Field(ge=0)] = 10.0  # between checkpoints


class _Texts(_Section):
    """What of an offer an encoder reads."""

    prefix: str = ""  # what the encoder wants before every text
    fields: Annotated[dict[str, Positive], Field(min_length=1)] = {
        field.name: field.characters for field in DEFAULT_RECIPE.fields
    }  # characters of each, in this order
    max_tokens: Annotated[int, Field(ge=3)] = 64  # specials included

    @model_validator(mode="after")
    def _known_fields(self) -> Self:
        self.recipe()  # raises ValueError on a field that no offer has
        return self

    def recipe(self) -> TextRecipe:
        """The text recipe that these fields make."""
        fields = tuple(FieldBudget(*item) for item in self.fields.items())
        return TextRecipe(prefix=self.prefix, fields=fields)


class OwnEncoderParameters(_Texts):
    """An encoder that is made here, where none that is pretrained is to be had: a BERT."""

    seed: Seed = 0
    layers: Positive = 4
    width: Positive = 256
    heads: Positive = 4
    inner: Positive = 512  # width within a layer's second half
    pieces: Annotated[int, Field(ge=100)] = 32_000  # at most so many are learnt
    passes: Annotated[int, Field(ge=0)] = 3  # over the offers, for its table of pieces alone
    layer_passes: Annotated[int, Field(ge=0)] = 0  # and for all of it, at ten times the price
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} cannot be divided by {self.heads} heads")
        return self


class EncoderParameters(LoopParameters, _Texts):
    """A classifier that is made of a pretrained encoder."""

    encoder: str  # a name on the Hugging Face hub, or a directory
    # Whether pieces go that no text uses: most of the weights of a multilingual encoder. Not the
    # teacher's: it is not served, and is yet to read transfer sets that nobody has drawn.
    prune: bool = False
    right_share: Share = 0.9  # thresholds are set so that of the certain answers so many are right
    # How likely a label is before a text is read: as training has it, or as validation.
    prior: Literal["training", "validation"] = "training"

    @model_validator(mode="after")
    def _one_prior(self) -> Self:
        if self.prior == "validation" and self.balance != "none":
            raise ValueError(f"prior: validation moves what balance: {self.balance} has moved")
        return self


class TeacherParameters(EncoderParameters):
    """The teacher: a larger encoder that reads more of an offer."""

    encoder: str = "intfloat/multilingual-e5-base"
    prefix: str = "query: "
    rate: Rate = 2e-5
    max_tokens: Annotated[int, Field(ge=3)] = 128


class StudentParameters(EncoderParameters):
    """The student: the encoder that serves, taught by labels and by a teacher."""

    encoder: str = "microsoft/Multilingual-MiniLM-L12-H384"
    layers: Positive | None = None  # so many of a deeper encoder are kept; None: all of them
    prune: bool = True
    loss_weight: Annotated[float, Field(ge=0)] = 1.0  # of the distance to the teacher's embedding
    # Further passes, once all is calibrated, over training and validation offers; 0: none.
    refit_epochs: Annotated[int, Field(ge=0)] = 0
    refit_rate: Annotated[float, Field(gt=0, le=1)] = 0.3  # share of both learning rates in them

    def refit(self) -> LoopParameters | None:
        """How the student is fitted once more, on validation too; None where it is not."""
        if not self.refit_epochs:
            return None
        changed = {
            "epochs": self.refit_epochs,
            "rate": self.rate * self.refit_rate,
            "head_rate": self.head_rate * self.refit_rate,
        }
        return self.model_copy(update=changed)


class RefitParameters(_Section):
    """A new head on a student's frozen encoder."""

    decays: Annotated[tuple[float, ...], Field(min_length=1)] = (1e-2, 1e-3, 1e-4)  # tuned
    iterations: Positive = 100  # of L-BFGS for each of them, at most
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] | None = None  # None: the student's own
    balance: Literal["none", "sampling", "logits"] | None = None  # likewise
    right_share: Share = 0.9  # thresholds are set so that of the certain answers so many are right

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if min(self.decays) < 0:
            raise ValueError("a decay must not be negative")
        return self


class WideParameters(_Section):
    """An SVM beside an encoder: how the sum of both is calibrated."""

    right_share: Share = 0.9  # thresholds are set so that of the certain answers so many are right


class AdaptParameters(_Texts):
    """How an encoder is made used to offers before it sees a label."""

    seed: Seed = 0
    encoder: str = "microsoft/Multilingual-MiniLM-L12-H384"  # a name on the hub, or a directory
    max_tokens: Annotated[int, Field(ge=8)] = 64  # specials included
    epochs: Positive = 1  # passes over the offers
    batch: Annotated[int, Field(ge=2)] = 64  # texts, general ones included
    accumulation: Positive = 1  # so many batches make one step of the optimiser
    replay: Annotated[float, Field(ge=0, lt=1)] = 0.1  # share of general text in a batch
    # What the encoder was pretrained with: RoBERTa base's (Liu et al. 2019, table 9).
    original_rate: Rate = 6e-4
    rate_share: Rate = 0.1  # of it is the highest rate here
    warm_up: Share = 0.05  # share of the steps over which the rate rises; then a cosine to 0
    head_batches: Positive = 500  # for a masked-language head that does not come along
    head_rate: Rate = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    held_out: Positive = 2_000  # texts of each kind that are measured on, a tenth at most
    precision: Precision = "auto"  # auto: bf16 where the device multiplies in it
    checkpoint_minutes: Annotated[float, Field(ge=0)] = 10.0  # between checkpoints


class EvaluateParameters(_Section):
    """How a model is judged."""

    seed: Seed = 0
    resamples: Positive = 1_000  # of the bootstrap
    confidence: Share = 0.95
    least_offers: Positive = 20  # a slice with fewer is told apart as small
    text_lengths: tuple[Positive, ...] = (20, 40, 80, 160, 320)  # characters, borders of slices
    category_offers: tuple[Positive, ...] = (10, 30, 100, 300, 1_000)  # training offers, likewise
    confusions: Positive = 30  # the worst, with examples


class GateParameters(_Section):
    """What an artefact must be to take the champion's place. Falls and rises are of shares of 1.

    The champion's figure is what a fall is from; without a champion only the absolute bounds count.
    """

    # A fall is refused where a paired test says that noise makes one as large less often than that.
    significance: Share = 0.05
    least_offers: Positive = 1_000  # of the test set; on fewer no test can tell models apart
    least_accuracy: Share = 0.5
    accuracy_fall: Bound = 0.005  # over all offers, and as production sees them
    language_fall: Bound = 0.01
    category_offers: Positive = 50  # test offers that a category must have to be judged
    # Without a test: of 50 offers, answered otherwise in 10 %, noise moves so many in one of 2,500.
    category_fall: Bound = 0.15
    answer_excess: Bound = 0.1  # share of the answers above that of the labels, of any category
    most_ece: Share = 0.05  # expected calibration error
    ece_rise: Bound = 0.02
    most_uncertain: Share = 0.4  # share of the answers
    uncertain_rise: Bound = 0.05
    precision_fall: Bound = 0.02  # of the answers that are certain
    # Offers that a worker does at least, of the clock, whatever else the machine does meanwhile.
    least_offers_per_second: Rate = 20.0
    # Of the champion's offers, between artefacts of the same target and kind; on a CPU for each of
    # the worker's processor seconds, elsewhere for each second.
    throughput_share: Share = 0.75
    most_cost: Rate = 0.25  # of a million offers, in the currency of compile/prices.yaml
    instances: dict[str, str] = {
        "onnx-cpu": "c7g.large",
        "torch-cpu": "c7g.large",
        "linear-cpu": "c7g.large",
        "torch-cuda": "g6.xlarge",
        "neuron-inf1": "inf1.xlarge",
        "neuron-inf2": "inf2.xlarge",
        "neuron-trn1": "trn1.2xlarge",
    }  # whose price a target's offers have, by compile/prices.yaml
    most_memory: Positive = 2_000  # megabytes that a worker takes at its peak
    memory_rise: Rate = 0.5  # share of the champion's, between the same target and kind


class Parameters(_Section):
    """All of pipeline.yaml."""

    lake: LakeParameters = LakeParameters()
    dataset: DatasetParameters = DatasetParameters()
    baseline: BaselineParameters = BaselineParameters()
    encoder: OwnEncoderParameters = OwnEncoderParameters()
    adapt: AdaptParameters = AdaptParameters()
    teacher: TeacherParameters = TeacherParameters()
    student: StudentParameters = StudentParameters()
    refit: RefitParameters = RefitParameters()
    wide: WideParameters = WideParameters()
    evaluate: EvaluateParameters = EvaluateParameters()
    gate: GateParameters = GateParameters()


def load(path: Path, overrides: Sequence[str] = ()) -> Parameters:
    """Reads `path`; each override, "stage.key=value" with the value in YAML, replaces one value.

    Raises ParameterError.
    """
    try:
        raw = strict_yaml.load(path.read_bytes()) or {}
    except OSError as error:
        raise ParameterError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError, UnicodeError) as error:
        raise ParameterError(f"{path}: is no YAML: {_one_line(error)}") from error
    if not isinstance(raw, dict):
        raise ParameterError(f"{path}: must be a mapping of stages")
    return parse(raw, str(path), overrides)


def parse(raw: dict[str, Any], path: str, overrides: Sequence[str] = ()) -> Parameters:
    """As `load`, of what stands in the file `path`. Raises ParameterError."""
    for override in overrides:
        _override(raw, override)
    try:
        return Parameters.model_validate_json(_json(raw))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "pipeline"
        given = next((each for each in overrides if each.startswith(f"{place}=")), None)
        where = f"--set {given}" if given else f"{path}: {place}"
        raise ParameterError(f"{where}: {first['msg']}") from None


def _override(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    stage, dot, name = key.strip().partition(".")
    if not (equals and dot and stage and name):
        raise ParameterError(f"--set {override}: must be stage.key=value")
    try:
        parsed = strict_yaml.load(value)
    except (yaml.YAMLError, RecursionError, UnicodeError) as error:
        raise ParameterError(f"--set {override}: is no YAML: {_one_line(error)}") from error
    section = raw.setdefault(stage, {})
    if not isinstance(section, dict):
        raise ParameterError(f"--set {override}: {stage} is no stage")
    section[name] = parsed


def _json(raw: dict[str, Any]) -> bytes:
    import msgspec

    try:
        return msgspec.json.encode(raw)
    except (TypeError, RecursionError, UnicodeError) as error:
        raise ParameterError(f"pipeline: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

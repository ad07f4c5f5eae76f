"""Which precision a CPU gets: int8 where it is measured to be faster here, and no worse."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.batching import plan
from classifier.engines import Engine
from classifier.precision import LEAST_AGREEMENT, MOST_ACCURACY_LOST
from classifier.tokens import Tokeniser, pad
from compile.offers import Labelled

ROUNDS = 7
"""Odd, for the median, and enough that a moment in which others crowd the caches is none."""

ROUND_SECONDS = 0.5
"""What one engine's part of a round takes of a processor, about: hundreds of calls or the slowest
few, and some seconds for all."""

BATCH_TOKENS = 2_048
"""As the service asks by default."""

LEAST_SPEEDUP = 1.1
"""A tenth is what the rounds' medians differ by on a machine that others use too."""

Answers = Callable[[Sequence[str]], NDArray[np.float32]]
"""Logits (texts, labels) of what is added to an encoder's."""


class Weighed(msgspec.Struct, frozen=True):
    """int8 against fp32: both asked the same texts, in turn, on this CPU."""

    offers_per_second: dict[str, float]  # of the encoder, by precision; of processor time, medians
    speedup: float  # int8 against fp32, the median over the rounds
    texts: int  # that both were asked for agreement, of offers that calibration did not see
    agreement: float  # share of them with the same winner
    largest_difference: float  # of one logit, over these texts
    labelled: int  # texts whose category is known; 0 where no file of them was given
    accuracy: dict[str, float]  # by precision; empty without labelled texts

    def against(self) -> list[str]:
        """What speaks against int8, with the figures; nothing where it is to be served."""
        return [*self.worse(), *self.slower()]

    def worse(self) -> list[str]:
        """Where it lies beyond the accuracy bounds."""
        said = []
        least, most = LEAST_AGREEMENT["int8"], MOST_ACCURACY_LOST["int8"]
        if not self.agreement >= least:
            said.append(
                f"int8 gives fp32's winner for {self.agreement:.2%} of {self.texts:,} texts,"
                f" at least {least:.0%} are wanted"
            )
        if self.accuracy:
            lost = self.accuracy["fp32"] - self.accuracy["int8"]
            if not lost <= most:
                said.append(
                    f"int8 is right in {self.accuracy['int8']:.2%} of {self.labelled:,} labelled"
                    f" texts, fp32 in {self.accuracy['fp32']:.2%}: at most {most:.1%} may be lost"
                )
        return said

    def slower(self) -> list[str]:
        """Where it does not pay."""
        if self.speedup >= LEAST_SPEEDUP:
            return []
        speed = self.offers_per_second
        said = (
            f"int8 does {speed['int8']:,.0f} offers/s on this CPU, fp32 {speed['fp32']:,.0f}: at"
            f" least {LEAST_SPEEDUP} times as many are wanted"
        )
        return [said]


def weigh(
    engines: Mapping[str, Engine],
    tokeniser: Tokeniser,
    pad_multiple: int,
    apart: Sequence[str],
    labelled: Labelled | None,
    beside: Answers | None = None,
) -> Weighed:
    """Ask both engines, "fp32" and "int8". `beside` is a wide part, whose logits are added."""
    asked = Asked(tokeniser, pad_multiple, apart, beside)
    answers = {name: asked.logits(engine) for name, engine in engines.items()}
    same = answers["fp32"].argmax(axis=1) == answers["int8"].argmax(axis=1)
    accuracy = {}
    if labelled is not None:
        held = Asked(tokeniser, pad_multiple, labelled.texts, beside)
        for name, engine in engines.items():
            right = held.logits(engine).argmax(axis=1) == labelled.labels
            accuracy[name] = round(float(right.mean()), 5)
    speeds = offers_per_second(engines, asked)
    ratios = [b / a for a, b in zip(speeds["fp32"], speeds["int8"], strict=True)]
    return Weighed(
        offers_per_second={name: median(rounds) for name, rounds in speeds.items()},
        speedup=round(statistics.median(ratios), 3),
        texts=len(same),
        agreement=float(same.mean()),
        largest_difference=float(np.abs(answers["fp32"] - answers["int8"]).max()),
        labelled=0 if labelled is None else len(labelled.texts),
        accuracy=accuracy,
    )


def offers_per_second(engines: Mapping[str, Engine], asked: Asked) -> dict[str, list[float]]:
    """Offers a processor second of each engine in every round, in which each is asked in turn.

    The calls are as many, of all lengths, as the first engine does in ROUND_SECONDS.
    """
    padded = asked.padded()
    first = next(iter(engines.values()))
    _seconds(first, padded[-1:])  # the first call allocates
    whole = _seconds(first, padded)
    padded = padded[:: max(1, min(len(padded), round(whole / ROUND_SECONDS)))]
    times = max(1, round(ROUND_SECONDS / max(whole, 1e-6)))
    offers = times * sum(len(ids) for ids, _ in padded)
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            speeds[name].append(offers / _seconds(engine, padded * times))
    return speeds


class Asked:
    """Texts as the calls in which the service would ask them."""

    def __init__(
        self,
        tokeniser: Tokeniser,
        multiple: int,
        texts: Sequence[str],
        beside: Answers | None = None,
    ) -> None:
        self.rows, _ = tokeniser.encode(list(texts))
        lengths = [len(row) for row in self.rows]
        self.calls = list(plan(lengths, BATCH_TOKENS, multiple, tokeniser.max_tokens))
        self._pad_id = tokeniser.pad_id
        self._beside = None if beside is None else beside(texts)

    def padded(self) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Ids and lengths of each call."""
        return [
            pad([self.rows[i] for i in call.rows], call.length, self._pad_id) for call in self.calls
        ]

    def logits(self, engine: Engine) -> NDArray[np.float32]:
        """(texts, labels)."""
        answers: dict[int, NDArray[np.float32]] = {}
        for call, (ids, lengths) in zip(self.calls, self.padded(), strict=True):
            answers.update(zip(call.rows, engine.logits(ids, lengths), strict=True))
        own = np.stack([answers[i] for i in range(len(self.rows))])
        return own if self._beside is None else own + self._beside


def _seconds(engine: Engine, calls: Sequence[tuple[NDArray[np.int32], NDArray[np.int32]]]) -> float:
    # Of the processor, which other work on the machine takes nothing from. Engines do not spin.
    start = time.process_time()
    for ids, lengths in calls:
        engine.logits(ids, lengths)
    return max(time.process_time() - start, 1e-9)


def median(rounds: Sequence[float]) -> float:
    """Of offers a second, as a report says it."""
    return round(statistics.median(rounds), 1)

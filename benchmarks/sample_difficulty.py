"""How hard the sample catalogue is: the accuracy of a tuned linear SVM on its test split.

    python -m benchmarks.sample_difficulty [--train 30000] [--test 6000] [--seed 0] [--cost 1]

TF-IDF of words (1-2) and of letters within words (3-5) of the text that the default recipe makes,
then scikit-learn's LinearSVC with C tuned on a part of the training offers, unless it is given.
Takes several minutes, so `make bench` leaves it out: what a seed gives is frozen by a test.
"""

from __future__ import annotations

import collections
import time

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import FeatureUnion
from sklearn.svm import LinearSVC

from benchmarks.bounds import command
from classifier import sample
from classifier.text import DEFAULT_RECIPE

COSTS = (0.3, 1.0, 3.0)
BOUNDS = (0.80, 0.92)
"""Of the accuracy: harder would be noise, easier would tell no two models apart."""


def read(seed: int, count: int, split: sample.Split) -> tuple[list[str], list[str], list[str]]:
    """Texts, categories and languages of labelled offers."""
    texts, labels, languages = [], [], []
    for offer, label in sample.offers(seed, count, split):
        texts.append(DEFAULT_RECIPE.text(offer))
        labels.append(label)
        languages.append(offer.language or "none")
    return texts, labels, languages


def measure(
    train: int = 30_000, test: int = 6_000, seed: int = 0, cost: float | None = None
) -> list[str]:
    """Prints the accuracy by language; demands that all in all it is within BOUNDS."""
    texts, labels, _ = read(seed, train, "train")
    test_texts, test_labels, test_languages = read(seed, test, "test")
    started = time.perf_counter()
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, min_df=3)
    vectoriser = FeatureUnion([("words", words), ("letters", letters)])
    rows = vectoriser.fit_transform(texts).tocsr()
    test_rows = vectoriser.transform(test_texts).tocsr()
    print(f"{rows.shape[0]:,} offers, {rows.shape[1]:,} features", flush=True)

    if cost is None:
        held = train // 6
        best = 0.0
        for candidate in COSTS:
            svm = LinearSVC(C=candidate).fit(rows[held:], labels[held:])
            score = svm.score(rows[:held], labels[:held])
            print(f"C {candidate}: {score:.4f} on {held:,} held-back training offers", flush=True)
            if score > best:
                best, cost = score, candidate
    answers = LinearSVC(C=cost).fit(rows, labels).predict(test_rows)

    hits: dict[str, list[bool]] = collections.defaultdict(list)
    for answer, label, language in zip(answers, test_labels, test_languages, strict=True):
        hits[language].append(answer == label)
        hits["all"].append(answer == label)
    for name, right in sorted(hits.items()):
        print(f"{name:>5}: {sum(right) / len(right):.4f} of {len(right):,}")
    print(f"C {cost}, {time.perf_counter() - started:.0f} s")
    return outside(sum(hits["all"]) / len(hits["all"]))


def outside(accuracy: float) -> list[str]:
    """A line where an accuracy is not within BOUNDS."""
    least, most = BOUNDS
    if least <= accuracy <= most:
        return []
    return [f"a linear SVM's accuracy is {accuracy:.3f}, not {least:.2f} to {most:.2f}"]


if __name__ == "__main__":
    command(measure)

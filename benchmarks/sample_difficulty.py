"""How hard the sample catalogue is: the accuracy of a tuned linear SVM on its test split.

    python benchmarks/sample_difficulty.py

TF-IDF of words (1-2) and of letters within words (3-5) of the text that the default recipe makes,
then scikit-learn's LinearSVC with C tuned on a part of the training offers. Takes several minutes.
"""

from __future__ import annotations

import argparse
import collections
import time

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import FeatureUnion
from sklearn.svm import LinearSVC

from classifier import sample
from classifier.text import DEFAULT_RECIPE

COSTS = (0.3, 1.0, 3.0)


def read(seed: int, count: int, split: sample.Split) -> tuple[list[str], list[str], list[str]]:
    """Texts, categories and languages of labelled offers."""
    texts, labels, languages = [], [], []
    for offer, label in sample.offers(seed, count, split):
        texts.append(DEFAULT_RECIPE.text(offer))
        labels.append(label)
        languages.append(offer.language or "none")
    return texts, labels, languages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=int, default=30_000, help="offers to train on")
    parser.add_argument("--test", type=int, default=6_000, help="offers to test on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", type=float, help="C, in place of tuning it")
    given = parser.parse_args()

    texts, labels, _ = read(given.seed, given.train, "train")
    test_texts, test_labels, test_languages = read(given.seed, given.test, "test")
    started = time.perf_counter()
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, min_df=3)
    vectoriser = FeatureUnion([("words", words), ("letters", letters)])
    rows = vectoriser.fit_transform(texts).tocsr()
    test_rows = vectoriser.transform(test_texts).tocsr()
    print(f"{rows.shape[0]:,} offers, {rows.shape[1]:,} features", flush=True)

    cost = given.cost
    if cost is None:
        held = given.train // 6
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


if __name__ == "__main__":
    main()

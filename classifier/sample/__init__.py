"""The sample catalogue: made-up offers of made-up shops, for the demo, the tests and benchmarks.

Everything follows from a seed, in every process and on every machine. The generator is frozen: what
a seed gives does not change, so that figures can be compared and no model is tuned by changing its
test.
"""

from classifier.sample.listing import Split
from classifier.sample.stream import Event, events, labelled, offers
from classifier.sample.taxonomy import LANGUAGES, Category, categories, taxonomy, version

__all__ = [
    "LANGUAGES",
    "Category",
    "Event",
    "Split",
    "categories",
    "events",
    "labelled",
    "offers",
    "taxonomy",
    "version",
]

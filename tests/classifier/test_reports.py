"""The documented reports are what is made."""

from __future__ import annotations

from typing import get_type_hints

from classifier.link import Classified, Refused
from classifier.reports import ClassifiedReport, RefusedReport


def test_a_result_is_described_as_it_is_made() -> None:
    for described, made in ((ClassifiedReport, Classified), (RefusedReport, Refused)):
        assert tuple(described.model_fields) == made.__struct_fields__
        hints = get_type_hints(made)
        assert {name: each.annotation for name, each in described.model_fields.items()} == {
            name: hints[name] for name in made.__struct_fields__
        }

"""YAML as people write it, read strictly: a key that stands twice is refused, and not half lost."""

from __future__ import annotations

from typing import Any

import yaml


def load(text: str | bytes) -> Any:
    """The plain data in a YAML text. Raises yaml.YAMLError."""
    return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader that is stricter


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} stands there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

"""YAML as people write it: plain data, and no key twice, of which PyYAML would keep the last in silence."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice; a key that a merge (`<<`) brings along may be overridden."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Hashable, Any] = {}
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise yaml.constructor.ConstructorError(
                    f"'{name}' is there twice, first here", seen[name], "and again", key.start_mark
                )
            if isinstance(name, Hashable):
                seen[name] = key.start_mark
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """The value of a YAML document.

    Raises:
        yaml.YAMLError: it is none, or has a key twice, or a date or a number that cannot be.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader
    except ValueError as error:  # 2024-02-30, say
        raise yaml.YAMLError(str(error)) from None
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None

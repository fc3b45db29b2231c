"""Why a spec does not validate, in words."""

from __future__ import annotations

import difflib
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Every problem of a `model`, with its path in the spec and, for an unknown key, the nearest known one."""
    lines = []
    for problem in error.errors():
        where = [str(part) for part in problem["loc"]]
        if problem["type"] == "extra_forbidden":
            known = _known_keys(model, where[:-1])
            near = difflib.get_close_matches(where[-1], known, 1, cutoff=0.5)
            advice = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
            lines.append(f"{'.'.join(where)}: unknown key; {advice}")
        else:
            text = problem["msg"].removeprefix("Value error, ")
            silent = problem["type"] in ("missing", "value_error") or "storage" in where  # may hold a secret
            got = "" if silent else f", got {problem['input']!r}"
            lines.append(f"{'.'.join(where) or 'spec'}: {text}{got}")
    return "; ".join(dict.fromkeys(lines))


def _known_keys(model: Any, path: list[str]) -> list[str]:
    several = False  # of a list or a mapping of sections, the next part says which
    for part in path:
        if several:
            several = False
            continue
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))  # a section, or one or None
        several = any(get_origin(kind) in (tuple, dict) for kind in kinds)
        kinds = (*kinds, *(inner for kind in kinds for inner in get_args(kind)))  # a list of sections, or None
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not sections:
            return []
        model = sections[0]
    return [field.alias or name for name, field in model.model_fields.items()]

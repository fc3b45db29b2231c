"""What all operations share: a frozen model under its name, the types of its parameters, how it is parsed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

Side = Annotated[int, Field(gt=0, le=16384)]
Size = Side | tuple[Side, Side]
Level = Annotated[int, Field(ge=0, le=255)]
Share = Annotated[float, Field(ge=0, le=1)]


class OpBase(BaseModel):
    """A frozen operation; `name` is its key in the spec."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    name: ClassVar[str]

    @model_serializer(mode="wrap")
    def _under_its_name(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As a spec writes it, so that what is dumped can be loaded."""
        return {self.name: serialize(self)}


class Random(OpBase):
    """An operation that a share of the samples gets; `p` is short for `probability`."""

    probability: Share = Field(1.0, validation_alias=AliasChoices("probability", "p"))


def _both_ways(value: Any) -> Any:
    """A number x as (-x, x)."""
    return (-value, value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _around_one(value: Any) -> Any:
    """A number x as (1 - x, 1 + x), not below 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"is {value}, and a spread cannot be negative")
        return (max(0.0, 1.0 - value), 1.0 + value)
    return value


def _one_value(value: Any) -> Any:
    """A number x as (x, x)."""
    return (value, value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    low, high = value
    if low > high:
        raise ValueError(f"{low:g} is above {high:g}")
    return value


class _Ordered:
    """Marks a pair whose first must not be above its second."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(_ordered, handler(source))


_Pair = Annotated[tuple[float, float], _Ordered]
_Spelled = float | tuple[float, float]
Span = Annotated[_Pair, BeforeValidator(_both_ways, json_schema_input_type=_Spelled)]
"""Least and greatest value; a number x is (-x, x)."""
Factor = Annotated[_Pair, BeforeValidator(_around_one, json_schema_input_type=_Spelled)]
"""Least and greatest factor; a number x is (1 - x, 1 + x)."""
Range = Annotated[_Pair, BeforeValidator(_one_value, json_schema_input_type=_Spelled)]
"""Least and greatest value; a number x is always x."""

Model = TypeVar("Model", bound=OpBase)


def parse(ops: Mapping[str, type[OpBase]], value: Any) -> OpBase:
    """`flip`, or `{flip: {probability: 0.5}}`, as an op.

    Raises:
        ValueError: the name is not known, or the parameters do not validate; it says which, and the nearest known name.
    """
    if isinstance(value, OpBase):
        return value
    name: Any = None
    parameters: Any = {}
    if isinstance(value, str):
        name = value
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, parameters),) = value.items()
    if not isinstance(name, str):
        raise ValueError("an op is its name, or a mapping of one name to its parameters")  # noqa: TRY004 - pydantic's
    if name not in ops:
        near = difflib.get_close_matches(name, ops, 1)
        advice = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(ops)}"
        raise ValueError(f"unknown op '{name}'; {advice}")
    try:
        return ops[name].model_validate({} if parameters is None else parameters)
    except ValidationError as error:
        raise ValueError(_explain(ops[name], error)) from None


def sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a size that may be one side."""
    return (size, size) if isinstance(size, int) else size


def _explain(op: type[OpBase], error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        where = ".".join([op.name, *(str(part) for part in problem["loc"])])
        if problem["type"] == "extra_forbidden":
            known = list(op.model_fields)
            near = difflib.get_close_matches(str(problem["loc"][-1]), known, 1, cutoff=0.5)
            advice = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known) or 'none'}"
            lines.append(f"{where}: unknown parameter; {advice}")
        else:
            text = problem["msg"].removeprefix("Value error, ")
            got = "" if problem["type"] in ("missing", "value_error") else f", got {problem['input']!r}"
            lines.append(f"{where}: {text}{got}")
    return "; ".join(dict.fromkeys(lines))

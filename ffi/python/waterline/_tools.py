"""Python functions as tools."""

from __future__ import annotations

import inspect
import json
import types
import typing
from typing import TYPE_CHECKING, Any, Callable, Mapping

if TYPE_CHECKING:
    from ._answer import ToolCall

Function = Callable[..., Any]

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object", type(None): "null"}
# Python 3.9 has no `int | str`.
_UNIONS = {typing.Union, getattr(types, "UnionType", typing.Union)}


def _type(hint: Any) -> dict[str, Any]:
    """Returns the schema of a type hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in _UNIONS:
        return {"anyOf": [_type(argument) for argument in arguments]}
    if origin is list and arguments:
        return {"type": "array", "items": _type(arguments[0])}
    name = _NAMES.get(origin or hint)
    if name is None:
        raise TypeError(f"found the type {hint}, expected str, int, float, bool, list, dict, None, Literal or a union of them")
    return {"type": name}


def schema(function: Function) -> dict[str, Any]:
    """Returns the schema of a function: its name, its docstring, and the types of its parameters."""
    name = function.__name__
    hints = typing.get_type_hints(function)
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a call names its arguments, so {parameter} cannot be passed")
        try:
            properties[parameter.name] = _type(hints.get(parameter.name, Any))
        except TypeError as error:
            raise TypeError(f"{name}: {parameter.name}: {error}") from None
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    described = {"name": name, "description": inspect.getdoc(function) or "", "parameters": parameters}
    return {"type": "function", "function": described}


def result(functions: Mapping[str, Function], call: ToolCall) -> str:
    """Calls a function and returns its result as text. A call that cannot be made gives the model an error; exceptions of the function
    are the caller's."""
    function = functions.get(call.name)
    if function is None:
        return f"error: there is no function {call.name}"
    if call.arguments is None:
        return "error: the arguments are no JSON object"
    try:
        bound = inspect.signature(function).bind(**call.arguments)
    except TypeError as error:
        return f"error: {error}"
    found = function(*bound.args, **bound.kwargs)
    return found if isinstance(found, str) else json.dumps(found)

"""Built-in tools: a calculator, a clock, recall."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from datetime import datetime, timezone, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, available_timezones

from nanoloop.errors import ToolError
from nanoloop.session.session import Session
from nanoloop.tools.function import FunctionTool, tool
from nanoloop.tools.toolbox import here
from nanoloop.words import nearest

if TYPE_CHECKING:
    from nanoloop.memory.recall import Recall

Number = int | float

_LONGEST_TEXT = 500
_MOST_BITS = 10_000
"""Integers beyond this limit (about 3,000 digits) are rejected before they are computed."""
_MOST_FACTORIAL = 1_000
_MOST_PLACES = 300

_READABLE = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})  # noqa: RUF001 - people write them
_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}


@tool(effect="reads")
async def calculator(expression: str) -> str:
    """Work out an arithmetic expression exactly.

    Args:
        expression: numbers with + - * / // % ** and parentheses; the functions sqrt, cbrt, abs,
            round, floor, ceil, min, max, exp, log, log2, log10, sin, cos, tan, asin, acos, atan,
            degrees, radians, factorial, gcd, hypot; the constants pi, e, tau
    """
    try:
        return _shown(_bounded(_value(_tree(expression))))
    except ZeroDivisionError:
        raise ToolError("division by zero has no result") from None
    except OverflowError:
        raise ToolError("the result is too large to calculate") from None
    except (TypeError, ValueError) as error:
        raise ToolError(f"that can't be calculated: {error}") from None
    except (RecursionError, MemoryError):
        raise ToolError("the expression is nested too deeply") from None


def _tree(expression: str) -> ast.expr:
    if len(expression) > _LONGEST_TEXT:
        raise ToolError(f"the expression has more than {_LONGEST_TEXT} characters: work in steps")
    try:
        return ast.parse(expression.strip().translate(_READABLE), mode="eval").body
    except SyntaxError as error:
        raise ToolError(
            f"that is not an arithmetic expression: {error.msg} at character {error.offset}"
        ) from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool() | complex()):
            pass
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            return _bounded(_SIGNS[type(op)](_value(operand)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, args)))
    raise ToolError(f"{ast.unparse(node)!r} is not supported here{_hint(node)}")


def _hint(node: ast.expr) -> str:
    match node:
        case ast.Tuple():
            return ": write 1000, not 1,000"
        case ast.BinOp(op=ast.BitXor()):
            return ": write ** for powers"
        case ast.Call() | ast.Name():
            return f": use {', '.join([*_FUNCTIONS, *_CONSTANTS])}"
    return ""


def _power(base: Number, exponent: Number) -> Any:
    if isinstance(base, int) and isinstance(exponent, int):
        bits = base.bit_length() * abs(exponent) if base not in {-1, 0, 1} else 0
        if bits > _MOST_BITS:
            raise OverflowError
    return base**exponent


def _factorial(number: Number) -> int:
    if number > _MOST_FACTORIAL:
        raise OverflowError
    return math.factorial(int(number) if number == int(number) else number)  # type: ignore[arg-type]


def _rounded(number: Number, places: Number = 0) -> Number:
    if abs(places) > _MOST_PLACES:
        raise ValueError(f"too many places: at most {_MOST_PLACES} are allowed")
    return round(number, int(places)) if places else round(number)


def _bounded(value: Any) -> Number:
    """Return the number if it is real, finite and not too large."""
    if isinstance(value, complex) or (isinstance(value, float) and math.isnan(value)):
        raise ValueError("the result is not a real number")
    too_long = isinstance(value, int) and value.bit_length() > _MOST_BITS
    if too_long or (isinstance(value, float) and math.isinf(value)):
        raise OverflowError
    return value  # type: ignore[no-any-return]


def _shown(value: Number) -> str:
    """Return a float with only its reliable digits, so that 0.1 + 0.2 is 0.3."""
    return str(value) if isinstance(value, int) else f"{value:.15g}"


_SIGNS: dict[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": math.sqrt,
    "cbrt": math.cbrt,
    "abs": abs,
    "round": _rounded,
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "degrees": math.degrees,
    "radians": math.radians,
    "factorial": _factorial,
    "gcd": math.gcd,
    "hypot": math.hypot,
}


@tool(effect="reads")
def clock(zone: str = "UTC") -> str:
    """Tell the current date, weekday and time of day.

    Args:
        zone: an IANA time zone such as "Europe/Berlin" or "Asia/Shanghai"
    """
    now = datetime.now(_zone(zone))
    return f"{now.isoformat(timespec='seconds')} ({now:%A}, {zone})"


def _zone(name: str) -> tzinfo:
    if name.upper() == "UTC":
        return timezone.utc  # works on systems without zone files too
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ToolError(_unknown(name)) from None


def _unknown(name: str) -> str:
    known = {zone.casefold(): zone for zone in sorted(available_timezones())}
    near = nearest(name.casefold().replace(" ", "_"), known)
    hint = f"did you mean {known[near]!r}?" if near else 'use a name such as "Europe/Berlin"'
    return f"there is no time zone {name!r}: {hint}"


NAME = "recall"
MOST = 20
"""The maximum number of hits that one call returns."""


def make_recall_tool(
    recall: Recall, session: Callable[[], Session] = here.get
) -> FunctionTool[Any, Any]:
    """Return a tool that searches the session in which it is called."""

    async def look_up(words: str, limit: int = 5) -> str:
        """Search this conversation for what was said earlier and is no longer in view.

        Args:
            words: what to look for: names, things, dates, as they may have been said
            limit: how many hits to return
        """
        try:
            there = session()
        except LookupError:
            raise ToolError("there is no conversation here to search") from None
        return await recall.told(there, words, max(1, min(limit, MOST)))

    return FunctionTool(look_up, name=NAME, effect="reads")

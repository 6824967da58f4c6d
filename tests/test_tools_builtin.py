"""The built-in tools: the clock and the calculator."""

from contextlib import suppress
from datetime import datetime, timedelta, timezone

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.errors import ToolError
from nanoloop.tools.ready import calculator, clock


def test_the_clock_tells_the_time_in_utc():
    told = clock()
    moment = datetime.fromisoformat(told.split()[0])
    assert abs(datetime.now(timezone.utc) - moment) < timedelta(minutes=1)
    assert told.endswith(f"({moment:%A}, UTC)")


def test_the_clock_tells_the_time_of_a_zone():
    assert "+08:00 (" in clock("Asia/Shanghai")


@pytest.mark.parametrize(
    ("zone", "sentence"),
    [
        ("europe/berlin", "did you mean 'Europe/Berlin'"),
        ("New York", "did you mean 'America/New_York'"),
        ("../../etc/passwd", "no time zone"),
        ("", "no time zone"),
        ("\0", "no time zone"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest(zone, sentence):
    with pytest.raises(ToolError, match=sentence):
        clock(zone)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * -3", "-9"),
        ("7 // 2 + 7 % 4 - 2 ** 3", "-2"),
        ("1 / 4", "0.25"),
        ("0.1 + 0.2", "0.3"),
        ("sqrt(2) ** 2", "2"),
        ("round(2.345, 1)", "2.3"),
        ("max(1, 2, min(7, 5))", "5"),
        ("2 ** 200", str(2**200)),
        ("2 ** -1", "0.5"),
        ("6 × 7 ÷ 2 − 1", "20"),  # noqa: RUF001 - as people write it
        ("factorial(20)", "2432902008176640000"),
    ],
)
async def test_arithmetic_is_worked_out(expression, result):
    assert await calculator(expression) == result


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("9**9**9", "too large"),
        ("(9**999) ** 999", "too large"),
        ("factorial(10**9)", "too large"),
        ("1e308 * 10", "too large"),
        ("round(5, -10**9)", "at most 300 are allowed"),
        ("1 / 0", "division by zero"),
        ("(-8) ** 0.5", "not a real number"),
        ("sqrt(-1)", "can't be calculated"),
        ("1,000 + 1", "write 1000, not 1,000"),
        ("2 ^ 3", r"write \*\* for powers"),
        ("__import__('os')", "use sqrt"),
        ("(1).real", "is not supported here"),
        ("'a' * 9", "is not supported here"),
        ("True + 1", "is not supported here"),
        ("[x for x in (1, 2)]", "is not supported here"),
        ("1 +", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("(" * 300, "not an arithmetic expression|nested too deeply"),
        ("1" * 501, "more than 500 characters"),
        ("min()", "can't be calculated"),
        ("\0", "not an arithmetic expression|can't be calculated"),
    ],
)
async def test_anything_else_is_refused_with_the_reason(expression, sentence):
    with pytest.raises(ToolError, match=sentence):
        await calculator(expression)


@given(st.text("0123456789.+-*/%() ,episqrtfacol", max_size=40))
def test_any_text_is_a_number_or_a_tool_error(expression):
    with suppress(ToolError):
        float(anyio.run(calculator, expression))

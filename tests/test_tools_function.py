"""`@tool`: what the model is told of a function, and how it is called."""

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from nanoloop.errors import BadArguments
from nanoloop.protocols import Tool
from nanoloop.tools.function import Docstring, tool


class Unit(Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    loud: bool


class Filter(BaseModel):
    title: str = Field(min_length=1)


@tool
def weather(city: str, days: int = 3, unit: Unit = Unit.CELSIUS) -> str:
    """Tell the weather of a city.

    It asks nobody.

    Args:
        city: where,
            in the local language
        days (int): how far ahead
    """
    return f"{city} {days} {unit.value}"


def schema_of(function):
    return tool(function).spec.parameters


def test_a_function_becomes_a_tool_and_stays_a_function():
    assert isinstance(weather, Tool)
    assert weather("Oslo", days=1) == "Oslo 1 celsius"
    assert weather.__name__ == "weather"


def test_the_docstring_describes_the_tool_and_its_arguments():
    assert weather.spec.description == "Tell the weather of a city."
    properties = weather.spec.parameters["properties"]
    assert properties["city"] == {"type": "string", "description": "where, in the local language"}
    assert properties["days"]["description"] == "how far ahead"
    assert properties["days"]["default"] == 3
    assert weather.spec.parameters["required"] == ["city"]


def test_the_schema_keeps_the_order_of_definition_in_every_process():
    code = "import test_tools_function as t, json; print(json.dumps(t.weather.spec.parameters))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            cwd=__file__.rsplit("/", 1)[0],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".."},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
    assert list(json.loads(runs.pop())["properties"]) == ["city", "days", "unit"]


def test_decorating_imports_no_pydantic():
    code = (
        "import sys\nfrom nanoloop import tool\n@tool\ndef f(a: int): ...\n"
        "assert 'pydantic' not in sys.modules\nf.spec\nassert 'pydantic' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": "."})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (datetime, {"type": "string", "format": "date-time"}),
        (Annotated[int, Field(ge=1, description="n")], {"description": "n", "minimum": 1}),
    ],
)
def test_types_become_json_schema(kind, expected):
    def function(value): ...

    function.__annotations__["value"] = kind
    assert expected.items() <= schema_of(function)["properties"]["value"].items()


def test_an_argument_may_be_called_like_a_word_of_the_schema():
    def function(title: str, default: int, properties: Filter): ...

    parameters = schema_of(function)
    assert list(parameters["properties"]) == ["title", "default", "properties"]
    assert parameters["$defs"]["Filter"]["properties"]["title"]["minLength"] == 1


async def test_arguments_arrive_as_the_types_the_function_names():
    @tool
    async def function(p: Point, unit: Unit, when: datetime, o: Options, f: Filter):
        return p, unit, when, o, f

    got = await function.call(
        {
            "p": {"x": "1"},
            "unit": "kelvin",
            "when": "2024-05-01T00:00:00Z",
            "o": {"loud": True},
            "f": {"title": "t"},
        }
    )
    when = datetime(2024, 5, 1, tzinfo=timezone.utc)
    assert got == (Point(x=1), Unit.KELVIN, when, {"loud": True}, Filter(title="t"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "argument 'city': it is required"),
        ({"city": 3}, "argument 'city': input should be a valid string"),
        ({"city": "Oslo", "dayz": 1}, "there is no argument 'dayz': did you mean 'days'?"),
        ({"city": "Oslo", "unit": "miles"}, "argument 'unit': input should be 'celsius' or"),
    ],
)
async def test_wrong_arguments_are_refused_with_a_sentence(arguments, sentence):
    with pytest.raises(BadArguments) as refused:
        await weather.call(arguments)
    assert sentence in str(refused.value)
    assert "http" not in str(refused.value)


async def test_a_sync_function_runs_in_a_thread_and_an_async_one_does_not():
    @tool
    def here():
        return threading.current_thread()

    @tool
    async def there():
        return threading.current_thread()

    assert await here.call({}) is not threading.main_thread()
    assert await there.call({}) is threading.main_thread()


async def test_defaults_and_any_further_arguments_reach_the_function():
    @tool
    async def function(first: int, second: int = 2, **others):
        return first, second, others

    assert await function.call({"first": 1, "x": 9}) == (1, 2, {"x": 9})


async def test_a_method_and_an_object_with_call_can_be_tools():
    class Adder:
        async def __call__(self, a: int) -> int:
            return a + 1

        def more(self, a: int) -> int:
            return a + 2

    assert await tool(name="add")(Adder()).call({"a": 1}) == 2
    assert await tool(Adder().more).call({"a": 1}) == 3


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda *parts: parts, "by position"),
        (lambda a, /: a, "by position"),
    ],
)
def test_what_a_model_cannot_call_is_refused_with_the_reason(function, reason):
    with pytest.raises(TypeError, match=reason):
        _ = tool(name="f")(function).spec


def test_an_unknown_type_is_refused_with_the_reason():
    def function(value: "Nowhere"): ...  # noqa: F821 - the point

    with pytest.raises(TypeError, match="at run time"):
        schema_of(function)
    function.__annotations__["value"] = threading.Event
    with pytest.raises(TypeError, match="can't be a tool"):
        schema_of(function)


def test_a_name_that_providers_refuse_is_refused_here():
    with pytest.raises(ValueError, match="is not a valid tool name"):
        tool(lambda: None)
    assert tool(name="fine-1", description="d")(lambda: None).spec.description == "d"


GOOGLE = """Do it.

Arguments:
    a: one
    b (list[int], optional): two: three

      and four

Returns:
    c: nothing
"""
NUMPY = """Do it.

Parameters
----------
a : int
    one
b
    two: three
    and four

Returns
-------
c : int
    nothing
"""
REST = """Do it.

:param a: one
:param list b: two: three
    and four
:returns: nothing
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST])
def test_arguments_are_read_from_each_form_of_docstring(text):
    def function(): ...

    function.__doc__ = text
    read = Docstring.of(function)
    assert read.description == "Do it."
    assert read.arguments == {"a": "one", "b": "two: three and four"}


def test_a_function_without_a_docstring_has_no_description():
    assert tool(name="f")(lambda: None).spec.description == ""

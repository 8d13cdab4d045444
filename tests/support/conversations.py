"""Conversations as clients send them, in OpenAI's form, for every chat template."""

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city."}},
            "required": ["city"],
        },
    },
}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Is it warm in Paris?"}
ANSWER = {"role": "assistant", "content": "It is 21 degrees in Paris."}
THANKS = {"role": "user", "content": "And tomorrow?"}


def call(number, city):
    """A call with an id as OpenAI's server makes them."""
    function = {"name": "get_weather", "arguments": f'{{"city": "{city}"}}'}
    return {"id": f"call_{number:024}", "type": "function", "function": function}


def result(number, text):
    """The result of call *number*."""
    return {"role": "tool", "tool_call_id": f"call_{number:024}", "content": text}


CALLED = {"role": "assistant", "content": None, "tool_calls": [call(1, "Paris")]}
TOLD = result(1, "21 degrees")
#: Messages and tools by the name of what is special about them.
CONVERSATIONS = {
    "user": ([USER], None),
    "system": ([SYSTEM, USER], None),
    "developer": ([SYSTEM | {"role": "developer"}, USER], None),
    "two systems": ([SYSTEM, {"role": "system", "content": "Be kind."}, USER], None),
    "later system": (
        [SYSTEM, USER, ANSWER, {"role": "system", "content": "Be kind."}, THANKS],
        None,
    ),
    "unknown role": ([{"role": "sytem", "content": "Be brief."}, USER], None),
    "two users": ([USER, {"role": "user", "content": "In degrees, please."}], None),
    "several turns": ([SYSTEM, USER, ANSWER, THANKS], None),
    "call": ([SYSTEM, USER, CALLED, TOLD], [TOOL]),
    "call without tools": ([SYSTEM, USER, CALLED, TOLD], None),
    "text and call": ([USER, CALLED | {"content": "I will look."}, TOLD], [TOOL]),
    "two calls": (
        [
            USER,
            CALLED | {"tool_calls": [call(1, "Paris"), call(2, "Rome")]},
            TOLD,
            result(2, "25 degrees"),
        ],
        [TOOL],
    ),
    "reasoning": ([SYSTEM, USER, CALLED | {"reasoning_content": "I need it."}, TOLD], [TOOL]),
    "reasoning and text": (
        [USER, CALLED | {"content": "I will look.", "reasoning": "I need it."}, TOLD],
        [TOOL],
    ),
    "two loops": (
        [
            SYSTEM,
            USER,
            CALLED | {"content": "I will look.", "reasoning_content": "I need it."},
            TOLD,
            ANSWER,
            THANKS,
            CALLED | {"tool_calls": [call(2, "Rome")], "reasoning_content": "Once more."},
            result(2, "25 degrees"),
        ],
        [TOOL],
    ),
    "result without call": ([USER, TOLD], [TOOL]),
}

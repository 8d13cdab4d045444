"""Conversations as clients send them, for every chat template, in the form of each dialect."""

import json

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


#: A function with arguments of every type, and one without any.
FORECAST = {
    "type": "function",
    "function": {
        "name": "get_forecast",
        "description": "The weather of days to come.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city."},
                "days": {"type": "integer", "description": "Number of days."},
                "exact": {"type": "boolean", "description": "No rounding."},
                "nested": {
                    "type": "object",
                    "description": "More.",
                    "properties": {
                        "list": {
                            "type": "array",
                            "items": {"type": "number"},
                            "description": "Numbers.",
                        },
                        "text": {"type": "string", "description": "A text."},
                        "flag": {"type": "boolean", "description": "A flag."},
                    },
                    "required": [],
                    "additionalProperties": False,
                },
                "note": {"type": "string", "description": "A text."},
                "ratio": {"type": "number", "description": "A number."},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
_EVERY_TYPE = {
    "city": 'Zürich "x" 日本 😀',
    "days": 3,
    "exact": True,
    "nested": {"list": [1, 2.5], "text": "é", "flag": False},
    "note": "12",
    "ratio": -0.5,
}
#: Names and arguments of the calls in an answer, by what is special about them.
CALLS = {
    "one call": [("get_forecast", {"city": "Paris"})],
    "no arguments": [("clock", {})],
    "every type": [("get_forecast", _EVERY_TYPE)],
    "marks in a text": [
        ("get_forecast", {"city": "a\nb <c> {d} 'e' & \"f\"", "note": "true"}),
    ],
    "several calls": [
        ("get_forecast", _EVERY_TYPE),
        ("clock", {}),
        ("get_forecast", {"city": "Rome"}),
    ],
}


def message_of_calls(calls):
    """A message of the assistant with *calls*, names and arguments."""
    entries = [
        {
            "id": f"abcdefgh{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": entries}


def in_openai(messages, tools):
    """Body of a chat of OpenAI's."""
    return {"messages": messages, "tools": tools}


def in_ollama(messages, tools):
    """Body of a chat of Ollama's: arguments are objects, results name their function."""
    turns = []
    for message in messages:
        turn = dict(message)
        if "reasoning_content" in turn:
            turn["thinking"] = turn.pop("reasoning_content")
        if turn.get("tool_calls"):
            turn["tool_calls"] = [_with_object(each) for each in turn["tool_calls"]]
        if turn["role"] == "tool":
            turn["tool_name"] = "get_weather"
        turns.append(turn)
    return {"model": "m", "messages": turns, "tools": tools}


def _with_object(call):
    """*call* with its arguments as an object instead of a text."""
    function = call["function"]
    return call | {"function": function | {"arguments": json.loads(function["arguments"])}}


def in_anthropic(messages, tools):
    """Body of Anthropic's: blocks, and results in a message of the user."""
    turns = []
    system = None
    for number, message in enumerate(messages):
        role = message["role"]
        content = message["content"]
        if role == "system" and number == 0:
            system = content
        elif role == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
            if not isinstance(turns[-1]["content"], list) or turns[-1]["role"] != "user":
                turns.append({"role": "user", "content": []})
            turns[-1]["content"].append(block | {"content": content})
        elif role == "assistant":
            turns.append({"role": "assistant", "content": _blocks(message)})
        else:
            turns.append({"role": role, "content": content})
    functions = [each["function"] for each in tools or ()]
    tool_list = [
        {
            "name": each["name"],
            "description": each["description"],
            "input_schema": each["parameters"],
        }
        for each in functions
    ]
    return {"messages": turns, "system": system, "tools": tool_list or None, "max_tokens": 9}


def _blocks(message):
    """Content of an answer in Anthropic's form: reasoning, text and calls as blocks."""
    blocks = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": ""})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for each in message.get("tool_calls", ()):
        arguments = json.loads(each["function"]["arguments"])
        name = each["function"]["name"]
        blocks.append({"type": "tool_use", "id": each["id"], "name": name, "input": arguments})
    return blocks


def in_responses(messages, tools):
    """Body of OpenAI's responses: items."""
    items = []
    for message in messages:
        role = message["role"]
        content = message["content"]
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if role == "tool":
            output = {"type": "function_call_output", "call_id": message["tool_call_id"]}
            items.append(output | {"output": content})
            continue
        if reasoning:
            part = {"type": "reasoning_text", "text": reasoning}
            items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": [part]})
        if content:
            kind = "output_text" if role == "assistant" else "input_text"
            part = {"type": kind, "text": content}
            items.append({"type": "message", "role": role, "content": [part]})
        items += [
            {"type": "function_call", "call_id": each["id"], **each["function"]}
            for each in message.get("tool_calls", ())
        ]
    tool_list = [{"type": "function", **each["function"]} for each in tools or ()]
    return {"input": items, "tools": tool_list or None}


#: By dialect: the function that writes the body of a conversation, and the conversations to leave
#: out, since the dialect refuses a role in them or says more about them than OpenAI's.
DIALECTS = {
    "openai": (in_openai, ()),
    "ollama": (in_ollama, ("result without call",)),  # its results name their function
    "anthropic": (in_anthropic, ("developer", "unknown role")),
    "responses": (in_responses, ("unknown role",)),
}

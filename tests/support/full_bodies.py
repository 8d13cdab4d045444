"""A full body of a request to each address that answers."""

CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
CHAT = [
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": "b", "tool_calls": [CALL]},
    {"role": "tool", "content": "c", "tool_call_id": "call00001"},
]
#: A body for each address, with an object at every place where clients may put one.
BODIES = {
    "/v1/chat/completions": {
        "messages": CHAT,
        "tools": [TOOL],
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    },
    "/v1/completions": {"prompt": "a b", "structured_outputs": {"regex": "a"}},
    "/v1/responses": {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}],
             "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1",
             "output": [{"type": "output_text", "text": "a"}]},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "reasoning": {"effort": "low"},
    },
    "/v1/messages": {
        "max_tokens": 8,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "is_error": True,
                 "content": [{"type": "text", "text": "r"}]}]},
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    "/api/chat": {"model": "m", "messages": CHAT, "tools": [TOOL], "options": {"top_k": 3}},
    "/api/generate": {"model": "m", "prompt": "a", "options": {"top_k": 3}},
    "/completion": {"prompt": "a"},
    "/v1/embeddings": {"input": "a b"},
    "/api/embed": {"model": "m", "input": "a b", "options": {"num_batch": 3}},
    "/v1/inference": {"prompt": "a b"},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]},
    "/embedding": {"content": "a b"},
    "/api/embeddings": {"model": "m", "prompt": "a b", "options": {"num_batch": 3}},
    "/v1/rerank": {"query": "a", "documents": ["b", {"text": "c"}]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
}  # fmt: skip

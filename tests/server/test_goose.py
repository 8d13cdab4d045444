"""Goose's own library of providers, which sends its requests and reads the streams.

The program itself is in no package registry, so the loop around the library is written here.
"""

import asyncio
import json
import shutil

import pytest
from scripted_model import script, scripted_gguf, write_call
from server_process import listening

goose = pytest.importorskip("goose", reason="pip install 'bitnet-xtask[server-test]'")

BEFORE = "The colour is red.\n"
AFTER = "The colour is blue.\n"
DONE = "The colour is blue now."
MOST_TURNS = 8  # of the loop; the script needs four


def tool(name, *arguments):
    """A function of Goose, whose *arguments* are texts."""
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return goose.ProviderTool(
        name=name, description=f"The tool {name}", input_schema_json=json.dumps(schema)
    )


TOOLS = [tool("read", "path"), tool("edit", "path", "old", "new"), tool("copy", "path", "to")]


def run_tool(name, path, **arguments):
    """The text that the tool *name* returns."""
    if name == "read":
        with open(path) as file:
            return file.read()
    if name == "copy":
        shutil.copy(path, arguments["to"])
        return ""
    text = run_tool("read", path)
    with open(path, "w") as file:
        file.write(text.replace(arguments["old"], arguments["new"]))
    return "edited"


def request_of(call):
    """The message's part that repeats *call*."""
    return goose.MessageContent.TOOL_REQUEST(
        id=call.id, name=call.name, arguments_json=call.arguments_json
    )


def result_of(call):
    """The message's part with the result of *call*."""
    text = run_tool(call.name, **json.loads(call.arguments_json))
    content = json.dumps([{"type": "text", "text": text}])
    return goose.MessageContent.TOOL_RESULT(id=call.id, success=True, content_json=content)


async def finish_task(provider, task):
    """Run the loop of an agent: text of the last message, and token usage of every turn."""
    model = goose.ProviderModelConfig(model_name="tiny", max_tokens=2000, temperature=0.0)
    first = [goose.MessageContent.TEXT(text=task)]
    messages = [goose.ProviderMessage(role=goose.MessageRole.USER, content=first)]
    uses = []
    for _ in range(MOST_TURNS):
        stream = await provider.stream(model, "You are goose.", messages, TOOLS)
        text = ""
        calls = []
        while (chunk := await stream.next_chunk()) is not None:
            if chunk.is_TEXT_CHUNK():
                text += chunk.text
            elif chunk.is_TOOL_CHUNK():
                calls.append(chunk)
            else:
                assert chunk.is_END_CHUNK(), chunk
                uses.append(chunk.usage)
        if not calls:
            return text, uses
        requests = [request_of(call) for call in calls]
        results = [result_of(call) for call in calls]
        for role, content in (("ASSISTANT", requests), ("USER", results)):
            messages.append(goose.ProviderMessage(role=goose.MessageRole[role], content=content))
    raise AssertionError(f"the model still calls after {MOST_TURNS} turns")


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_gooses_library_reads_edits_runs_and_finishes(dialect, tmp_path, monkeypatch):
    note = tmp_path / "note.txt"
    note.write_text(BEFORE)
    copy = tmp_path / "copy.txt"
    steps = [
        write_call("read", path=str(note)),
        write_call("edit", path=str(note), old="red", new="blue"),
        write_call("copy", path=str(note), to=str(copy)),
        DONE,
    ]
    path = scripted_gguf(tmp_path, monkeypatch)
    with listening(path, name="tiny", max_output_tokens=4000) as worker:
        prompts = script(monkeypatch, worker.slot.model.tokenizer, steps)
        provider = goose.openai_provider("none", worker.address)
        if dialect == "anthropic":
            provider = goose.anthropic_provider("none", worker.address, [])
        text, uses = asyncio.run(finish_task(provider, "Make the colour blue, and copy the file."))
    assert text == DONE
    assert copy.read_text() == AFTER
    assert len(prompts) == len(uses) == 4
    assert all(use.output_tokens and use.input_tokens for use in uses)

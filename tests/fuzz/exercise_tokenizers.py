"""Every reader of tokenizer files, chat templates and request bodies, for any content.

Only a :class:`BitnetError` may come out, and where both engines give ids they are the same.
"""

import json
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import tekken_files
from tiny_models import tiny_gguf

from bitnet import load
from bitnet.base.errors import BitnetError
from bitnet.runtime.request import Request
from bitnet.server import exchange, refusals
from bitnet.server.slot import Slot
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.chat import ChatTemplate
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.library import library_engine
from bitnet.wire.routes import COMPUTED, ROUTES

TEXTS = (
    "",
    "a",
    "hello  world 12345",
    "aab \u00e9\u5b57\U0001f600\n\t'",
    "a" * 200 + "b",
    " " * 90,
)
CONVERSATION = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Why?"},
)


def tokenizer_json(data):
    """Read a ``tokenizer.json`` of these bytes, and encode with it."""
    _run(_opened(data, "tokenizer.json", spec_from_file))


def sentencepiece(data):
    """Read a SentencePiece ``tokenizer.model`` of these bytes, and encode with it."""
    _run(_opened(data, "tokenizer.model", spec_from_file))


def tiktoken(data):
    """Read a tiktoken rank file of these bytes, and encode with it."""
    _run(_opened(data, "a.tiktoken", lambda path: spec_from_file(path, pre="llama-bpe")))


def tekken(data):
    """Read a ``tekken.json`` and encode with it.

    It has these bytes, or, if they are not a JSON object, each of their lines as a token.
    """
    if not data.startswith(b"{"):
        data = json.dumps(tekken_files.document(joined=data.split(b"\n"), spare=0)).encode()
    _run(_opened(data, "tekken.json", spec_from_file))


def chat_template(data):
    """Read a chat template of these bytes, and render a conversation without and with a tool."""
    with suppress(BitnetError):
        template = ChatTemplate(data.decode("utf-8", "replace"), bos_token="<s>")
        with suppress(BitnetError):
            template.render(CONVERSATION)
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        template.render(CONVERSATION[1:2], tools=[tool])


def server_body(data):
    """Read a request body of these bytes for every route that takes one."""
    inner = _served()
    for path, form in (ROUTES | COMPUTED).items():
        with suppress(BitnetError, refusals.Refused):
            body = form.parse(data)
            requests = form.requests(body, Request(), inner.model)
            if path in COMPUTED:
                form.compute(body, requests, inner.model)
                continue
            for request in requests:
                exchange.prepare_sequences(request, inner, 1, 64)


@cache
def _served():
    """A slot with a model that never runs: answers are prepared and not computed."""
    template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{% endfor %}"
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_gguf(Path(folder) / "tiny.gguf", **{"tokenizer.chat_template": template})
        model = load(path)
    slot = Slot("tiny", path, None, None)
    slot.fill(model, max_batch=8)
    return slot


def _opened(data, name, read):
    """The tokenizer that *read* gives for a file *name* with *data*, None if it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            # Without a fingerprint, no compiled form in the cache is used.
            return replace(read(path), fingerprint="")
        except BitnetError:
            return None


def _run(spec):
    """Encode TEXTS by the tokenizer *spec* with both engines, which have to agree."""
    if spec is None:
        return
    for text in TEXTS:
        chosen, portable = (_answer(engine, spec, text) for engine in (_chosen, _portable))
        assert chosen is None or portable is None or chosen == portable


def _answer(engine, spec, text):
    """Ids of *text* by *engine*, None if it refuses the tokenizer or the text."""
    try:
        return engine(spec, text)
    except BitnetError:
        return None


def _chosen(spec, text):
    """Ids of *text* by a ``Tokenizer`` of *spec*, which also decodes them."""
    tokenizer = Tokenizer.from_spec(spec)
    ids = tokenizer.encode(text, add_special=False)
    with suppress(BitnetError):
        tokenizer.decode(ids)
    return ids


def _portable(spec, text):
    """Ids of *text* by a library."""
    return library_engine(spec).encode(text)

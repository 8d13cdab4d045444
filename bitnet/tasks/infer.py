"""``inv infer``."""

from __future__ import annotations

import json
from dataclasses import asdict

from bitnet.errors import UsageError
from bitnet.hub.options import FetchOptions
from bitnet.options import CacheOptions
from bitnet.runtime.options import AnswerOptions, ModelOptions, PromptOptions, SamplingParams
from bitnet.tasks.declare import Output, task
from bitnet.tasks.running import open_model, read_text, say, summary, write


@task()
def infer(
    c,
    prompt=PromptOptions(),
    wanted=AnswerOptions(),
    model=ModelOptions(),
    sampling=SamplingParams(),
    fetch=FetchOptions(),
    cache=CacheOptions(),
    output=Output(),
):
    """Continue a text, or answer a message, with a model.

    The text goes to stdout as it is written; one line with timings goes to stderr.
    """
    text = _text(prompt)
    with open_model(model, fetch=fetch, cache=cache, output=output) as running:
        answer = running.stream(
            running.encode_chat(_messages(text, prompt)) if prompt.chat else text,
            max_tokens=wanted.max_tokens,
            stop=wanted.stop,
            sampling=sampling,
        )
        _show(answer, streams=not output.json)
    if output.json:
        print(json.dumps(_facts(answer, ids=prompt.dump_ids), ensure_ascii=False))
    elif prompt.dump_ids:
        say(f"prompt ids: {list(answer.prompt_ids)}\nids: {answer.ids}")
    if prompt.stats:
        say("\n".join(_figures(answer)))
    say(summary(answer.stats))


def _text(options):
    """The prompt from wherever it comes; wrong ones are refused before a model is loaded."""
    from bitnet.runtime.text import check_prompt

    text = read_text(options.prompt_file) if options.prompt_file else options.prompt
    if text is None:
        raise UsageError(
            "infer needs --prompt or --prompt-file", hint="bitnet infer --prompt 'Hello'"
        )
    check_prompt(text)
    return text


def _messages(text, options):
    system = [{"role": "system", "content": options.system}] if options.system else []
    return [*system, {"role": "user", "content": text}]


def _show(answer, *, streams):
    """Run *answer*; what was written stays whole when it is interrupted."""
    try:
        for piece in answer:
            if streams:
                write(piece)
    finally:
        if streams and answer.text:
            write("\n")


def _facts(answer, *, ids):
    """*answer* as JSON values."""
    stats = answer.stats
    rates = ("prefill_tokens_per_s", "decode_tokens_per_s", "tokenize_share")
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        **asdict(stats),
        **{name: getattr(stats, name) for name in rates},
        **({"prompt_ids": list(answer.prompt_ids), "ids": answer.ids} if ids else {}),
    }


def _figures(answer):
    """More about *answer*, line by line."""
    from bitnet.runtime.engine import PREFILL_CHUNK

    stats = answer.stats
    passes = -(-stats.prompt_tokens // PREFILL_CHUNK) + stats.tokens - 1
    blocks = passes * answer.engine.model.config.n_layers
    return (
        f"finish reason: {answer.finish_reason}",
        f"load {stats.load_s:.3f} s, prompt {stats.prefill_s:.3f} s, rest {stats.decode_s:.3f} s",
        f"text to ids and back: {stats.tokenize_s * 1000:.1f} ms ({stats.tokenize_share:.2%})",
        f"GPU operations: 0, CPU operations: {blocks}, GPU efficiency: 0.0%",
    )

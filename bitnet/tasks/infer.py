"""``inv infer``."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict, replace

from bitnet.errors import UsageError
from bitnet.runtime.options import ModelOptions, PromptOptions
from bitnet.runtime.request import Request
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.tasks.running import (
    given_text,
    open_model,
    read_text,
    say,
    say_escaped,
    summary,
    with_piped_text,
    write,
    write_json,
)

logger = logging.getLogger(__name__)

LARGE_VOCABULARY = 128_000


@task(
    group="Run",
    example='bitnet infer smollm2-135m --prompt "Once upon a time" --max-tokens 32',
)
def infer(
    c,
    prompt=PromptOptions(),
    request=Request(),
    model=ModelOptions(),
    common=Context(),
):
    """Continue a text, or answer a message, with a model.

    The text goes to stdout as it is generated; one line with timings goes to stderr. A text that is
    piped into the command is the prompt, or stands before --prompt, with a line break between.
    """
    text = _text(prompt, common.output)
    with open_model(model, common) as running:
        told = common.output.verbose and not common.output.no_warnings
        if told and running.config.vocab_size > LARGE_VOCABULARY:
            logger.warning(
                "Large vocabulary (%d) running on CPU - consider GPU acceleration",
                running.config.vocab_size,
            )
        answer_once(running, replace(prompt, prompt=text, prompt_file=""), request, common.output)
        if running.tokenizer.chat_template and not prompt.chat and _is_read_by_a_person(common):
            say("Note: this model answers messages; --chat takes the text as one")


def _is_read_by_a_person(common):
    return sys.stdout.isatty() and not (common.output.json or common.output.no_warnings)


def answer_once(running, prompt, request, output):
    """Show what the model *running* writes after the text of *prompt*, and its metrics."""
    request = replace(
        request.choice(0),
        prompt=prompt.prompt,
        messages=_messages(prompt.prompt, prompt) if prompt.chat else None,
        json_schema=_schema(prompt),
        regex=prompt.regex or None,
        logprobs=prompt.logprobs,
    )
    answer, drawn = running.answer(request), _drawn(request.sampling)
    _show(answer, streams=not output.json)
    if output.json:
        ignored = {"ignored_keys": list(running.ignored_keys)} if running.ignored_keys else {}
        write_json(_facts(answer, ids=prompt.dump_ids) | drawn | ignored)
    elif prompt.dump_ids:
        say(f"prompt ids: {list(answer.prompt_ids)}\nids: {answer.ids}")
    if prompt.stats:
        say("\n".join([*_metric_lines(answer, running), *(f"{k}: {v}" for k, v in drawn.items())]))
    say(summary(answer.stats))


def _schema(options):
    """The JSON schema that --json-schema gives or names, ``None`` when there is none."""
    named = options.json_schema.strip()
    if not named or named in ("true", "false") or named[0] in "{[":
        return named or None
    return read_text(named)


def _text(options, output):
    """The prompt from wherever it comes; wrong ones are refused before a model is loaded."""
    from bitnet.runtime.request import check_prompt

    if options.logprobs is not None and not output.json:
        raise UsageError("--logprobs needs --json", hint="add --json")
    if options.prompt_file:
        text = read_text(options.prompt_file)
    else:
        text = with_piped_text(options.prompt, "--prompt")
    if text is None:
        raise UsageError(
            "infer needs --prompt or --prompt-file, or a text that is piped into it",
            hint="bitnet infer --prompt 'Hello'",
        )
    check_prompt(text)
    return text


def _messages(text, options):
    instructions = given_text(options.system, "--system")
    system = [{"role": "system", "content": instructions}] if options.system else []
    return [*system, {"role": "user", "content": text}]


def _show(answer, *, streams):
    """Run *answer*; what was written stays whole when it is interrupted."""
    escaped = False
    try:
        for piece in answer:
            escaped = (streams and write(piece)) or escaped
    finally:
        if streams and answer.text:
            write("\n")
        if escaped:
            say_escaped()


def _facts(answer, *, ids):
    """*answer* as JSON values."""
    stats = answer.stats
    rates = ("prefill_tokens_per_s", "decode_tokens_per_s", "tokenize_share", "acceptance")
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        **asdict(stats),
        **{name: getattr(stats, name) for name in rates},
        **({"prompt_ids": list(answer.prompt_ids), "ids": answer.ids} if ids else {}),
        **({"logprobs": [_token(entry) for entry in answer.logprobs]} if answer.logprobs else {}),
    }


def _drawn(sampling):
    """The seed that repeats an answer, where its tokens were drawn."""
    return {"seed": sampling.seed} if sampling.temperature else {}


def _token(entry):
    """A token with its log-probability as JSON values."""
    top = [_token(one) for one in entry.top]
    facts = {"id": entry.id, "text": entry.text, "bytes": list(entry.bytes)}
    return facts | {"logprob": entry.logprob} | ({"top_logprobs": top} if top else {})


def _metric_lines(answer, running):
    """More about *answer*, line by line."""
    stats = answer.stats
    blocks = stats.passes * running.config.n_layers
    return (
        f"finish reason: {answer.finish_reason}",
        f"load {stats.load_s:.3f} s, prompt {stats.prefill_s:.3f} s, rest {stats.decode_s:.3f} s",
        f"text to ids and back: {stats.tokenize_s * 1000:.1f} ms ({stats.tokenize_share:.2%})",
        f"tokens chosen by the exact head: {stats.exact_head_tokens} of {stats.tokens}"
        + (f", with {stats.exact_head_rows:.3%} of its rows" * bool(stats.exact_head_tokens))
        + ("; stopped, since it did not save time" * stats.exact_head_stopped),
        f"GPU operations: 0, CPU operations: {blocks}, GPU efficiency: 0.0%",
    )

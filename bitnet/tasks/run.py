"""``inv run``."""

from __future__ import annotations

import sys
from dataclasses import replace

from bitnet.errors import UsageError
from bitnet.invocation import word
from bitnet.runtime.options import ModelOptions, PromptOptions
from bitnet.runtime.request import Request
from bitnet.tasks.chat import talk_on_terminal
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.tasks.infer import answer_once
from bitnet.tasks.running import given_text, open_model, with_piped_text


@task(
    group="Run",
    example='bitnet run smollm2-135m "Why is the sky blue?"',
    positional=["prompt"],
    required=["model"],
    help={
        "prompt": "text to answer, after what is piped in; without both a conversation",
        "system": "instructions that come before the conversation",
    },
)
def run(
    c,
    prompt="",
    system="",
    request=Request(max_tokens=1024),
    model=ModelOptions(),
    common=Context(),
):
    """Run a model by its name; what is missing is fetched.

    Says what is fetched and how large it is before it begins. With a prompt, or a pipe, it answers
    once: a model with a chat template as a message, another one by continuing the text. With both,
    the piped text stands before the prompt. Otherwise it talks with you.
    """
    text = _text(prompt)
    instructions, name = given_text(system, "--system"), model.model
    model = replace(model, model=str(common.model(name, fetch=True)))
    with open_model(model, common) as running:
        chats = bool(running.tokenizer.chat_template)
        if text is None and not chats:
            raise UsageError(
                f"{name} has no chat template, it only continues a text",
                hint=f"bitnet run {word(name)} 'Once upon a time'",
            )
        if instructions and not chats:
            raise UsageError(f"{name} has no chat template: --system needs one")
        if text is None:
            talk_on_terminal(running, request, instructions)
            return
        asked = PromptOptions(prompt=text, chat=chats, system=instructions)
        answer_once(running, asked, request, common.output)


def _text(prompt):
    """The prompt, or what is piped in; ``None``: there is a person to talk with."""
    from bitnet.runtime.request import check_prompt

    if not prompt and sys.stdin is not None and sys.stdin.isatty():
        return None
    text = with_piped_text(prompt or None, "the prompt")
    if text is None:
        raise UsageError(
            "run needs a prompt, a text that is piped into it, or a terminal",
            hint="bitnet run smollm2-135m 'Why is the sky blue?'",
        )
    check_prompt(text)
    return text

"""Commands that answer a person: ``run``, ``infer`` and ``chat``."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import closing, suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from bitnet.base import settings
from bitnet.base.errors import BitnetError, NotFound, TooLong, UsageError
from bitnet.base.invocation import shell_quote
from bitnet.base.options import option
from bitnet.base.outputs import OutputFile, OutputKind, json_in
from bitnet.base.quantities import human_size
from bitnet.base.terminal import as_json
from bitnet.commands.context import (
    PROMPT_CACHE,
    Context,
    decode,
    decode_text,
    edit_text,
    open_model,
    read_text,
    recall_lines,
    say,
    say_escaped,
    summary,
    with_piped_text,
    write,
)
from bitnet.commands.declare import task
from bitnet.commands.presets import apply_preset, with_instructions
from bitnet.runtime.model_options import ModelOptions, PromptOptions
from bitnet.runtime.request import SAMPLING, Request

logger = logging.getLogger(__name__)

_LONG = {"max_tokens": 1024}  # limit of an answer in `run` and `chat`, unless one is set

LARGE_VOCABULARY = 128_000  # tokens; `infer --verbose` warns of more

LEAVE = ("/exit", "/quit", "/bye")
HELP = """\
/clear        forget the conversation
/system TEXT  instructions for the model; without TEXT: none
/set NAME VALUE  change an option of the answers: /set temperature 0.7
/show         the model, the instructions and the options
!edit         write the next message in $VISUAL or $EDITOR
/save FILE    write the conversation as JSON
/load FILE    go on with a conversation that was saved
/stats        metrics of the last answer
/help         this list
/exit         leave, as Ctrl-D and /bye do; Ctrl-C stops an answer
\"""           begins and ends a message of several lines, which is not a command
//TEXT        the message /TEXT, which is not a command"""
BLOCK = '"""'
EDIT = "!edit"
ESCAPED = "//"  # at the start of a line: a message that begins with a single slash
COMMANDS = (
    "/clear", "/system", "/set", "/show", "/save", "/load", "/stats", "/help", *LEAVE,
)  # fmt: skip
CUT_OFF = {
    "length": "(cut off: --max-tokens allows no more)",
    "context": "(cut off: the context is full; /clear forgets the conversation)",
}


@task(group="Run", example='bitnet run smollm2-135m "Why is the sky blue?"', required=["model"])
def run(
    c,
    prompt=option(
        "", "message to answer, after piped input; without either, a chat", positional=True
    ),
    system=option("", "instructions that come before the conversation"),
    request=Request(fallback=_LONG),
    model=ModelOptions(),
    prompt_cache=PROMPT_CACHE,
    common=Context(),
):
    """Run a model, and download it first if necessary.

    Prints what it downloads, and the size, before it begins. With a prompt or piped text it
    answers once; piped text comes before the prompt. A model without a chat template continues
    the text. Otherwise it starts a chat.
    """
    from bitnet.runtime.dialog import Conversation

    text = _question(prompt)
    instructions = decode_text(system, "--system")
    name = model.model
    model, preset = apply_preset(model)
    model = replace(model, model=str(common.model(model.model, fetch=True)))
    request = request.with_origin("command line")
    if preset is not None:
        request = preset.fill(request)
        instructions = instructions or preset.system
    with open_model(model, common, prompt_cache=prompt_cache) as running:
        has_template = bool(running.tokenizer.chat_template)
        if text is None and not has_template:
            raise UsageError(
                f"{name} has no chat template, it only continues a text",
                hint=f"bitnet run {shell_quote(name)} 'Once upon a time'",
            )
        if (instructions or (preset and preset.messages)) and not has_template:
            raise UsageError(f"{name} has no chat template, which instructions and messages need")
        if text is None:
            talk = Conversation(running, request, system=instructions)
            talk_on_terminal(_begin(talk, preset))
            return
        question = PromptOptions(prompt=text, chat=has_template, system=instructions)
        answer_once(running, question, request, common.output, preset)


def _begin(talk, preset):
    """*talk*, which begins with the messages of *preset*, if there is one."""
    if preset is not None:
        talk.beginning = preset.messages
        talk.clear()
    return talk


def _question(prompt):
    """The prompt with piped text; None on a terminal without a prompt, for a chat."""
    if not prompt and sys.stdin is not None and sys.stdin.isatty():
        return None
    missing = "run needs a prompt, a text that is piped into it, or a terminal"
    hint = "bitnet run smollm2-135m 'Why is the sky blue?'"
    return _check_text(with_piped_text(prompt or None, "the prompt"), missing, hint=hint)


def _check_text(text, missing, *, hint):
    """*text*, checked before a model is loaded; without a text the error is *missing*."""
    from bitnet.runtime.request_checks import check_prompt

    if text is None:
        raise UsageError(missing, hint=hint)
    check_prompt(text)
    return text


@task(group="Run", example='bitnet infer smollm2-135m --prompt "Once upon a time" --max-tokens 32')
def infer(
    c,
    prompt=PromptOptions(),
    request=Request(),
    model=ModelOptions(),
    prompt_cache=PROMPT_CACHE,
    common=Context(),
):
    """Generate text from a prompt.

    The text goes to stdout as it is generated, and one line of timings to stderr. Piped text is
    the prompt, or comes before --prompt on a line of its own.
    """
    if prompt.logprobs is not None and not common.output.json:
        raise UsageError("--logprobs needs --json", hint="add --json")
    file = prompt.prompt_file
    text = _check_text(
        read_text(file) if file else with_piped_text(prompt.prompt, "--prompt"),
        "infer needs --prompt or --prompt-file, or a text that is piped into it",
        hint=f"bitnet infer {shell_quote(model.model or 'bitnet-tiny')} --prompt 'Hello'",
    )
    model, preset = apply_preset(model)
    request = request.with_origin("command line")
    if preset is not None:
        request = preset.fill(request)
        prompt = with_instructions(prompt, preset)
    with open_model(model, common, prompt_cache=prompt_cache) as running:
        explains = common.output.verbose and not common.output.no_warnings
        if explains and running.config.vocab_size > LARGE_VOCABULARY:
            logger.warning(
                "Large vocabulary (%d) running on CPU - consider GPU acceleration",
                running.config.vocab_size,
            )
        question = replace(prompt, prompt=text, prompt_file="")
        answer_once(running, question, request, common.output, preset)
        quiet = common.output.json or common.output.no_warnings or not sys.stdout.isatty()
        if running.tokenizer.chat_template and not prompt.chat and not quiet:
            say("Note: this model answers messages; --chat takes the text as one")


def answer_once(running, prompt, request, output, preset=None):
    """Print the answer of the model *running* to *prompt*, and its metrics."""
    turns = [("system", decode_text(prompt.system, "--system"))] if prompt.system else []
    turns.append(("user", prompt.prompt))
    messages = [{"role": role, "content": content} for role, content in turns]
    if preset is not None:
        messages = preset.begin(messages)
    request = replace(
        request.choice(0),
        prompt=prompt.prompt,
        messages=messages if prompt.chat else None,
        json_schema=_schema(prompt),
        regex=prompt.regex or None,
        grammar=_grammar(prompt),
        logprobs=prompt.logprobs,
    )
    answer = running.answer(request)
    final_request = answer.sequence.request
    # The seed repeats the answer; greedy decoding needs none.
    seed_facts = {"seed": final_request.seed} if final_request.sampling.temperature else {}
    if output.json:
        "".join(answer)
        facts = _facts(answer, ids=prompt.dump_ids) | seed_facts
        facts["generation"] = final_request.sampling_facts()
        if running.ignored_keys:
            facts["ignored_keys"] = list(running.ignored_keys)
        print(as_json(facts), flush=True)
    else:
        _show(answer)
        if prompt.dump_ids:
            say(f"prompt ids: {list(answer.prompt_ids)}\nids: {answer.ids}")
    if prompt.stats:
        lines = [*_metric_lines(answer, running), _sampling_line(final_request)]
        say("\n".join([*lines, *(f"{name}: {value}" for name, value in seed_facts.items())]))
    say(summary(answer))


def _sampling_line(request):
    """Sampling values of *request*, each with its origin, as a line."""
    facts = request.sampling_facts()
    settings_ = (
        f"{name} {json.dumps(entry['value'])} ({entry['from']})" for name, entry in facts.items()
    )
    return f"generation: {', '.join(settings_)}"


def _schema(options):
    """The JSON schema in --json-schema or in the file that it names; None without the option."""
    named = options.json_schema.strip()
    if not named or named in ("true", "false") or named[0] in "{[":
        return named or None
    return read_text(named)


def _grammar(options):
    """The grammar in --grammar or in the file that it names; None without the option."""
    named = options.grammar
    if not named or "::=" in named:
        return named or None
    return read_text(named)


def _show(pieces):
    """Write *pieces* of an answer; end the line even if the answer is interrupted."""
    begun = escaped = False
    try:
        for piece in pieces:
            begun = begun or bool(piece)
            escaped = write(piece) or escaped
    finally:
        if begun:
            write("\n")
        if escaped:
            say_escaped()


def _facts(answer, *, ids):
    """*answer* as JSON values."""
    facts = {"text": answer.text, "finish_reason": answer.finish_reason, **answer.metrics()}
    if ids:
        facts |= {"prompt_ids": list(answer.prompt_ids), "ids": answer.ids}
    if answer.logprobs:
        facts["logprobs"] = [*map(_token, answer.logprobs)]
    return facts


def _token(entry):
    """A token with its log-probability as JSON values."""
    top = [_token(candidate) for candidate in entry.top]
    facts = {"id": entry.id, "text": entry.text, "bytes": list(entry.bytes)}
    return facts | {"logprob": entry.logprob} | ({"top_logprobs": top} if top else {})


def _metric_lines(answer, running):
    """Lines with more metrics of *answer*."""
    sequence = answer.sequence
    blocks = sequence.passes * running.config.n_layers
    elapsed_s = answer.prefill_s + answer.decode_s
    # See docs/architecture/exact-head.md.
    exact_head = f"{sequence.exact_head_tokens} of {answer.tokens}"
    if sequence.exact_head_tokens:
        exact_head += f", with {sequence.exact_head_rows:.3%} of its rows"
    if sequence.exact_head_stopped:
        exact_head += "; stopped, since it did not save time"
    drafts = f"{sequence.accepted} of {sequence.drafted} tokens accepted ({answer.acceptance:.0%})"
    if sequence.draft_gain:
        drafts += f", {sequence.draft_gain:.2f} times the speed without"
    reading = f"{human_size(answer.read_bytes)}, {answer.page_faults} page faults"
    if elapsed_s > 0:
        reading += f", {human_size(answer.read_bytes / elapsed_s)} a second"
    # The numbers of the GPU are constants, since everything runs on the CPU.
    return (
        f"finish reason: {answer.finish_reason}",
        f"load {answer.load_s:.3f} s, prompt {answer.prefill_s:.3f} s, "
        f"rest {answer.decode_s:.3f} s",
        f"text to ids and back: {answer.tokenize_s * 1000:.1f} ms ({answer.tokenize_share:.2%})",
        f"tokens chosen by the exact head: {exact_head}",
        f"drafts: {drafts}",
        f"read from files: {reading}",
        f"GPU operations: 0, CPU operations: {blocks}, GPU efficiency: 0.0%",
    )


@task(group="Run", example="bitnet chat smollm2-135m")
def chat(
    c,
    system=option("", "instructions that come before the conversation"),
    request=Request(fallback=_LONG),
    model=ModelOptions(),
    prompt_cache=PROMPT_CACHE,
    common=Context(),
):
    """Chat with a model.

    On a terminal, lines can be edited and recalled; /help lists the commands. From a pipe,
    every line is a message, and the first error ends the program.
    """
    from bitnet.runtime.dialog import Conversation

    instructions = decode_text(system, "--system")
    model, preset = apply_preset(model)
    request = request.with_origin("command line")
    if preset is not None:
        request = preset.fill(request)
        instructions = instructions or preset.system
    with open_model(model, common, prompt_cache=prompt_cache) as running:
        talk = _begin(Conversation(running, request, system=instructions), preset)
        if sys.stdin.isatty():
            talk_on_terminal(talk)
            return
        for line in _lines():
            _answer(talk, line, json_line=common.output.json)


def talk_on_terminal(talk):
    """Hold the conversation *talk* on this terminal; an error does not end it."""
    say(f"{talk.model.path.name} on {talk.model.backend}. /help lists commands.")
    with recall_lines(), suppress(EOFError):
        while _turn(talk):
            pass
    say("")


def _turn(talk):
    """Read one line and answer it; return False if the user leaves."""
    try:
        typed, is_verbatim = _read_message()
        line = decode_text(typed, "the line").strip()
        if line and is_verbatim:
            _answer_message(talk, line)
            return True
        if line and line not in LEAVE:
            _answer(talk, line)
    except KeyboardInterrupt:
        say("\n(stopped; /exit leaves)")
        return True
    except BitnetError as error:
        is_full = isinstance(error, TooLong) and talk.turns
        hint = "/clear forgets the conversation" if is_full else error.hint
        say(f"Error: {error.message}" + (f"\nhint: {hint}" if hint else ""))
        return True
    return line not in LEAVE


def _read_message():
    """A line from the terminal, or the lines between triple quotation marks, or an editor's text.

    The second value is True if the text cannot be a command, which only a line can be.
    """
    line = input("> ")
    if line.strip() == EDIT:
        return edit_text(), True
    if not line.startswith(BLOCK):
        return line, False
    lines = [line.removeprefix(BLOCK)]
    while not lines[-1].rstrip().endswith(BLOCK):
        lines.append(input(". "))
    return "\n".join(lines).rstrip().removesuffix(BLOCK), True


def _lines():
    """Messages from a pipe, one per line, up to a line such as ``/exit``."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        line = decode(raw, f"line {number} of stdin").removeprefix("\ufeff").strip()
        if line in LEAVE:
            return
        if line:
            yield line


def _answer(talk, line, *, json_line=False):
    """Run *line*: a command, or a message that is answered on stdout."""
    from bitnet.runtime.request_checks import check_prompt

    check_prompt(line)
    if line.startswith("/") and not line.startswith(ESCAPED):
        _command(talk, line)
        return
    if line.startswith(ESCAPED):
        line = line[1:]
    _answer_message(talk, line, json_line=json_line)


def _answer_message(talk, line, *, json_line=False):
    """Answer the message *line* on stdout."""
    from bitnet.runtime.request_checks import check_prompt

    check_prompt(line)
    with closing(talk.ask(line)) as pieces:
        if json_line:
            print(as_json({"role": "assistant", "content": "".join(pieces)}), flush=True)
            return
        _show(pieces)
    if talk.finish_reason in CUT_OFF:
        say(CUT_OFF[talk.finish_reason])


def _command(talk, line):
    """Run *line*, a command with a slash, in the conversation *talk*."""
    name, _, value = line.partition(" ")
    value = value.strip()
    if name == "/help":
        say(HELP)
    elif name == "/clear":
        talk.clear()
    elif name == "/system":
        talk.system = value
    elif name == "/stats":
        say(summary(talk.answer) if talk.answer else "no answer yet")
    elif name in ("/save", "/load"):
        if not value:
            raise UsageError(f"{name} needs the name of a file", hint=f"{name} talk.json")
        path = settings.expand_home(Path(value))
        _save(talk, path) if name == "/save" else _load(talk, path)
    elif name == "/set":
        _set(talk, *value.partition(" ")[::2])
    elif name == "/show":
        say(f"model: {talk.model.path.name}, {len(talk.turns)} messages")
        say(f"system: {talk.system or 'none'}")
        ready = talk.request.with_settings(talk.model.generation)
        for option_name in ("max_tokens", "stop", *SAMPLING):
            origin = ready.origins.get(option_name, "default")
            source = "" if origin == "default" else f" ({origin})"
            say(f"{option_name}: {json.dumps(getattr(ready, option_name))}{source}")
    else:
        near = get_close_matches(name, COMMANDS, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        hint = f"{meant}/help lists them, and //{name[1:]} sends it as a message"
        raise UsageError(f"no command {line!r}", hint=hint)


def _set(talk, name, value):
    """Change an option of the answers, as a JSON value or a text."""
    if not value:
        raise UsageError("/set needs a name and a value", hint="/set temperature 0.7")
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = value.strip()
    option_name = name.replace("-", "_")
    options = ("max_tokens", "stop", *SAMPLING)
    near = get_close_matches(option_name, options, 1)
    if near and option_name not in Request.__dataclass_fields__:
        raise UsageError(f"no option {name!r}", hint=f"did you mean /set {near[0]} {value}?")
    talk.set_option(option_name, parsed)


def _load(talk, path):
    """Continue with the conversation in the file *path*."""
    try:
        messages = json.loads(read_text(str(path)))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}", hint="load what /save wrote") from None
    talk.load(messages)
    say(f"loaded {len(talk.messages)} messages from {path}")


def _is_conversation(path):
    """True if the file *path* is a JSON list of messages."""
    messages = json_in(path)
    return isinstance(messages, list) and all(
        isinstance(message, dict) and {"role", "content"} <= set(message) for message in messages
    )


CONVERSATION = OutputKind("a saved conversation", _is_conversation)


def _save(talk, path):
    """Write the conversation to the file *path*; only a saved conversation is replaced."""
    if not path.parent.is_dir():
        raise NotFound(f"no such folder: {path.parent}", hint="make it, or choose another")
    output = OutputFile(path, CONVERSATION, "/save", inputs=(talk.model.path,))
    output.write_text(json.dumps(talk.messages, ensure_ascii=False, indent=2) + "\n")
    say(f"saved {len(talk.messages)} messages to {path}")

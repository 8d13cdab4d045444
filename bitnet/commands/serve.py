"""``serve``, also called ``worker``: serve models over HTTP."""

from __future__ import annotations

import logging
import secrets
import sys
from collections import Counter
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.base.errors import BitnetError, Unsupported, UsageError
from bitnet.base.files import is_file_or_folder
from bitnet.base.invocation import extra_command
from bitnet.commands.context import (
    PROMPT_CACHE,
    Context,
    load_model,
    model_path,
    open_file,
    say,
)
from bitnet.commands.declare import task
from bitnet.commands.presets import apply_preset, find_preset, with_model
from bitnet.runtime.model_options import ModelOptions
from bitnet.runtime.request import SamplingOptions
from bitnet.server.narration import output_as_events
from bitnet.server.serve_options import ServeOptions

logger = logging.getLogger(__name__)


@task(group="Serve", example="bitnet serve smollm2-135m --port 9999", aliases=("worker",))
def serve(
    c,
    options=ServeOptions(),
    sampling=SamplingOptions(),
    model=ModelOptions(),
    prompt_cache=PROMPT_CACHE,
    common=Context(),
):
    """Serve models over HTTP.

    Serves the APIs of OpenAI, Anthropic, Ollama and llama.cpp's server, and a chat page. Stop
    it with Ctrl-C or SIGTERM: running answers may finish.
    """
    options = replace(options, worker_id=options.worker_id or f"worker-{secrets.token_hex(4)}")
    if model.exact_head == "auto":  # clients that sample from the whole vocabulary need all of it
        model = replace(model, exact_head="off")
    parts = _parts(options)
    if options.narration != "json":
        _serve(parts, options, sampling, model, common, prompt_cache)
        return
    *_, narrate = parts
    with output_as_events(narrate):
        try:
            _serve(parts, options, sampling, model, common, prompt_cache)
        except BitnetError as error:  # as an event; the program would write it as text
            code = error.exit_code
            hint = error.hint or None
            narrate("worker_failed", message=error.message, hint=hint, exit_code=code)
            raise Exit(code=code) from error


def _serve(parts, options, sampling, model, common, prompt_cache):
    """Bind the address, prepare the models, and serve them until a signal ends the worker."""
    bind, run, narrate = parts
    options.key()  # refuses a public host without a key
    options.check_tls()
    narrate("startup", port=options.port)
    ready = partial(_announce, options, narrate, common.fetch)
    # An address that is in use is reported before minutes are spent on loading a model.
    with bind(options.host, options.port) as bound:
        models, metrics = _prepare_models(options, sampling, model, common, narrate, prompt_cache)
        with closing(models):
            if not options.models:
                models.load_first()
            run(models, metrics, options, narrate, bound=bound, ready=ready)


def _prepare_models(options, sampling, model, common, narrate, prompt_cache):
    """The models that *options* and *model* name, none of them loaded, and their metrics."""
    from bitnet.server.loading import narrate_failure
    from bitnet.server.metrics import Metrics
    from bitnet.server.models import Models

    metrics = Metrics()
    # Without --models, a model that is not found is narrated as one that fails to load.
    with narrate_failure(narrate) if not options.models else nullcontext():
        slots = _slots(options, model, common, prompt_cache)
    limits = ["max_batch", "queue", "max_output_tokens", "kv_budget_bytes"]
    limits += ["idle_s", "memory_bytes"] if options.models else []
    bounds = {name: getattr(options, name) for name in limits}
    strict = options.strict_model_name
    models = Models(
        slots,
        metrics,
        narrate,
        deadline_s=options.deadline,
        strict_names=strict,
        sampling=sampling,
        **bounds,
    )
    if options.models:
        narrate("models_found", names=", ".join(models.slots), count=len(models.slots))
    return models, metrics


def _slots(options, model, common, prompt_cache):
    """A slot for each model to serve."""
    from bitnet.formats.model_files import model_name
    from bitnet.models.adapted import split_adapters
    from bitnet.server.slot import Slot

    slots: dict[str, Slot] = {}
    for argument, path, preset in _paths(options, model, common):
        name = model_name(path) if preset is None else preset.name
        if name in slots and slots[name].path.resolve() != path.resolve():
            raise UsageError(
                f"two models are called {name!r}: {slots[name].path} and {path}",
                hint="rename one of them, or serve them with two workers",
            )
        model_options = model if preset is None else with_model(model, preset)
        own_options = replace(model_options, model=str(path))
        opener = partial(open_file, own_options, common)
        loader = partial(load_model, own_options, common, prompt_cache=prompt_cache)
        aliases = () if argument in ("", name) or Path(argument) == path else (argument,)
        _, adapters = split_adapters(own_options.lora)
        settings = {"aliases": aliases, "adapters": [*adapters], "context": own_options.context}
        settings["preset"] = preset
        slots.setdefault(name, Slot(name, path, opener, loader, **settings))
    for alias in options.alias:
        new_name, _, target = alias.partition("=")
        target = target or next(iter(slots))
        by_name = {name: slot for slot in reversed(slots.values()) for name in slot.names}
        if target not in by_name:
            names = ", ".join(map(repr, slots))
            raise UsageError(f"--alias {alias}: there is no model {target!r}, only {names}")
        slot = by_name[target]
        if not new_name or by_name.get(new_name, slot) is not slot:
            raise UsageError(
                f"--alias {alias}: {new_name!r} cannot be another name of {slot.name!r}"
            )
        slot.aliases = (*slot.aliases, new_name)
    _check_adapter_names([*slots.values()])
    return [*slots.values()]


def _check_adapter_names(slots):
    """Refuse a name of an adapter that is also the name of one of *slots* or of its adapters."""
    counts = Counter(name for slot in slots for name in slot.names)
    for slot in slots:
        for name in slot.adapters:
            if name in (slot.name, *slot.aliases):
                raise UsageError(f"--lora {name}=...: that is the name of the model itself")
            if counts[name] > 1:
                raise UsageError(
                    f"{slot.name!r} has an adapter {name!r}, and another model has that name, too",
                    hint="give each adapter a name of its own, or serve them with two workers",
                )


def _paths(options, model, common):
    """For each model to serve: its name as given, its file or folder, and its preset or None."""
    if not options.models:
        model_options, preset = apply_preset(model)
        yield model.model, model_path(model_options, common), preset
        return
    for name in ("model", "tokenizer", "pre", "chat_template", "draft_model", "lora"):
        if getattr(model, name):
            raise UsageError(
                f"--{name.replace('_', '-')} and --models exclude each other",
                hint="what belongs to one model needs a worker of its own",
            )
    from bitnet.formats.model_files import find_models, is_model_folder

    names = options.models
    # A path may have commas.
    arguments = [names] if Path(names).exists() else [name.strip() for name in names.split(",")]
    if "" in arguments:
        raise UsageError(f"--models is {names!r}, expected models with commas between")
    for argument in arguments:
        path = Path(argument)
        preset = None if path.exists() else find_preset(argument)
        if preset is not None:
            path = common.model(preset.model, fetch=model.auto_download)
            yield argument, path, preset
            continue
        # A folder means every model below it, also where one GGUF file lies at its top.
        if not path.is_dir():
            path = common.model(argument, fetch=model.auto_download)
        if path.is_dir() and not is_model_folder(path):
            yield from (("", model, None) for model in find_models(path))
            continue
        is_file_or_folder(path)  # a pipe is refused now, rather than for the first request
        yield argument, path, None


def _parts(options):
    """The functions ``bind`` and ``run`` of the server, and the narrator of its events."""
    from bitnet.server.narration import narrator

    try:
        from bitnet.server.run import bind, run
    except ModuleNotFoundError as error:
        text = f"serving needs the package {error.name}"
        raise Unsupported(text, hint=extra_command("serve")) from None
    write = partial(say, stream=sys.stderr)  # the stderr of now: it may be replaced later
    form = options.narration
    if form == "auto":
        form = "brief" if sys.stderr.isatty() else "console"
    narrate = narrator(write, worker_id=options.worker_id, form=form)
    return bind, run, narrate


def _announce(options, narrate, fetch, address):
    """Tell --callback-url that the worker is ready; a failure is only narrated."""
    if not options.calls_back:
        narrate("test_mode")
        return
    from bitnet.hub.callback import call_back

    facts = {"worker_id": options.worker_id, "status": "ready", "address": address}
    try:
        call_back(options.callback_url, facts, fetch)
    except BitnetError as error:
        narrate("callback_failed", message=error.message)
    else:
        narrate("callback_sent")

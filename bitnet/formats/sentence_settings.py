"""Settings of sentence-transformers for a whole model, by rules for each key.

The first module has a file with the limit of a text and the form in which texts reach the model; a
second file has prompts. sentence-transformers 6: ``base/modules/transformer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.families.keys import HARMLESS, Rule, check, neutral, read, reads, refusal
from bitnet.formats.checkpoint import damage_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.families.keys import IgnoredKeys
    from bitnet.formats.checkpoint import Inventory

MODEL_SETTINGS = "config_sentence_transformers.json"
#: Names of the first module's file, in the order in which the library looks for one.
TRANSFORMER_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
# Options of the library's call that loads the model, its tokenizer or its ``config.json``. They
# choose files and kernels, or change the rounding only.
_LOADING: dict[str, Rule] = {
    **dict.fromkeys(("trust_remote_code", "revision", "code_revision"), HARMLESS),
    **dict.fromkeys(("attn_implementation", "dtype", "torch_dtype", "low_cpu_mem_usage"), HARMLESS),
    **dict.fromkeys(("use_safetensors", "device_map", "add_pooling_layer"), HARMLESS),
    **dict.fromkeys(("use_memory_efficient_attention", "unpad_inputs", "use_cache"), HARMLESS),
    **dict.fromkeys(("use_fast", "padding_side", "clean_up_tokenization_spaces"), HARMLESS),
}
_OPTIONS = (
    *("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs"),
    *("config_args", "config_kwargs"),
)
_TRANSFORMER: dict[str, Rule] = {
    **reads("max_seq_length transformer_task modality_config module_output_name"),
    **dict.fromkeys(_OPTIONS, read("options of loading")),
    "do_lower_case": neutral(None, False),
    "processing_kwargs": neutral(None, {}),
    "unpad_inputs": HARMLESS,
    "query_length": neutral(None),
    "document_length": neutral(None),
    "query_expansion": neutral(None),
    "tokenizer_name_or_path": neutral(None),
}
_MODEL: dict[str, Rule] = {
    **reads("prompts default_prompt_name activation_fn"),
    "model_type": read("class of the library that made the folder"),
    "similarity_fn_name": HARMLESS,
    "truncate_dim": neutral(None),
    "keep_in_fp32_modules": HARMLESS,
    "requirements": HARMLESS,
    "__version__": HARMLESS,
}
# Classes of the library, of vectors and of scores; a folder that names none is of the first.
_VECTORS = "SentenceTransformer"
_SCORES = "CrossEncoder"
# The output of the language model and its name for the modules behind it, by task.
_OUTPUTS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "text-generation": ("logits", "causal_logits"),
}
_TASKS_OF_VECTORS = ("feature-extraction",)
_TASKS_OF_LABELS = ("feature-extraction", "sequence-classification")
_TASKS_OF_ANSWERS = ("text-generation",)


def transformer_settings(files: Inventory, ignore: IgnoredKeys) -> tuple[str, dict[str, Any]]:
    """Name and content of the first module's file, without the keys to *ignore*.

    It is the first of the file's names that has any content.
    """
    for name in TRANSFORMER_SETTINGS:
        settings = files.json(name, dict) if name in files else {}
        if settings:
            return name, ignore.without(settings, prefix=f"{name}: ")
    return TRANSFORMER_SETTINGS[0], {}


def model_settings(files: Inventory, ignore: IgnoredKeys) -> dict[str, Any]:
    """Settings of the model without the keys to *ignore*; empty without the file."""
    settings = files.json(MODEL_SETTINGS, dict) if MODEL_SETTINGS in files else {}
    return ignore.without(settings, prefix=f"{MODEL_SETTINGS}: ")


def has_own_settings(files: Inventory, ignore: IgnoredKeys, *, scores: bool) -> bool:
    """True if the library reads its settings in *files* for a model that *scores* texts or not.

    It does not without a list of modules, nor in a folder that another of its classes has saved.
    """
    if "modules.json" not in files:
        return False
    made_by = model_settings(files, ignore).get("model_type", _VECTORS)
    return bool(made_by == (_SCORES if scores else _VECTORS))


def check_settings(
    files: Inventory, ignore: IgnoredKeys, *, classifies: bool, answers: bool
) -> None:
    """Refuse settings of either file under which the library computes something else.

    *classifies* and *answers* are true for a model with a classifier, and for one whose logits of
    two tokens score a document.
    """
    model = files.root.name
    own = model_settings(files, ignore)
    check(own, _MODEL, model=model, below=f"{MODEL_SETTINGS}: ")
    if not classifies and not has_own_settings(files, ignore, scores=answers):
        # The library would replace the modules by others.
        why = f"only {_SCORES if answers else _VECTORS} is computed for these modules"
        made_by = own.get("model_type")
        raise refusal(f"{MODEL_SETTINGS}: model_type", made_by, why, model=model)
    name, settings = transformer_settings(files, ignore)
    check(settings, _TRANSFORMER, model=model, below=f"{name}: ")
    for key in _OPTIONS:
        options = settings.get(key)
        if not isinstance(options, dict | None):
            raise damage_error(files.path(name), f"{key} is {options!r:.80}, expected options")
        check(options or {}, _LOADING, model=model, below=f"{name}: {key}.")
    tasks = _TASKS_OF_LABELS if classifies else _TASKS_OF_VECTORS
    if answers:
        tasks = _TASKS_OF_ANSWERS
    task = settings.get("transformer_task") or tasks[0]
    if task not in tasks:
        why = f"only {' or '.join(tasks)} is computed for this model"
        raise refusal(f"{name}: transformer_task", task, why, model=model)
    _check_form_of_texts(files, name, settings, task)


def _check_form_of_texts(
    files: Inventory, name: str, settings: Mapping[str, Any], task: str
) -> None:
    """Refuse another form of texts, or another output, than those of the *task*.

    The library puts every text into the chat template if there is an entry for messages.
    """
    model = files.root.name
    key = "modality_config"
    modalities = settings.get(key)
    if modalities is None:
        if task == "text-generation" and "transformer_task" in settings:
            why = "a query and a document in a chat template are supported"
            raise refusal(f"{name}: {key}", None, why, model=model, is_ignorable=False)
        return
    if not isinstance(modalities, dict):
        raise damage_error(files.path(name), f"{key} is {modalities!r:.80}, expected a table")
    if task != "text-generation" and "message" in modalities:
        why = "texts are not put into a chat template to embed or to score them"
        value = modalities["message"]
        raise refusal(f"{name}: {key}.message", value, why, model=model)
    if task == "text-generation" and "message" not in modalities:
        why = "a query and a document in a chat template are supported"
        raise refusal(f"{name}: {key}", modalities, why, model=model)
    output, module_output = _OUTPUTS[task]
    rules = {
        "method": neutral("forward"),
        "method_output_name": neutral(output),
        "format": HARMLESS,
    }
    for modality in modalities.keys() & {"text", "message"}:
        parameters = modalities[modality]
        if not isinstance(parameters, dict):
            problem = f"{key}.{modality} is {parameters!r:.80}, expected a table"
            raise damage_error(files.path(name), problem)
        check(parameters, rules, model=model, below=f"{name}: {key}.{modality}.")
    rule = neutral(None, module_output)
    check(
        {"module_output_name": settings.get("module_output_name")},
        {"module_output_name": rule},
        model=model,
        below=f"{name}: ",
    )

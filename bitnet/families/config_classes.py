"""Classes that a ``config.json`` names: what the model is for, and whether it brings own code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.base.errors import InvalidFormat
from bitnet.families.keys import COMPARE, refusal

if TYPE_CHECKING:
    from bitnet.families.family import Family
    from bitnet.families.keys import Config

CLASSIFIES = "ForSequenceClassification"  # the end of the name of a class that scores labels
# Ends of the names of classes that generate text.
_WRITES_TEXT = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
# Ends of the names of classes of encoders with a head that is left out.
_ENCODER_HEADS = ("ForMaskedLM", "ForPreTraining")
_HEADLESS = "Model"  # as in Qwen3Model, whose output is the last hidden states
# Entries of ``auto_map`` that name the class of a configuration or a model.
_OWN_CODE = ("AutoConfig", "AutoModel", "AutoModelForCausalLM")
_OWN_CLASSIFIER = "AutoModelForSequenceClassification"  # entry of a model that scores labels


def first_architecture(config: Config) -> str:
    """The first of ``architectures``, the name of a class; empty if the list is missing."""
    names = config.get("architectures") or [""]
    if not isinstance(names, list):
        raise InvalidFormat(
            f"config.json: architectures is {names!r:.80}, expected a list",
            hint=COMPARE,
        )
    return str(names[0])


def writes_text(config: Config) -> bool:
    """True if a class of *config* has an output head, or none is named.

    Folders of ChatGLM name their inner class, and in ``auto_map`` the class that AutoModel makes.
    """
    class_name = first_architecture(config)
    code = config.get("auto_map")
    made = str(code.get("AutoModel", "")) if isinstance(code, dict) else ""
    return not class_name or class_name.endswith(_WRITES_TEXT) or made.endswith(_WRITES_TEXT)


def check_classes(config: Config, family: Family) -> None:
    """Refuse models for tasks that are not computed, and models with custom code."""
    class_name = first_architecture(config)
    of_encoders = _ENCODER_HEADS if family.encodes else ()
    kinds = (*_WRITES_TEXT, _HEADLESS, CLASSIFIES, *of_encoders, *family.classes)
    if class_name and not class_name.endswith(kinds):
        why = "such a model neither generates text nor computes embeddings"
        raise refusal("architectures", config["architectures"], why)
    code = config.get("auto_map")
    if not code:
        return
    # Entries for other tasks do not matter: their classes are not run.
    names = [*_OWN_CODE, *([_OWN_CLASSIFIER] if class_name.endswith(CLASSIFIES) else [])]
    entries = [code[name] for name in names if name in code] if isinstance(code, dict) else [code]
    classes = {str(entry).rpartition(".")[2].lower() for entry in entries}
    # Names of transformers' own classes for the family, in lower case.
    own = {
        f"{kind.replace('_', '').replace('-', '')}{end}".lower()
        for kind in family.model_types
        for end in ("Config", *_WRITES_TEXT, _HEADLESS, CLASSIFIES)
    }
    own |= {name.lower() for name in family.classes}
    if not classes <= own:
        raise refusal("auto_map", code, "the model brings custom code, which is not run")

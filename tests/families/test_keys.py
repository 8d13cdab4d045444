"""The keys in the tables of the families: each is read, and one that is left out is the default."""

import ast
from pathlib import Path

import pytest

from bitnet import families as package
from bitnet.base.errors import Unsupported
from bitnet.families.config_json import describe
from bitnet.families.family import families
from bitnet.families.keys import BECOMES, COMMON

MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "sliding_window": 32,
}


def texts_of_the_code():
    """Yield the strings in the code of the families, but for the names in calls of ``reads``."""
    for path in Path(package.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        calls_of_reads = [
            call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "reads"
        ]
        skipped = {node for call in calls_of_reads for node in ast.walk(call)}
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and node not in skipped:
                yield node.value


def test_every_key_in_the_tables_of_the_families_occurs_in_their_code():
    strings_in_code = {*texts_of_the_code(), *BECOMES, *BECOMES.values(), *COMMON}
    tables = [table for family in families() for table in (family.config_keys, family.gguf_keys)]
    read = {name for table in tables for name, rule in table.items() if rule.is_read}
    assert len(read) > 100
    assert read <= strings_in_code


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [
        ("num_key_value_heads", "attention.head_count_kv", 8),
        ("sliding_window", "attention.sliding_window", 4096),
        ("hidden_size", "embedding_length", 4096),
    ],
)
def test_a_folder_without_a_key_has_the_value_that_transformers_assumes(key, name, value):
    assert describe(MISTRAL, model="m").value("attention.sliding_window") == 32  # as stated
    without = {other: entry for other, entry in MISTRAL.items() if other != key}
    assert describe(without, model="m").value(name) == value


@pytest.mark.parametrize("outer", ["paligemma", "aya_vision"])
def test_a_model_around_a_text_model_that_changes_its_logits_is_refused_by_name(outer):
    with pytest.raises(Unsupported, match=outer):
        describe({"model_type": outer, "text_config": MISTRAL}, model="m")


@pytest.mark.parametrize("tied", [True, False])
def test_the_outer_configuration_says_whether_the_head_is_the_embedding(tied):
    text = MISTRAL | {"tie_word_embeddings": not tied}
    outer = {"model_type": "llava", "tie_word_embeddings": tied, "text_config": text}
    assert describe(outer, model="m").tied is tied

"""Jina v3 as it is published: a model and an adapter for each task, in one folder.

The code beside these models adds ``B A * alpha / rank`` of the task to every matrix, ``A B`` to the
tables of embeddings, and runs the model that results; so does this file, with transformers.
"""

import json

import numpy as np
import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
pytest.importorskip("sentence_transformers", reason=REASON)

from conversions import convert  # noqa: E402 - needs torch
from safetensors.torch import load_file, save_file  # noqa: E402
from sentence_folders import change_json, encoder_folder, save_tokenizer  # noqa: E402

from bitnet import load  # noqa: E402
from bitnet.base.errors import InvalidFormat, NotFound, UsageError  # noqa: E402
from bitnet.base.growing import GrowingFile  # noqa: E402
from bitnet.convert.convert_options import ConvertOptions  # noqa: E402
from bitnet.formats.adapters import read_adapter  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402

pytestmark = QUIET
MAX_DIFFERENCE = 2e-4  # of the largest entry; the compiled module keeps keys as 16 bits
RANK = 4
ALPHA = 3.0
TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
IDS = [[2, 5, 6, 7, 8, 9, 10, 11, 3], [2, 13, 3], [2, *range(5, 20), 12, 13, 3]]
# Ends of the names of the matrices that have factors, besides the embeddings.
MATRICES = ("Wqkv.weight", "out_proj.weight", "fc1.weight", "fc2.weight", "dense.weight")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder as the published one, and folders of transformers by task; "" has no adapter."""
    base = tmp_path_factory.mktemp("jina")
    plain = encoder_folder(
        base / "plain",
        "JinaEmbeddingsV3",
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        max_position_embeddings=66,  # 64 positions, numbered from pad_token_id + 1 on
    )
    torch.manual_seed(3)
    tensors = load_file(plain / "model.safetensors")
    published_tensors = {}
    changes = {}
    for name, matrix in tensors.items():
        is_table = name.endswith("_embeddings.weight")
        if not is_table and not name.endswith(MATRICES):
            published_tensors[f"roberta.{name}"] = matrix
            continue
        outputs, inputs = matrix.shape
        if is_table:
            a = torch.randn(len(TASKS), outputs, RANK) * 0.3
            b = torch.randn(len(TASKS), RANK, inputs) * 0.3
            changes[name] = a @ b
        else:
            a = torch.randn(len(TASKS), RANK, inputs) * 0.3
            b = torch.randn(len(TASKS), outputs, RANK) * 0.3
            changes[name] = b @ a
        prefix = f"roberta.{name.removesuffix('.weight')}.parametrizations.weight"
        published_tensors |= {
            f"{prefix}.original": matrix,
            f"{prefix}.0.lora_A": a,
            f"{prefix}.0.lora_B": b,
        }
    folders = {"": plain}
    for number, task in enumerate(TASKS):
        folders[task] = base / task
        folders[task].mkdir()
        adapted = {
            name: matrix + changes[name][number] * ALPHA / RANK if name in changes else matrix
            for name, matrix in tensors.items()
        }
        save_file(adapted, folders[task] / "model.safetensors", {"format": "pt"})
        (folders[task] / "config.json").write_text((plain / "config.json").read_text())
    path = base / "published"
    path.mkdir()
    save_file(published_tensors, path / "model.safetensors")
    save_tokenizer(path)
    sizes = json.loads((plain / "config.json").read_text())
    del sizes["rope_parameters"]  # published as rotary_emb_base
    source = "jinaai/xlm-roberta-flash-implementation--"
    published_keys = {
        "architectures": ["XLMRobertaModel"],
        "auto_map": {
            "AutoConfig": f"{source}configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModel": f"{source}modeling_lora.XLMRobertaLoRA",
        },
        "emb_pooler": "mean",
        "load_trained_adapters": True,
        "lora_adaptations": TASKS,
        "lora_alpha": ALPHA,
        "lora_dropout_p": 0.0,
        "lora_rank": RANK,
        "matryoshka_dimensions": [16, 48],
        "model_type": "xlm-roberta",
        "position_embedding_type": "rotary",
        "rotary_emb_base": 20000.0,
        "task_instructions": dict.fromkeys(TASKS, "query: "),
        "truncate_dim": None,
        "use_flash_attn": True,
        "use_reg_tokens": False,
    }
    (path / "config.json").write_text(json.dumps(sizes | published_keys))
    return path, folders


def expected_of(folder):
    """Means of the hidden states of each text by transformers, ``(N, dim)``."""
    model = transformers.JinaEmbeddingsV3Model.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        states = [model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in IDS]
    return torch.stack(states).numpy()


@pytest.mark.parametrize("task", ["", *TASKS])
def test_vectors_of_a_task_are_those_of_the_model_with_its_adapter(task, published):
    path, folders = published
    expected = expected_of(folders[task])
    with load(path, lora=[path / task] if task else []) as model:
        vectors = model.embed(IDS, normalize=False)
    np.testing.assert_allclose(vectors, expected, atol=MAX_DIFFERENCE * np.abs(expected).max())


def test_a_converted_model_has_the_vectors_of_its_folder(published, tmp_path):
    path, _ = published
    file = tmp_path / "model.gguf"
    convert(path, file, ConvertOptions("F32"))
    assert open_checkpoint(file).architecture == "jina-bert-v3"
    with load(path) as folder, load(file) as converted:
        np.testing.assert_array_equal(folder.embed(IDS), converted.embed(IDS))
    adapter = path / TASKS[0]
    with load(path, lora=[adapter]) as folder, load(file, lora=[adapter]) as converted:
        np.testing.assert_allclose(folder.embed(IDS), converted.embed(IDS), atol=1e-5)


def test_a_path_with_an_unknown_task_or_none_is_refused_with_the_tasks(published):
    path, _ = published
    with pytest.raises(NotFound, match=r"it has retrieval\.query, retrieval\.passage"):
        read_adapter(path / "clustering")
    with pytest.raises(UsageError, match="adapters of 3 tasks") as caught:
        read_adapter(path)
    assert caught.value.hint == f"name one of them: --lora {path / TASKS[0]}"


def test_a_rank_or_a_number_of_tasks_unlike_the_factors_is_refused(published):
    path, _ = published
    before = (path / "config.json").read_text()
    try:
        change_json(path / "config.json", lora_rank=8)
        with pytest.raises(InvalidFormat, match="has the rank 4"):
            read_adapter(path / TASKS[0])
        change_json(path / "config.json", lora_adaptations=[*TASKS, "separation"])
        with pytest.raises(InvalidFormat, match="expected factors of 4 tasks"):
            read_adapter(path / TASKS[0])
    finally:
        (path / "config.json").write_text(before)


def test_an_interrupted_output_of_one_task_is_not_continued_with_another(
    published, bitnet, tmp_path, monkeypatch
):
    def interrupt(_file, _header=b""):
        raise KeyboardInterrupt

    path, _ = published
    (tmp_path / "texts.txt").write_text("a b\nc\n")
    words = ["embed", "--model", path, "--input", tmp_path / "texts.txt", "--output"]
    with monkeypatch.context() as patch:
        patch.setattr(GrowingFile, "publish", interrupt)
        assert bitnet(*words, tmp_path / "v.npy", "--lora", path / TASKS[0]).code
    assert bitnet(*words, tmp_path / "v.npy", "--lora", path / TASKS[1]).code == 0
    assert bitnet(*words, tmp_path / "expected.npy", "--lora", path / TASKS[1]).code == 0
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()

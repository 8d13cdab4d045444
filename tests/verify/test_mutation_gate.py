"""A corpus of damages over three containers: how many each stage of verify catches, and no fewer.

    pytest -s tests/verify/test_mutation_gate.py     prints "caught N of M" per stage

``against`` compares with an attestation and catches all. The other stages see only the damaged
file; what they catch alone is recorded here and may only grow.
"""

import copy

import pytest
from damages import DAMAGES, FILE_DAMAGES, small, write_folder, write_model

from bitnet.base import native
from bitnet.base.errors import BitnetError
from bitnet.formats.containers import open_checkpoint
from bitnet.verify import verify_model
from bitnet.verify.attest import attest, compare

STAGES = {
    "file": ("file", "metadata", "tensors", "template", "stop ids", "tokenizer"),
    "ranges": ("weights", "family", "vocabulary"),
    "numbers": ("forward pass",),
}
ALL = len(DAMAGES) + len(FILE_DAMAGES)
CONTAINERS = {
    "llama GGUF": ("llama", "Q4_1", write_model),
    "safetensors": ("llama", "F32", write_folder),
    "ternary GGUF": ("bitnet-b1.58", "I2_S", write_model),
}
# Number of damages that each stage catches, with either backend, and that any of them catches
# without an attestation ("alone"); may only grow.
# In a folder a token that tokenizer.json calls normal is special all the same, as in transformers,
# if tokenizer_config.json names it as the end: that damage changes nothing there.
RECORDED = {
    "llama GGUF": {"file": 11, "ranges": 31, "numbers": 8, "alone": 43},
    "safetensors": {"file": 11, "ranges": 28, "numbers": 8, "alone": 40},
    "ternary GGUF": {"file": 11, "ranges": 31, "numbers": 7, "alone": 43},
}


def damaged_models(model, write, folder):
    """Every damage's name and the model with it, written to *folder*."""
    for name, damage in DAMAGES.items():
        changed = copy.deepcopy(model)
        damage(changed)
        yield name, write(changed, folder)
    for name, damage in FILE_DAMAGES.items():
        path = write(model, folder)
        file = path if path.is_file() else path / "model.safetensors"
        file.write_bytes(damage(file.read_bytes()))
        yield name, path


def stages_that_catch(path, attestation):
    """Names of the stages that fail or warn; ``against`` where something differs."""
    unusual = {it.subject for it in verify_model(path) if it.severity in ("failed", "warning")}
    caught = {stage for stage, subjects in STAGES.items() if unusual & set(subjects)}
    caught |= {"alone"} if caught else set()
    try:
        differs = compare(attestation, open_checkpoint(path))
    except BitnetError:
        differs = ["it cannot be read"]
    return caught | ({"against"} if differs else set())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy meets infinite scales
@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_no_stage_catches_fewer_damages_than_it_did(
    container, backend, tmp_path, capsys, monkeypatch
):
    if backend == "native" and native.module() is None:
        pytest.skip("the compiled module is absent")
    monkeypatch.setenv("BITNET_BACKEND", backend)
    architecture, encoding, write = CONTAINERS[container]
    model = small(architecture, encoding)
    sound = write(model, tmp_path)
    assert {check.severity for check in verify_model(sound)} <= {"ok", "note"}
    attestation = attest(open_checkpoint(sound), trace=False)
    assert compare(attestation, open_checkpoint(sound)) == []
    stages_by_damage = {
        name: stages_that_catch(path, attestation)
        for name, path in damaged_models(model, write, tmp_path)
    }
    counts = {
        stage: sum(stage in stages for stages in stages_by_damage.values())
        for stage in (*STAGES, "alone", "against")
    }
    with capsys.disabled():
        print(
            f"\n{container}, {backend}: "
            + ", ".join(f"{s} caught {n} of {ALL}" for s, n in counts.items())
        )
    assert [name for name, stages in stages_by_damage.items() if "against" not in stages] == []
    fewer = {stage: counts[stage] for stage, n in RECORDED[container].items() if counts[stage] < n}
    assert not fewer, stages_by_damage

"""Low-rank adapters (LoRA) on disk: files of llama.cpp, and folders of PEFT.

    adapter = read_adapter(Path("adapter"))
    adapter.pairs["blk.0.attn_q.weight"].a  # (rank, inputs); in a folder by its model's own names

An adapted product is ``y = W x + scale * B (A x)`` (arXiv:2106.09685). PEFT's folders may also have
magnitudes of rows, to which the sum is scaled (DoRA, arXiv:2402.09353), factors of the embedding,
and whole matrices (``modules_to_save``). What changes a model in any other way is refused by name.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bitnet.base.errors import InvalidFormat, NotFound, Unsupported, UsageError
from bitnet.base.invocation import shell_quote
from bitnet.formats import safetensors
from bitnet.formats.checkpoint import Inventory, resolve_unnamed
from bitnet.formats.gguf import GGUF
from bitnet.formats.other_folders import ADAPTER, ADAPTER_WEIGHTS
from bitnet.formats.patterns import compile_pattern
from bitnet.quants import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

MERGE = "merge the adapter into its model with PEFT, and run that"  # hint of refusals
_AGAIN = "fetch the adapter again"
_MODEL = "config.json"
_TASKS = "lora_adaptations"  # key of config.json that lists the tasks
_LARGEST = float(np.finfo(np.float32).max)
_POOLER = "pooler."  # module that vectors of texts do not need
_TABLES = "_embeddings"  # end of the names of modules whose factors are in the other order
_OF_TASKS = re.compile(r"(?P<matrix>.+)\.parametrizations\.weight\.0\.lora_(?P<part>[AB])")
_FILE_NAME = re.compile(r"(?P<matrix>.+)\.lora_(?P<part>[ab])")
_FOLDER_NAME = re.compile(r"base_model\.model\.(?P<matrix>.+)\.lora_(?P<part>[AB])\.weight")
# PEFT adds (B A)^T = A^T B^T to an embedding: both factors are transposed, and swap their names.
_EMBEDDING = re.compile(r"base_model\.model\.(?P<matrix>.+)\.lora_embedding_(?P<part>[AB])")
_MAGNITUDE = re.compile(r"base_model\.model\.(?P<matrix>.+)\.lora_magnitude_vector(\.weight)?")
# A whole matrix, or the base matrix of an adapted embedding, which PEFT saves beside the factors.
_WHOLE = re.compile(r"base_model\.model\.(?P<matrix>.+?)(\.base_layer)?\.weight")

# Keys of adapter_config.json that say nothing about the computation, or that are read.
_NEUTRAL = frozenset(
    {"auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "revision"}
    | {"peft_version", "target_modules", "exclude_modules", "layers_to_transform"}
    | {"layers_pattern", "task_type", "runtime_config", "megatron_core", "qalora_group_size"}
    | {"r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora"}  # _scale reads them
    | {"use_dora", "modules_to_save"}  # their tensors say the same
    | {"fan_in_fan_out"}  # factors are the same for a model that stores matrices by columns
)
# Other keys, and the values with which they change nothing. Further keys must be false or empty.
_USUAL = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}


class Pair(NamedTuple):
    """The two factors of what is added to a matrix."""

    a: NDArray[np.float32]  # ``(rank, inputs)``
    b: NDArray[np.float32]  # ``(outputs, rank)``
    scale: float  # factor on their product


@dataclass(frozen=True)
class Change:
    """Change of one matrix, ``(outputs, inputs)``, by an adapter.

    It has factors, another matrix, or both: then the product is added to the other matrix.
    """

    pair: Pair | None  # factors of what is added to it; None: nothing
    # Euclidean norms to which its rows are scaled, ``(outputs,)``; None: they are not
    magnitudes: NDArray[np.float32] | None
    matrix: NDArray[np.float32] | None  # the other matrix, which replaces it; None: it stays

    @property
    def outputs(self) -> int:
        """Rows of the matrix."""
        if self.matrix is not None:
            return len(self.matrix)
        assert self.pair is not None, "there is one or the other, or both"
        return len(self.pair.b)

    def shapes(self) -> Iterator[tuple[int, ...]]:
        """Shapes that the matrix must have."""
        if self.matrix is not None:
            yield self.matrix.shape
        if self.pair is not None:
            yield (len(self.pair.b), self.pair.a.shape[1])

    def take(self, rows: NDArray[np.intp]) -> Change:
        """The change of these *rows* of the matrix; a matrix that replaces it stays whole.

        Only the embedding, the head and the token types are replaced: their rows are never taken in
        another order.
        """
        pair = self.pair
        magnitudes = self.magnitudes
        if pair is not None:
            pair = pair._replace(b=pair.b[rows])
        if magnitudes is not None:
            magnitudes = magnitudes[rows]
        return replace(self, pair=pair, magnitudes=magnitudes)

    def scale(self, factor: float) -> Change:
        """The change with the product of its pair multiplied by *factor*."""
        if self.pair is None:
            return self
        return replace(self, pair=self.pair._replace(scale=self.pair.scale * factor))

    def scale_rows(self, scaled: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Change:
        """The change with the rows of its product scaled; *scaled* returns B with scaled rows."""
        assert self.pair is not None, "a change without factors has no product"
        return replace(self, pair=self.pair._replace(b=scaled(self.pair.b)))


@dataclass(frozen=True)
class Adapter:
    """A low-rank adapter, as its file or folder has it."""

    path: Path  # its file or folder
    # by the name of the matrix, in GGUF if it is a file, else in its own model
    pairs: Mapping[str, Pair]
    architecture: str  # of the model it is for, as GGUF names it; "" if it does not say
    is_gguf: bool  # it is a file of llama.cpp
    # Euclidean norms of the rows of adapted matrices, ``(outputs,)``, by name as in *pairs*
    magnitudes: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    # matrices that replace those of the model, by name
    matrices: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def change(self, name: str) -> Change:
        """Its change of the matrix *name*."""
        return Change(self.pairs.get(name), self.magnitudes.get(name), self.matrices.get(name))


def read_adapter(path: Path) -> Adapter:
    """The adapter at *path*: a GGUF file, or a folder with ``adapter_config.json``.

    If a model's own tensors have adapters of tasks (Jina v3), ``FOLDER/TASK`` names one of them:
    no file or folder has that name.
    """
    path = resolve_unnamed(path)
    if path.is_dir():
        if (path / ADAPTER).is_file():
            return _of_folder(path)
        tasks = _tasks_of(path)
        if tasks:
            raise UsageError(
                f"{path.name} has adapters of {len(tasks)} tasks: {', '.join(tasks)}",
                hint=f"name one of them: --lora {shell_quote(path / tasks[0])}",
            )
        raise NotFound(f"{path} has no {ADAPTER}", hint="name a folder that PEFT saved")
    if not path.exists() and (tasks := _tasks_of(path.parent)):
        return _of_task(path.parent, path.name, tasks)
    if not path.is_file():
        raise NotFound(
            f"{path} does not exist", hint="name a GGUF file, or a folder that PEFT saved"
        )
    return _of_file(path)


def _of_file(path: Path) -> Adapter:
    """The adapter in the GGUF file *path*."""
    with GGUF.open(path) as file:
        keys = file.metadata
        for name, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
            if (kind := keys.get(name)) != expected:
                mismatch = f"it has no {name}" if kind is None else f"its {name} is {kind!r}"
                raise InvalidFormat(
                    f"{path.name} is not a LoRA adapter: {mismatch}",
                    hint="write one with llama.cpp's convert_lora_to_gguf.py",
                )
        if keys.get("adapter.alora.invocation_tokens"):
            raise _refusal(
                path, "adapter.alora.invocation_tokens", "it acts only behind certain tokens"
            )
        alpha = _number(path, "adapter.lora.alpha", keys.get("adapter.lora.alpha", 0.0))
        factors = {name: registry.dequantize(file.weight(name)) for name in file.tensors}
        architecture = file.architecture
    pairs = _pairs(path, factors, _FILE_NAME, lambda _, rank: alpha / rank if alpha else 1.0)
    return Adapter(path, pairs, architecture, is_gguf=True)


def _of_folder(path: Path) -> Adapter:
    """The adapter in PEFT's folder *path*."""
    files = Inventory(path)
    config = files.json(ADAPTER, dict)
    for key, value in config.items():
        usual = _USUAL.get(key)
        changes = value not in usual if usual else bool(value)
        if key not in _NEUTRAL and changes:
            raise _refusal(path, key, f"it is {value!r:.60}")
    if "peft_type" not in config:
        raise InvalidFormat(f"{path.name}: {ADAPTER} names no peft_type", hint=_AGAIN)
    if ADAPTER_WEIGHTS not in files:
        raise NotFound(f"{path} has no {ADAPTER_WEIGHTS}", hint="save the adapter as safetensors")
    factors = {}
    magnitudes = {}
    matrices = {}
    for name, tensor in safetensors.read_file(files, ADAPTER_WEIGHTS).items():
        if not tensor.quant.known:
            raise _refusal(path, name, f"it is {tensor.quant.name}")
        values = registry.dequantize(tensor)
        if match := _EMBEDDING.fullmatch(name):
            swapped = {"A": "B", "B": "A"}[match["part"]]
            factors[f"base_model.model.{match['matrix']}.lora_{swapped}.weight"] = values.T
        elif match := _MAGNITUDE.fullmatch(name):
            magnitudes[f"{match['matrix']}.weight"] = _finite(values, name, path).reshape(-1)
        elif _FOLDER_NAME.fullmatch(name) is None and (match := _WHOLE.fullmatch(name)):
            matrices[f"{match['matrix']}.weight"] = _finite(values, name, path)
        else:
            factors[name] = values
    pairs: dict[str, Pair] = {}
    if factors or not matrices:  # without both, the error is that it has no tensors
        pairs = _pairs(path, factors, _FOLDER_NAME, partial(_scale, path, config))
    named_pairs = {f"{name}.weight": pair for name, pair in pairs.items()}
    for name in magnitudes.keys() - named_pairs.keys():
        raise InvalidFormat(f"{path.name}: {name} has magnitudes and no factors", hint=_AGAIN)
    if config.get("use_dora") and magnitudes.keys() != named_pairs.keys():
        raise InvalidFormat(
            f"{path.name}: {ADAPTER} says use_dora, and not all factors have magnitudes",
            hint=_AGAIN,
        )
    return Adapter(path, named_pairs, "", is_gguf=False, magnitudes=magnitudes, matrices=matrices)


def _tasks_of(path: Path) -> list[str]:
    """Tasks for which the model's folder at *path* has adapters."""
    if not (path / _MODEL).is_file():
        return []
    tasks = Inventory(path).json(_MODEL, dict).get(_TASKS)
    return [task for task in tasks if isinstance(task, str)] if isinstance(tasks, list) else []


def _of_task(path: Path, task: str, tasks: Sequence[str]) -> Adapter:
    """The adapter of a *task* of the model's folder at *path*, which has those of all *tasks*.

    Factors of all tasks are one tensor. What is added to an embedding is ``A B``, to another matrix
    ``B A``.
    """
    if task not in tasks:
        raise NotFound(
            f"{path.name} has no adapter of the task {task!r}; it has {', '.join(tasks)}",
            hint=f"--lora {shell_quote(path / tasks[0])}",
        )
    files = Inventory(path)
    config = files.json(_MODEL, dict)
    number = tasks.index(task)
    factors = {}
    for name, tensor in safetensors.read_folder(files).items():
        match = _OF_TASKS.fullmatch(name)
        if match is None or _POOLER in match["matrix"]:
            continue
        if len(tensor.shape) != 3 or tensor.shape[0] != len(tasks) or not tensor.quant.known:
            raise InvalidFormat(
                f"{path.name}: {name} has the shape {tensor.shape} in {tensor.quant.name}, "
                f"expected factors of {len(tasks)} tasks",
                hint=_AGAIN,
            )
        values = registry.dequantize(tensor)[number]
        part = match["part"].lower()
        if match["matrix"].endswith(_TABLES):
            part = {"a": "b", "b": "a"}[part]
        factors[f"{match['matrix']}.lora_{part}"] = values
    peft_keys = {"r": config.get("lora_rank", 4), "lora_alpha": config.get("lora_alpha", 1)}
    scale = partial(_scale, path, peft_keys, stated_in="config.json")
    pairs = _pairs(path, factors, _FILE_NAME, scale)
    return Adapter(
        path / task, {f"{name}.weight": pair for name, pair in pairs.items()}, "", is_gguf=False
    )


def _finite(values: NDArray[np.float32], name: str, path: Path) -> NDArray[np.float32]:
    """*values* of the tensor *name*, if all of them are finite."""
    if not np.isfinite(values).all():
        raise InvalidFormat(f"{path.name}: {name} is infinite or NaN", hint=_AGAIN)
    return values


def _number(path: Path, key: str, value: object) -> float:
    """*value* of the *key*, if it is a number that a float32 can store."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return float(value)
    raise InvalidFormat(
        f"{path.name}: {key} is {value!r:.60}, expected a number that a float32 can store",
        hint=_AGAIN,
    )


def _scale(
    path: Path, config: Mapping[str, Any], module: str, rank: int, *, stated_in: str = ADAPTER
) -> float:
    """Factor on the product of the *module*, as PEFT computes it; *stated_in* names the file."""
    expected = _of_pattern(path, config, "rank_pattern", module, config.get("r"))
    if expected != rank:
        raise InvalidFormat(
            f"{path.name}: {module} has the rank {rank}, {stated_in} says {expected!r:.60}",
            hint=_AGAIN,
        )
    stated_alpha = _of_pattern(path, config, "alpha_pattern", module, config.get("lora_alpha"))
    alpha = _number(path, "lora_alpha", stated_alpha)
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _of_pattern(path: Path, config: Mapping[str, Any], key: str, module: str, default: Any) -> Any:
    """Value of the first pattern below *key* that the end of *module* matches, else *default*."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, dict):
        raise InvalidFormat(
            f"{path.name}: {key} is {patterns!r:.60}, expected numbers by modules", hint=_AGAIN
        )
    for pattern, value in patterns.items():
        expression = rf"(.*\.)?({pattern})$"
        if compile_pattern(expression, f"{path.name}: {key}", hint=_AGAIN).match(module):
            return value
    return default


def _pairs(
    path: Path,
    factors: Mapping[str, NDArray[np.float32]],
    pattern: re.Pattern[str],
    scale_of: Callable[[str, int], float],
) -> dict[str, Pair]:
    """The pair of *factors* of each matrix, by its name; their names have the form *pattern*.

    *scale_of* returns the factor on a product, by the name of the matrix and the rank.
    """
    halves: dict[str, dict[str, NDArray[np.float32]]] = {}
    for name, values in factors.items():
        match = pattern.fullmatch(name)
        if match is None:
            raise _refusal(path, name, "it is not a factor of a low-rank product")
        halves.setdefault(match["matrix"], {})[match["part"].lower()] = values
    if not halves:
        raise InvalidFormat(f"{path.name} has no tensors", hint=_AGAIN)
    pairs = {}
    for name, half in halves.items():
        if len(half) < 2:
            raise InvalidFormat(f"{path.name}: one factor of {name} is missing", hint=_AGAIN)
        a = half["a"]
        b = half["b"]
        if a.ndim != 2 or b.ndim != 2 or len(a) != b.shape[1]:
            raise InvalidFormat(
                f"{path.name}: factors of {name} have the shapes {a.shape} and {b.shape}",
                hint=_AGAIN,
            )
        if not len(a):
            raise InvalidFormat(f"{path.name}: factors of {name} have the rank 0", hint=_AGAIN)
        pairs[name] = Pair(a, b, scale_of(name, len(a)))
        if not all(np.isfinite(numbers).all() for numbers in pairs[name]):
            raise InvalidFormat(f"{path.name}: factors of {name} are infinite or NaN", hint=_AGAIN)
    return pairs


def _refusal(path: Path, what: str, why: str) -> Unsupported:
    return Unsupported(
        f"{path.name}: {what}: {why}; only LoRA and DoRA are computed",
        hint=MERGE,
    )

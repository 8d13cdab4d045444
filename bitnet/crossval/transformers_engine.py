"""Hugging Face's transformers as a reference engine, in the process of that engine."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bitnet.crossval.modules import BLOCK, EMBEDDINGS, LOGITS, STACK, key_of_call, stem
from bitnet.crossval.trace import EngineFailed
from bitnet.families.family import families
from bitnet.families.tensor_names import gguf_name, layers_of_stack, name_with_states

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    from bitnet.families.family import Family

# Prefix of weights that a folder may lack: a pooler reads the hidden states, which are compared
# without it.
_POOLER = "pooler."
# Path of the module of a block, with its number.
_BLOCK = re.compile(r"(?:\w+\.)*?(?:layers|h|blocks|layer)\.(\d+)")


def import_module(name: str) -> ModuleType:
    """Import the module *name*; one that does not load is an :class:`EngineFailed`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EngineFailed(f"the Python package {name} does not load: {error}") from error


def _keep_alibi_in_float32(torch: Any, falcon: Any) -> None:
    """Compute the ALiBi biases of the module *falcon* in float32, as the rest of the pass.

    ``build_alibi_tensor`` of transformers 5.24 multiplies slopes by positions in bfloat16, whatever
    the type of the model: from position 256 on, neighbours get one bias. This process runs the
    reference alone, so nothing else meets the changed module.
    """
    build = falcon.build_alibi_tensor
    to_bfloat16 = torch.Tensor.bfloat16

    def build_in_float32(*arguments: Any, **named: Any) -> Any:
        torch.Tensor.bfloat16 = torch.Tensor.float
        try:
            return build(*arguments, **named)
        finally:
            torch.Tensor.bfloat16 = to_bfloat16

    falcon.build_alibi_tensor = build_in_float32


class TransformersEngine:
    """A model and a tokenizer of transformers.

    Attributes:
        library: file of the library that computes.
        changes: difference from the published code, for the report; empty if there is none.
    """

    def __init__(self, path: str, threads: int, weights: bool, *, headless: bool) -> None:
        """Load the model and the tokenizer in the folder *path*.

        Args:
            path: the folder.
            threads: compute threads.
            weights: load the model too, not the tokenizer alone.
            headless: the model has no output layer; products of its hidden states and embeddings
                are its logits.
        """
        torch = import_module("torch")
        transformers = import_module("transformers")
        self._torch = torch
        self._model = cast("Any", None)
        self._headless = headless
        self._prompt_length = 0
        self.changes = ""
        cpu_library = Path(torch.__file__ or "").parent / "lib" / "libtorch_cpu.so"
        self.library = cpu_library if cpu_library.exists() else Path(torch._C.__file__ or "")
        if weights:
            torch.set_num_threads(threads)
            auto_class = transformers.AutoModel if headless else transformers.AutoModelForCausalLM
            self._model, loading = auto_class.from_pretrained(
                path, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
            # Packed ternary weights get the type in config.json, not the requested one.
            torch.nn.Module.float(self._model).eval()
            missing = sorted(
                name for name in loading["missing_keys"] if not name.startswith(_POOLER)
            )
            if missing:  # transformers filled them with random numbers
                raise EngineFailed(f"the folder has no {missing[0]} ({len(missing)} are missing)")
            if self._model.config.model_type == "falcon" and self._model.config.alibi:
                _keep_alibi_in_float32(torch, import_module(type(self._model).__module__))
                self.changes = "with ALiBi in float32 instead of bfloat16"
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                path, local_files_only=True
            )
        except (OSError, ValueError):
            self._tokenizer = None

    def tokenize(self, text: str, *, add_special: bool) -> list[int] | None:
        """*text* as ids; None without a tokenizer."""
        if self._tokenizer is None:
            return None
        return list(self._tokenizer(text, add_special_tokens=add_special)["input_ids"])

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of *ids*; special tokens by name."""
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    @contextmanager
    def context(self, _size: int) -> Iterator[Callable[..., NDArray[np.float32]]]:
        """Function that appends ids to a new sequence and returns their logits.

        It has the arguments of that of :meth:`bitnet.crossval.llama_library.Llama.context`.
        """
        yield partial(self._append, [])

    def _append(
        self, sequence: list[int], ids: Sequence[int], *, all_positions: bool = True
    ) -> NDArray[np.float32]:
        """Append *ids* to *sequence*, and return their logits, ``(len(ids), vocabulary)``."""
        if not sequence:
            self._prompt_length = len(ids)
        sequence += ids
        if not all_positions:  # without a cache, the next pass runs the whole sequence
            return np.empty((0, 0), dtype=np.float32)
        with self._torch.no_grad():
            answer = self._model(self._torch.tensor([sequence]), **self._prefix_argument(sequence))
            if self._headless:
                embeddings = self._model.get_input_embeddings().weight
                logits = answer.last_hidden_state[0] @ embeddings.T
            else:
                logits = answer.logits[0]
        rows: NDArray[np.float32] = logits[-len(ids) :].float().numpy()
        return rows

    def _prefix_argument(self, sequence: Sequence[int]) -> dict[str, Any]:
        """Argument of a prefix LM that marks the prompt in *sequence*, else empty.

        The positions of the prompt attend to each other in both directions.
        """
        if not getattr(self._model.config, "prefix_lm", False):
            return {}
        prompt = self._prompt_length
        return {
            "token_type_ids": self._torch.tensor([[1] * prompt + [0] * (len(sequence) - prompt)])
        }

    def intermediates(
        self, ids: Sequence[int], *, family: str, whole: Sequence[str], first: int
    ) -> dict[str, NDArray[np.float32]]:
        """Inputs and results of the modules in a pass over *ids*, by key.

        Args:
            ids: the prompt.
            family: title of the family whose names the weights have.
            whole: keys of the values that are returned for every id.
            first: values that are not in *whole* are returned from the id of this index on.
        """
        values: dict[str, NDArray[np.float32]] = {}
        calls: Counter[str] = Counter()
        (gguf_family,) = [entry for entry in families() if entry.title == family]
        paths = [path for path, _ in self._model.named_parameters()]
        stack = layers_of_stack(paths, gguf_family)
        tensors = {gguf_name(path, gguf_family, stack) for path in paths}

        def keep(key: str, tensor: Any) -> None:
            own_key = key_of_call(key, calls[key])
            calls[key] += 1
            rows = _rows_of(tensor, len(ids))
            if rows is not None:
                begin = 0 if own_key in whole else first
                values[own_key] = rows[begin:].clone().numpy()

        handles = []
        for path, module in self._model.named_modules():
            for key, is_input in self._keys_of(path, module, gguf_family, tensors, stack):
                is_block = key.startswith(BLOCK)
                handle = _hook(module, partial(keep, key), is_input=is_input, is_block=is_block)
                handles.append(handle)
        try:
            logits = self._append([], ids)
        finally:
            for handle in handles:
                handle.remove()
        values[LOGITS] = logits[first:]
        return values

    def _keys_of(
        self, path: str, module: Any, family: Family, tensors: Container[str], stack: int
    ) -> Iterator[tuple[str, bool]]:
        """Keys of the input and output of *module*, each with True for the input.

        *tensors* are the GGUF names of the model's tensors, *stack* is the number of layers in
        each of its stacks.
        """
        weight = getattr(module, "weight", None)
        name = gguf_name(f"{path}.weight", family, stack) if weight is not None else ""
        is_known = name and not name.startswith(path)  # a name without a rule stays as it is
        name = name_with_states(name, family, tensors)
        if is_known and not isinstance(module, self._torch.nn.Embedding):
            yield f"{stem(name)} out", False
            if not any(module.children()):
                yield f"{stem(name)} in", True
        block = _BLOCK.fullmatch(path)
        # Blocks that read images or sound have no GGUF name.
        if block and gguf_name(f"{path}.weight", family):
            stacks = (at for at, name in enumerate(family.stacks) if f"{name}." in path)
            number = int(block[1]) + stack * next(stacks, 0)
            yield f"{BLOCK}{number}", False
            if number == 0:
                yield EMBEDDINGS, True
        for number, name_of_stack in enumerate(family.stacks):
            if path.rpartition(".")[2] == name_of_stack:
                yield f"{STACK}{number}", False


def _hook(module: Any, keep: Callable[[Any], None], *, is_input: bool, is_block: bool) -> Any:
    """Handle of a hook that calls *keep* with the input or the output of *module*.

    Some blocks return a tuple that begins with the hidden states. Tuples of other modules, such as
    routers, have no fixed order: they are passed on whole, and have no rows to keep.
    """

    def on_input(_module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        keep(arguments[0] if arguments else named.get("hidden_states"))

    def on_output(_module: Any, _arguments: Any, result: Any) -> None:
        keep(result[0] if isinstance(result, tuple) and is_block else result)

    if is_input:
        return module.register_forward_pre_hook(on_input, with_kwargs=True)
    return module.register_forward_hook(on_output)


def _rows_of(tensor: Any, count: int) -> Any:
    """*tensor* as a row for each of *count* positions, None if its axes do not show the positions.

    The axis of the heads may come before that of the positions or after it, so only one of them may
    have the size *count*; and experts read only some of the positions.
    """
    shape = tuple(getattr(tensor, "shape", ()))
    if len(shape) > 2 and shape[0] == 1:
        tensor = tensor[0]
        shape = shape[1:]
    if len(shape) < 2 or shape[0] != count or shape[1:-1].count(count):
        return None
    return tensor.detach().float().reshape(count, -1)

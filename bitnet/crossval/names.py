"""Our names for llama.cpp's intermediates.

A node of its graph has a name, an operation, and the weight that it reads. Weights are called as in
the model's file, on both sides: the product with ``blk.0.attn_q.weight`` is ``Qcur_product-0`` in
the program of every family, whatever the node is called. Only what no weight gives is found by its
name, and one name has different values in some families, which follow from the family's blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from bitnet.crossval.prefix import results
from bitnet.families.blocks import Experts, FeedForward
from bitnet.families.family import of_gguf
from bitnet.kernels.instructions import Linear, Norm, Rotate, Split
from bitnet.kernels.mixer_instructions import Convolve
from bitnet.kernels.program import Mark
from bitnet.models.hidden_program import layout

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from bitnet.families.blocks import Branch, ModelConfig
    from bitnet.kernels.program import Instruction, Program, Register

# Names in the graphs of llama.cpp, each with that of :meth:`Model.trace`, where the two differ in
# every family. Of several names for one value of ours, a later one here is a later state of it.
_EVERYWHERE = {
    "embd": "embed",
    "inp_embd": "embed",
    "inp_scaled": "embed",
    "inp_embd_scaled": "embed",
    "model.embed_tokens": "embed",
    "model.input_embed": "embed",
    "Qcur_attn_temp_scaled": "Qcur",
    "Qcur_rope": "Qcur",
    "Kcur_rope": "Kcur",
    "Qcur-post-rope": "Qcur",
    "Kcur-post-rope": "Kcur",
    "Vcur-post-rope": "Vcur",
    "nemotron_h_block_out": "l_out",
    "ffn_swiglu": "ffn_act",
    "ffn_geglu": "ffn_act",
    "ffn_gate_par": "ffn_act",
    "ffn_up_gate": "ffn_act",
    "ffn_moe_logits_biased": "ffn_moe_logits",
}
# Values that llama.cpp names before it applies the factor on the result of a branch.
_BEFORE_SCALE_OF_EXPERTS = ("ffn_moe_out", "ffn_shexp")
_BEFORE_SCALE = ("ffn_out", *_BEFORE_SCALE_OF_EXPERTS)
# Activations of networks without a gate, in the order of computation. With a gate, our ``ffn_act``
# is the product with it, which has another name.
_WITHOUT_GATE = ("ffn_gelu", "ffn_relu", "ffn_sqr(relu)", "ffn_xielu")
# Results of a shared expert with a gate, in different graphs.
_GATED_SHARED = ("ffn_shexp_out", "ffn_shexp_gated")
_SEPARATOR = "|"
# End of the name of the norm in front of a router. Both engines divide by the root of the width:
# llama.cpp the input of this norm, we the router, so that the products agree and the norms do not.
# Other tensors with such a name are factors on the result of a product.
_ROUTER_NORM = "ffn_gate_inp.scale"

_LOGITS = "result_output"

# Names, and beginnings of names, of ggml's operations.
_PRODUCT = "MUL_MAT"
_ROTATION = "ROPE"
_SILU = "SILU"
# Operations that read no weight: their node has the weight of their input.
PASSED_ON = (_ROTATION, _SILU, "UNARY", "RESHAPE", "VIEW", "PERMUTE", "CONT")


class Node(NamedTuple):
    """A value in the graph of llama.cpp."""

    name: str  # in the graph
    operation: str  # ggml's name of the operation that computed it
    weight: str  # name of the weight that it, or its input, is computed from; empty: none

    @property
    def operation_name(self) -> str:
        """Its name without the number of the layer."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def key(self) -> str:
        """The node as the name of an array in a file."""
        return _SEPARATOR.join(self)

    @classmethod
    def from_key(cls, key: str) -> Node:
        """The node that has *key*; one that is a name alone has no operation and no weight."""
        parts = key.rsplit(_SEPARATOR, 2)
        if len(parts) < 3:
            return cls(key, "", "")
        name, operation, weight = parts
        return cls(name, operation, weight)


@dataclass(frozen=True)
class WeightSource:
    """Weight that a value of a program is computed from, and what is done to the product."""

    weight: str  # name of the tensor: the bias where there is one
    scale: float = 1.0  # factor that is part of our tensor, and that llama.cpp applies later
    then: str = ""  # ggml's operation on the product, as a prefix of its name; empty: none
    is_part: bool = False  # the value has only some columns of the product


def sources_of(
    program: Program, scales: Mapping[str, float], tensors: Container[str]
) -> dict[str, WeightSource]:
    """Source of each value that *program* marks, by name; values without a weight have none.

    Args:
        program: the pass.
        scales: factors that tensors are multiplied with when they are loaded, by name.
        tensors: names of the model's tensors.
    """
    sources: dict[Register, WeightSource] = {}
    by_name: dict[str, WeightSource] = {}
    for step in program.instructions:
        if isinstance(step, Mark):
            if step.register in sources:
                by_name[step.name] = sources[step.register]
            continue
        changed = dict(_sources_behind(step, sources, scales, tensors))
        for register in results(step):
            sources.pop(register, None)
        sources |= changed
    return by_name


def _sources_behind(
    step: Instruction,
    sources: Mapping[Register, WeightSource],
    scales: Mapping[str, float],
    tensors: Container[str],
) -> Iterator[tuple[Register, WeightSource]]:
    """Registers that *step* changes, each with its source; *sources* are those before *step*."""
    if isinstance(step, Linear):
        for out, weight, bias in zip(step.outs, step.weights, step.biases, strict=True):
            factor = f"{weight.removesuffix('weight')}scale"
            if factor.endswith(_ROUTER_NORM):
                yield out, WeightSource(bias or weight)
            else:
                last = bias or (factor if factor in tensors else weight)
                yield out, WeightSource(last, scales.get(weight, 1.0))
    elif isinstance(step, Norm) and step.weight and not step.weight.endswith(_ROUTER_NORM):
        yield step.out, WeightSource(step.bias or step.weight, scales.get(step.weight, 1.0))
    elif isinstance(step, Convolve):
        yield step.out, WeightSource(step.bias or step.weights[0], then=_SILU if step.silu else "")
    elif isinstance(step, Rotate) and step.x in sources:
        yield step.out, replace(sources[step.x], then=_ROTATION)
    elif isinstance(step, Split) and step.x in sources:
        for out in step.outs:
            yield out, replace(sources[step.x], is_part=True)


@dataclass(frozen=True)
class Names:
    """Translation of the intermediates of one model."""

    # our names by llama.cpp's, where the two differ; empty: our program has no such value
    ours: Mapping[str, str]
    scales: Mapping[str, float]  # factors on values, by our name without the layer
    sources: Mapping[str, WeightSource]  # of the values that a weight gives, by our name
    head: str = ""  # weight whose product is the logits, where these may lack a name

    def list_selectors(self, names: Iterable[str]) -> list[str]:
        """Prefixes of node names, and names of weights, that select the nodes of *names*.

        *names* are ours. The result is the field ``whole`` of a request to reference_process.py.
        """
        needed = set(names)
        operations = {name.rpartition("-")[0] for name in needed}
        theirs = (name for name, ours in self.ours.items() if ours in operations)
        weights = (self.sources[name].weight for name in needed & self.sources.keys())
        return sorted({*operations, *theirs, *weights})

    def translate(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """*arrays*, by the keys of their nodes, as our values, by our names."""
        nodes = {Node.from_key(key): values for key, values in arrays.items()}
        by_our_name = self._by_their_name(nodes)

        # What a weight gives is the last node with that weight, whatever the node is called.
        for name, source in self.sources.items():
            if source.is_part and not source.then:
                continue  # no node of a weight has these columns alone
            by_our_name.pop(name, None)
            candidates = [
                node
                for node in nodes
                if node.weight == source.weight
                and _follows(node.operation, source.then)
                and not _is_of_another_layer(node, name)
            ]
            if len(candidates) > 1 and source.is_part:
                candidates = [node for node in candidates if self._our_name(node) == name]
            # A weight may be used several times in one layer: uses and nodes are in one order.
            uses = self._list_uses(name, source)
            if candidates and len(candidates) == len(uses):
                chosen = candidates[uses.index(name)]
                by_our_name[name] = scale_values(nodes[chosen], source.scale)
            elif candidates:
                by_our_name[name] = scale_values(nodes[candidates[-1]], source.scale)

        # Logits without a name are the product with the head.
        if self.head and _LOGITS not in by_our_name:
            products = [
                node
                for node in nodes
                if (node.operation, node.weight) == (_PRODUCT, self.head) and "-" not in node.name
            ]
            if products:
                by_our_name[_LOGITS] = nodes[products[-1]]
        return by_our_name

    def _list_uses(self, name: str, source: WeightSource) -> list[str]:
        """Our names of what the weight of *source* gives in the layer of *name*, in order."""
        layer = name.rpartition("-")[2]
        return [
            our_name
            for our_name, candidate in self.sources.items()
            if (candidate.weight, candidate.then) == (source.weight, source.then)
            and our_name.rpartition("-")[2] == layer
        ]

    def _by_their_name(self, nodes: Mapping[Node, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Values by our names, found by the names of their nodes alone.

        Several nodes may be states of one value of ours; the latest counts. That with our own name
        is the earliest, and the others are in the order of the table of names.
        """
        name_of_weight = {
            source.weight: name
            for name, source in self.sources.items()
            if not source.is_part and not source.then
        }
        order = {operation: number for number, operation in enumerate(self.ours)}
        by_our_name: dict[str, NDArray[Any]] = {}
        for node in sorted(nodes, key=lambda node: order.get(node.operation_name, -1)):
            ours = self._our_name(node)
            is_of_a_weight = node.weight in name_of_weight and _follows(node.operation, "")
            if is_of_a_weight and name_of_weight[node.weight] != ours:
                continue  # llama.cpp gives this name to the result of another weight
            if ours:
                scale = self.scales.get(ours.rpartition("-")[0], 1.0)
                by_our_name[ours] = scale_values(nodes[node], scale)
        return by_our_name

    def _our_name(self, node: Node) -> str:
        """Our name for what *node* is called; empty: it is another value."""
        operation, dash, layer = node.name.rpartition("-")
        if not dash:
            return self.ours.get(node.name, node.name)
        ours = self.ours.get(operation, operation)
        return f"{ours}-{layer}" if ours else ""


def scale_values(values: NDArray[Any], factor: float) -> NDArray[Any]:
    """*values* times *factor*; with a factor of 1, the array itself.

    Nodes without a factor must not be multiplied: some that are not compared hold memory that the
    engine never wrote, and NumPy warns of values there that are not numbers.
    """
    return values if factor == 1.0 else values * factor


def _is_of_another_layer(node: Node, name: str) -> bool:
    """True if *node* and our *name* end with numbers that differ: layers may share weights."""
    theirs = node.name.rpartition("-")[2]
    ours = name.rpartition("-")[2]
    return theirs.isdigit() and ours.isdigit() and theirs != ours


def _follows(operation: str, then: str) -> bool:
    """True if *operation* of ggml is what *then* requires: without it, one that reads a weight."""
    if then:
        return operation.startswith(then)
    return not operation.startswith(PASSED_ON)


def names_for(
    config: ModelConfig, program: Program, tensors: Container[str], fork_names: Mapping[str, str]
) -> Names:
    """Names in llama.cpp's graph of a model of *config*.

    Args:
        config: the model.
        program: its pass.
        tensors: names of its tensors.
        fork_names: names in the graphs of a fork of llama.cpp, which override llama.cpp's.
    """
    names = {**_EVERYWHERE, **dict(_of_networks(config)), **fork_names}
    if config.text_rows:
        # Our ``embed`` is the embedding of the token alone, our ``inpL`` also has those of text and
        # position.
        names["inp_embd"] = "inpL"
    # The factor on the results of branches, if all have the same, or all branches with experts do.
    branches = [branch for block in config.blocks for branch in block]
    factors: dict[str, float] = {}
    scales = {branch.scale for branch in branches}
    if len(scales) == 1:
        factors = dict.fromkeys(_BEFORE_SCALE, scales.pop())
    else:
        of_experts = {branch.scale for branch in branches if _has_experts(branch)}
        if len(of_experts) == 1:
            factors = dict.fromkeys(_BEFORE_SCALE_OF_EXPERTS, of_experts.pop())
    head = ""
    family = of_gguf(config.architecture)
    if family and family.llama_cpp and not family.llama_cpp.names_logits:
        head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    sources = sources_of(program, layout(config).scales, tensors)
    return Names(names, factors, sources, head)


def _has_experts(branch: Branch) -> bool:
    return any(isinstance(mixer, Experts) for mixer in branch.every())


def _of_networks(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Names that follow from the networks and the mixtures of experts of *config*."""
    for mixer in config.mixers():
        if isinstance(mixer, FeedForward) and not mixer.gated:
            yield from dict.fromkeys(_WITHOUT_GATE, "ffn_act").items()
        if isinstance(mixer, Experts):
            if mixer.biased and mixer.routing.gating == "softmax_chosen":
                yield "ffn_moe_probs", "ffn_moe_logits"  # with its bias
            if mixer.shared_gated:
                yield from dict.fromkeys(_GATED_SHARED, "ffn_shexp").items()

"""Values of llama.cpp's graph, by our names."""

import numpy as np

from bitnet.crossval.names import Names, Node, WeightSource

VALUES = np.ones((1, 2), dtype=np.float32)


def keyed(**nodes):
    """*nodes* by the keys that they have in a file; each is an operation, a weight and values."""
    return {
        Node(name.replace("_", "-"), operation, weight).key: values
        for name, (operation, weight, values) in nodes.items()
    }


def test_memory_that_the_engine_never_wrote_is_translated_without_arithmetic():
    # A signalling NaN: any arithmetic with it raises "invalid".
    never_written = np.array([[0x7F800001]], dtype=np.uint32).view(np.float32)
    arrays = keyed(node=("DUP", "", never_written))
    with np.errstate(invalid="raise"):
        assert [*Names({}, {}, {}).translate(arrays)] == ["node"]


def test_the_result_of_another_weight_is_not_taken_by_its_name():
    sources = {"attn-0": WeightSource("o.bias"), "norm-0": WeightSource("n.weight")}
    arrays = keyed(
        kqv_0=("CONT", "", VALUES),
        node_0=("MUL_MAT", "o.weight", VALUES),
        norm_0=("MUL", "n.weight", 3 * VALUES),
    )
    # In the graph of BERT, too, two nodes are called kqv-0: the attention before its output, and
    # the sum of the output with its bias.
    arrays |= {Node("kqv-0", "ADD", "o.bias").key: 2 * VALUES}
    values = Names({}, {}, sources).translate(arrays)
    assert {name: values[name][0, 0] for name in ("kqv-0", "attn-0", "norm-0")} == {
        "kqv-0": 1,
        "attn-0": 2,
        "norm-0": 3,
    }

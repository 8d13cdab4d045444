"""Compiled programs give the bits of their instructions run one by one, and refuse wrong ones."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_keys import FAMILIES, HYBRIDS, LAYERED, MIXTURES
from tiny_models import in_encoding, tiny

from bitnet.base import native
from bitnet.families.blocks import Attention, Branch, KeysValues
from bitnet.formats.checkpoint import Checkpoint
from bitnet.kernels.instructions import Attend, Embed, Linear
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.kv_codes import PAGE, page_words
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Interpreter, Program, Register, Segment
from bitnet.models.hidden_program import hidden_program
from bitnet.models.load import config_from, load_model
from bitnet.models.transformer import bind
from bitnet.quants import types
from bitnet.quants.registry import PACKED_U8
from bitnet.quants.weight import Weight

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")
F32 = types.by_name("F32")
ENCODINGS = ("F32", "F16", "BF16", "Q8_0", "Q4_K", "TQ2_0", "I2_S")


def both_ways(checkpoint, batches):
    """Hidden states of a pass over each of *batches*: all compiled, then all interpreted."""
    ops = NativeOps()
    config = config_from(checkpoint)
    weights = bind(checkpoint, config, ops)
    program = hidden_program(config, weights)
    results = []
    for run in (ops.compile(program, weights), Interpreter(program, weights, ops).run):
        caches = [KVCache(config, 64) for _ in batches[0]]
        results.append(
            [
                run([Segment(ids, cache, "all") for ids, cache in zip(batch, caches, strict=True)])
                for batch in batches
            ]
        )
    return results


# A segment of Graph.run is a tuple: its number of tokens, the position of the first one, its number
# of outputs, the number of its set of RoPE frequencies (add_context), pages, state and rows.
NONE = np.empty(0, np.float32)  # a segment without a state, or without rows of its own
# Fields of Attend with their neutral values.
PLAIN_ATTENTION = {
    "place": 0,
    "scale": 1.0,
    "softcap": 0.0,
    "sinks": None,
    "slopes": None,
    "distances": None,
    "causal": True,
}


def graph_of(widths, tables):
    """A graph of the module with registers of these *widths*, each in a place of its own.

    *tables* are those of pages: numbers of layers and heads, width of a head, and window.
    """
    graph = NATIVE.Graph()
    for place, width in enumerate(widths):
        graph.add_register(width, place)
    for table in tables:
        graph.add_table(*table)
    return graph


def ids(count, seed=0):
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, 64, count).tolist()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("architecture", [*FAMILIES, *HYBRIDS, *MIXTURES, *LAYERED])
def test_every_family_in_every_encoding_has_the_bits_of_its_instructions(architecture, encoding):
    checkpoint = in_encoding(tiny(architecture), encoding)
    batches = ([ids(5), ids(1, 1)], [ids(1, 2), ids(19, 3)], [ids(2, 4), ids(1, 5)])
    compiled, interpreted = both_ways(checkpoint, batches)
    for found, expected in zip(compiled, interpreted, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "architecture", ["llama", "gemma2", "gemma4", "bitnet", "deepseek2", *HYBRIDS, "qwen3moe"]
)
def test_compiled_programs_have_the_bits_of_their_instructions_on_every_instruction_set(
    architecture, level
):
    compiled, interpreted = both_ways(in_encoding(tiny(architecture), "Q8_0"), ([ids(20)], [[7]]))
    for found, expected in zip(compiled, interpreted, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("architecture", ["llama", "gemma4"])
def test_rows_without_outputs_change_no_bits(architecture):
    """Layers behind the last cache run on the requested rows alone, at their positions."""
    checkpoint = in_encoding(tiny(architecture), "Q8_0")
    ops = NativeOps()
    config = config_from(checkpoint)
    weights = bind(checkpoint, config, ops)
    program = hidden_program(config, weights)
    parts = ids(9), ids(5, 1), ids(2, 2), ids(3, 3)
    requested = "last", "none", "all", "last"
    everything = ops.compile(program, weights)(
        [Segment(part, KVCache(config, 64), "all") for part in parts]
    )
    # The last id of the first part, both ids of the third, and the last id of the fourth.
    expected = everything[[8, 14, 15, 18]]
    for run in (ops.compile(program, weights), Interpreter(program, weights, ops).run):
        caches = [KVCache(config, 64) for _ in parts]
        segments = list(map(Segment, parts, caches, requested))
        np.testing.assert_array_equal(run(segments), expected)
        continued = run([Segment([7], cache) for cache in caches])
        again = [Segment([*part, 7], KVCache(config, 64)) for part in parts]
        np.testing.assert_array_equal(continued, run(again))


def test_biases_and_factors_give_the_same_bits():
    checkpoint = in_encoding(tiny("bitnet"), "I2_S")
    two = np.array([2], dtype="<f4").view(np.uint8)
    bias = np.linspace(-1, 1, 256, dtype="<f4")
    weights = dict(checkpoint.weights)
    weights["blk.0.attn_q.scale"] = Weight("s", (1,), F32, two)
    weights["blk.1.attn_output.bias"] = Weight("b", (256,), F32, bias.view(np.uint8))
    changed = Checkpoint(
        checkpoint.path,
        checkpoint.architecture,
        checkpoint.metadata,
        weights,
        checkpoint.rope_style,
    )
    (found,), (expected,) = both_ways(changed, ([ids(9)],))
    (plain,), _ = both_ways(checkpoint, ([ids(9)],))
    np.testing.assert_array_equal(found, expected)
    assert (found != plain).any()  # the factor and the bias have an effect


def test_matrices_with_padded_rows_give_the_same_bits():
    rng = np.random.default_rng(2)
    ops = NativeOps()
    instructions = []
    weights = {"table": ops.prepare(packed_ternary(rng, 64, 90))}
    x = Register("x", 90)
    q, k, v, out = (Register(name, 16) for name in ("q", "k", "v", "out"))
    instructions.append(Embed(x, "table", 0.5))
    for name in "qkv":
        weights[name] = ops.prepare(packed_ternary(rng, 16, 90))
        assert weights[name].columns > 90  # up to whole lines, of 16 columns or of 20
    instructions.append(Linear((q, k, v), x, ("q", "k", "v"), ("", "", "")))
    kind = KeysValues(kv_heads=2, head_dim=8)
    instructions.append(Attend(out, q, k, v, 0, kind, scale=0.3, softcap=0.0))
    program = Program(tuple(instructions), (kind,), result=out)
    attention = Attention(2, 2, 8, rope=None, scale=0.3)
    config = replace(config_from(tiny("llama")), blocks=((Branch("", (attention,)),),))
    found, expected = (
        run([Segment(ids(9), KVCache(config, 16), "all")])
        for run in (ops.compile(program, weights), Interpreter(program, weights, ops).run)
    )
    np.testing.assert_array_equal(found, expected)
    assert np.ptp(found) > 0.1  # the comparison is not one of zeros


def packed_ternary(rng, rows, columns):
    """A random ternary matrix in packed U8, whose rows may have any width."""
    codes = rng.integers(0, 3, (4, rows // 4, columns)).astype(np.uint8)
    packed = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6
    return Weight("w", (rows, columns), PACKED_U8, packed.reshape(-1), scale=0.3)


def test_matrices_of_one_product_in_different_encodings_give_the_same_bits():
    llama = tiny("llama")
    mixed = dict(llama.weights)
    for part, encoding in (("q", "Q8_0"), ("k", "I2_S"), ("v", "F16")):
        name = f"blk.0.attn_{part}.weight"
        mixed[name] = in_encoding(llama, encoding).weights[name]
    checkpoint = Checkpoint(llama.path, "llama", llama.metadata, mixed, llama.rope_style)
    (found,), (expected,) = both_ways(checkpoint, ([ids(9)],))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", *HYBRIDS])
def test_threads_and_chunks_do_not_change_a_bit(architecture, threads):
    checkpoint = in_encoding(tiny(architecture, context_length=800), "I2_S")
    model = load_model(checkpoint, ops=NativeOps())
    prompt = ids(600)  # more than two splits of the keys
    results = set()
    for count in (1, 3):
        threads(count)
        for chunk in (600, 15):
            cache = KVCache(model.config, 800)
            # All but the last eight ids as a prompt, and these one by one.
            for start in range(0, 592, chunk):
                model.run([Segment(prompt[start : start + chunk][: 592 - start], cache, "none")])
            tail = [model.forward([token], cache) for token in prompt[592:]]
            results.add(np.concatenate(tail).tobytes())
    assert len(results) == 1


def test_a_cache_of_floats_gives_nearly_the_logits_of_one_of_codes():
    model = load_model(tiny("llama"), ops=NativeOps())
    wide = model.forward(ids(9), KVCache(model.config, 16, dtype=np.float32))
    coded = model.forward(ids(9), KVCache(model.config, 16))
    np.testing.assert_allclose(wide, coded, atol=1e-2)


def test_sequences_with_different_rope_frequencies_have_the_same_bits_in_one_batch():
    keys = {"rope.scaling.type": "dynamic", "rope.scaling.factor": 4.0}
    model = load_model(
        tiny("llama", **keys, **{"rope.scaling.original_context_length": 32}), ops=NativeOps()
    )
    short, long = (
        model.run([Segment(ids(20), KVCache(model.config, size), "all")])[0] for size in (32, 64)
    )
    together = model.run(
        [Segment(ids(20), KVCache(model.config, size), "all") for size in (32, 64)]
    )
    # A cache of 64 positions is beyond the original 32, so its frequencies are scaled.
    assert (short != long).any()
    assert [found.tobytes() for found in together] == [short.tobytes(), long.tobytes()]


def test_a_pass_without_the_pages_that_its_queries_read_is_refused():
    graph = graph_of([8] * 4, [(1, 1, 8, 0), (2, 1, 8, PAGE)])
    graph.add_context([])
    for table in (0, 1):
        graph.add("Attend", out=0, q=1, k=2, v=3, table=table, **PLAIN_ATTENTION)

    # Addresses of pages; 0: a freed page. The second table has a window of one page.
    def run(start, *tables):
        tables = tuple(np.array(table, dtype=np.uint64) for table in tables)
        out = np.empty((0, 8), dtype=np.float32)
        graph.run(np.zeros(1, np.int64), [(1, start, 0, 0, tables, NONE, NONE)], 0, out)

    with pytest.raises(ValueError, match="no room"):
        run(PAGE, [1], [1])
    with pytest.raises(ValueError, match="behind the last"):
        run(2**63 - 1, [1], [1])
    with pytest.raises(ValueError, match="another number of tables"):
        run(0, [1])
    with pytest.raises(ValueError, match="a page is missing"):
        run(PAGE, [0, 1], [1, 1])
    with pytest.raises(ValueError, match="a page is missing"):
        run(2 * PAGE - 2, [1, 1], [0, 1])
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        # The window begins with the second page, so the pages are right. The next check fails: a
        # graph without Embed has no vocabulary.
        run(2 * PAGE - 1, [1, 1], [0, 1])


def test_a_graph_writes_no_more_rows_than_there_is_room_for():
    graph = graph_of([8] * 4, [(1, 1, 8, 0)])
    graph.add_context([])
    page = np.zeros((1, 2, 1, page_words(8)), dtype=np.int16)
    tables = (np.array([page.ctypes.data], dtype=np.uint64),)
    weight = Weight("t", (5, 8), F32, np.ones(40, dtype="<f4").view(np.uint8))
    table = NativeOps().prepare(weight, looked_up=True)
    graph.add("Embed", out=0, table=table, scale=1.0, rows=0)
    graph.add("Attend", out=3, q=0, k=1, v=2, table=0, **PLAIN_ATTENTION)
    run = (
        np.zeros(3, np.int64),
        [(3, 0, 1, 0, tables, NONE, NONE)],
        0,
        np.empty((1, 8), np.float32),
    )
    with pytest.raises(ValueError, match="nothing selects the rows"):
        graph.run(*run)
    graph.add("Select", registers=[0])
    graph.run(*run)
    with pytest.raises(ValueError, match="selected already"):
        graph.add("Select", registers=[0])


def test_take_copies_the_rows_of_each_segment_into_its_registers():
    """A row has the columns of all registers side by side."""
    graph = graph_of([2, 3], [])
    rows = np.arange(25, dtype=np.float32).reshape(5, 5)
    graph.add_context([])
    for register in (0, 1):
        graph.add("Take", out=register)
    parts = [
        (len(part), 0, len(part), 0, (), NONE, np.ascontiguousarray(part))
        for part in (rows[:2], rows[2:])
    ]
    for register, columns in ((0, slice(0, 2)), (1, slice(2, 5))):
        out = np.empty_like(rows[:, columns])
        graph.run(np.zeros(5, np.int64), parts, register, out)
        np.testing.assert_array_equal(out, rows[:, columns])
    with pytest.raises(ValueError, match="rows of another width"):
        graph.run(np.zeros(5, np.int64), [parts[0], (*parts[1][:6], rows[3:])], 0, out)


@pytest.mark.parametrize("token", [2, 10**12, -1])
def test_a_token_outside_of_the_table_is_refused(token):
    graph = graph_of([4, 4], [])
    graph.add_context([])
    table = Weight("t", (2, 4), F32, np.zeros(32, np.uint8))
    graph.add("Take", out=0)
    graph.add("Embed", out=1, table=NativeOps().prepare(table), scale=1.0, rows=0)
    out = np.empty((1, 4), np.float32)
    piece = (1, 0, 1, 0, (), NONE, np.ones((1, 4), np.float32))
    graph.run(np.array([1]), [piece], 1, out)
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        graph.run(np.array([token]), [piece], 1, out)


def test_arrays_of_wrong_types_are_refused_and_not_converted():
    graph = graph_of([4, 4], [])
    graph.add_context([])
    graph.add("Take", out=0)
    matrix = NativeOps().prepare(Weight("w", (4, 4), F32, np.zeros(64, np.uint8)))
    # A graph keeps addresses, and a converted copy would be freed.
    doubles = np.full(4, 2.0)
    for wrong in (replace(matrix, factors=doubles), replace(matrix, data=matrix.data.view("<u2"))):
        with pytest.raises(TypeError, match=r"float32|not bytes"):
            graph.add("Linear", outs=[1], x=0, weights=[wrong], biases=[None])
    out = np.empty((1, 4), np.float32)
    for state, hidden in ((NONE, np.ones((1, 4))), (np.empty(0), np.ones((1, 4), np.float32))):
        with pytest.raises(TypeError, match="float32"):
            graph.run(np.array([0]), [(1, 0, 1, 0, (), state, hidden)], 0, out)


def test_wrong_instructions_are_refused_when_they_are_added():
    graph = graph_of([8, 12], [(1, 1, 4, 0)])
    with pytest.raises(ValueError, match="widths differ"):
        graph.add("Add", out=0, x=0, y=1)
    with pytest.raises(ValueError, match="no such register"):
        graph.add("Add", out=0, x=0, y=2)
    with pytest.raises(ValueError, match="no such instruction"):
        graph.add("Subtract", x=0, y=1)
    with pytest.raises(KeyError, match="y"):
        graph.add("Add", out=0, x=0)
    with pytest.raises(ValueError, match="an operand is missing"):
        graph.add("Add", out=0, x=0, y=None)
    with pytest.raises(TypeError, match="must be float32"):
        graph.add("Scale", out=0, x=0, weight=np.ones(8))
    with pytest.raises(ValueError, match="no such rotation"):
        graph.add("Rotate", out=0, x=0, rotation=0, head_dim=4)
    graph.add_rotation(2, True)
    with pytest.raises(ValueError, match="more rotated elements"):
        graph.add("Rotate", out=0, x=0, rotation=0, head_dim=2)
    graph.add_register(8, 1)  # the third register in two places: the next place is 2
    with pytest.raises(ValueError, match="numbered in order"):
        graph.add_register(8, 3)
    with pytest.raises(ValueError, match="another width"):
        graph.add("Norm", out=0, x=0, weight=np.ones(3, np.float32), parts=1, eps=1e-5)
    with pytest.raises(ValueError, match="neither one nor one for each column"):
        graph.add("Scale", out=0, x=0, weight=np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"place": 2}, "no such layer"),
        ({"place": -1}, "no such layer"),
        ({"place": 2**62}, "no such layer"),
        ({"table": 1}, "no such table"),
        ({"table": -1}, "no such table"),
        ({"k": "half", "v": "half"}, "keys and values"),
        ({"v": "half"}, "keys and values"),
        ({"q": "half"}, "queries"),
        ({"out": "half"}, "queries"),
        ({"k": "queries", "v": "queries"}, "keys and values"),
        ({"k": None}, "keys and values"),
        ({"k": -2, "v": -1}, "no such register"),
        ({"scale": float("nan")}, "scale or softcap"),
        ({"softcap": -1.0}, "scale or softcap"),
        ({"sinks": np.zeros(3, np.float32)}, "one per head"),
        ({"slopes": np.zeros(3, np.float32)}, "one per head"),
        ({"distances": np.zeros(3, np.float32)}, "on both sides"),
        ({"distances": np.zeros(8, np.float32)}, "on both sides"),
    ],
)
def test_attention_whose_operands_do_not_fit_its_table_is_refused(change, said):
    registers = {"queries": 64, "keys": 32, "values": 32, "mixed": 64, "half": 16}
    graph = graph_of(registers.values(), [(2, 2, 16, 2**63 - 1)])
    arguments = {"out": "mixed", "q": "queries", "k": "keys", "v": "values"} | {
        "table": 0,
        "place": 1,
        "scale": 1.0,
        "softcap": 0.0,
        "sinks": None,
        "slopes": None,
        "distances": None,
        "causal": True,
    }
    places = {name: place for place, name in enumerate(registers)}

    def attend(arguments):
        numbers = {
            name: places[value] if isinstance(value, str) else value
            for name, value in arguments.items()
        }
        graph.add("Attend", **numbers)

    attend(arguments)
    with pytest.raises(ValueError, match=said):
        attend(arguments | change)


# Width of a register; layers, heads, width of a head and window of a table of pages.
@pytest.mark.parametrize(
    ("width", "table"),
    [
        (0, (1, 1, 1, 0)),
        (1, (0, 1, 1, 0)),
        (1, (1, -1, 1, 0)),
        (1, (1, 1, 2**40, 0)),
        (1, (1, 1, 1, -1)),
        (2**62, (1, 1, 1, 0)),
    ],
)
def test_a_graph_of_impossible_sizes_is_refused(width, table):
    with pytest.raises(ValueError, match=r"out of range|a number of positions"):
        graph_of([width], [table])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stop": 97}, "the state ends before"),
        ({"start": 33}, "the state ends before"),
        ({"groups": 3}, "other groups"),
        ({"groups": 0}, "other groups"),
        ({"c": 3}, "other groups"),
        ({"out": 1}, "other heads"),
        ({"skip": np.ones(3, np.float32)}, "one number per head"),
    ],
)
def test_a_scan_that_does_not_fit_is_refused(change, said):
    graph = graph_of([8, 8, 8, 16, 2, 16], [])
    graph.set_state(32 + 4 * 16)
    head = np.ones(2, np.float32)
    heads = {"a": head, "bias": head, "skip": head, "groups": 2, "start": 0, "stop": 96}
    arguments = {"out": 5, "x": 3, "b": 1, "c": 2, "dt": 4} | heads
    graph.add("SelectiveScan", **arguments)
    with pytest.raises(ValueError, match=said):
        graph.add("SelectiveScan", **(arguments | change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stop": 97}, "the state ends before"),
        ({"start": 33}, "the state ends before"),
        ({"start": -1}, "the state ends before"),
        ({"key_heads": 3}, "other heads"),
        ({"key_heads": 0}, "other heads"),
        ({"k": 3}, "other heads"),
        ({"out": 1}, "other heads"),
        ({"a": np.ones(3, np.float32)}, "one number per head"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, said):
    graph = graph_of([8, 8, 8, 16, 2, 2, 16], [])
    graph.set_state(32 + 4 * 16)
    head = np.ones(2, np.float32)
    heads = {"a": head, "dt": head, "key_heads": 2, "grouped": False, "start": 0, "stop": 96}
    heads |= {"strength": 1.0, "floor": 0.0}
    arguments = {"out": 6, "q": 1, "k": 2, "v": 3, "alpha": 4, "beta": 5} | heads
    graph.add("DeltaRule", **arguments)
    with pytest.raises(ValueError, match=said):
        graph.add("DeltaRule", **(arguments | change))
    convolution = {"out": 1, "x": 2, "weights": [np.ones(8 * 4, np.float32)], "bias": None}
    convolution |= {"silu": True, "start": 0, "stop": 96}
    graph.add("Convolve", **convolution)
    for change, said in (
        ({"weights": [np.ones(30, np.float32)]}, "another width"),
        ({"weights": [np.ones(16, np.float32), np.ones(12, np.float32)]}, "another width"),
        ({"bias": np.ones(7, np.float32)}, "the bias has another width"),
        ({"weights": [np.ones(8 * 20, np.float32)]}, "the state ends before"),
    ):
        with pytest.raises(ValueError, match=said):
            graph.add("Convolve", **(convolution | change))
    with pytest.raises(ValueError, match="impossible size"):
        graph.set_state(-1)
    graph.add_context([])
    segment = (1, 0, 1, 0, (), np.zeros(95, np.float32), NONE)
    with pytest.raises(ValueError, match="a state of another size"):
        graph.run(np.zeros(1, np.int64), [segment], 0, np.empty((1, 8), np.float32))

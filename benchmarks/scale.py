"""Predict how prefill and decode scale with cores, sockets, context and batch: a cost model.

    python benchmarks/scale.py          the tables of docs/architecture/scale.md

The time of a pass is that of reading the weights or of their multiply-adds, whichever is longer,
that of keys and values, and that of a barrier of all threads in each stage. The constants were
fitted to this project's kernels on one machine (Zen 5) and are checked against another (Zen 4);
this program measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2


@dataclass(frozen=True)
class Machine:
    """Cores and memory of one socket.

    Attributes:
        name: name of the processor, for the tables.
        cores: cores of a socket, which run one thread each.
        core_bytes: bytes per second that one core reads.
        socket_bytes: bytes per second that all cores of a socket read together.
        products: int8 multiply-adds per second of one core, the limit of its instruction.
        sockets: number of sockets, over which the threads of a pass are spread.
    """

    name: str
    cores: int
    core_bytes: float
    socket_bytes: float
    products: float
    sockets: int = 1


@dataclass(frozen=True)
class Shape:
    """A model as bytes and multiply-adds of one token.

    Attributes:
        name: name of the model, for the tables.
        weight_bytes: bytes that a decoding pass reads, including the output head.
        products: multiply-adds of a token in the matrices, without the head.
        layers: number of blocks.
        heads: heads of queries.
        kv_heads: heads of keys and values.
        head_dim: width of a head.
        dim: rows of the smallest matrix.
        efficiency: share of the instruction's limit that prefill reaches in the matrices.
        window: positions that layers with a window attend to; 0: no layer has one.
        full_layers: layers without a window, if others have one.
    """

    name: str
    weight_bytes: float
    products: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dim: int
    efficiency: float
    window: int = 0
    full_layers: int = 0

    def positions(self, context: float) -> float:
        """Positions that a layer reads after *context* positions, the mean over all layers."""
        if not self.window:
            return context
        in_windows = min(context, self.window) * (self.layers - self.full_layers)
        return (in_windows + context * self.full_layers) / self.layers

    @property
    def kv_bytes(self) -> float:
        """Bytes of keys and values of a position: int16 codes, and four bytes for each vector."""
        return self.layers * 2 * self.kv_heads * (2 * self.head_dim + 4)

    @property
    def attention_products(self) -> float:
        """Multiply-adds of a token for each position that it attends to."""
        return self.layers * 2 * self.heads * self.head_dim


# Share of the int16 limit, half of the int8 one, that prefill reaches in attention.
ATTENTION = 0.40
KV_READ = 0.45  # share of the read bandwidth that decode reaches in keys and values
STAGES = 6  # barriers of the threads in a block
STAGE_S = 3.5e-6  # a barrier of two threads; grows with the logarithm of their number (assumed)
PASS_S = 0.25e-3  # overhead of a pass outside the kernels
# Share of the bandwidth of two sockets if the weights lie in the memory of one (assumed).
REMOTE = 0.6
TILE_ROWS = 16  # rows of a matrix in one unit of work
SPLIT = 256  # positions in one unit of work of attention

SMOLLM2 = Shape("SmolLM2 135M Q4_1", 92e6, 106e6, 30, 9, 3, 64, 576, 0.40)
GEMMA3 = Shape("Gemma 3 270M Q4_K_M", 242e6, 100e6, 18, 4, 1, 256, 640, 0.37, 512, 3)
TERNARY = Shape("BitNet 2B shape, ternary", 860e6, 2.085e9, 30, 20, 5, 128, 2560, 0.74)

ZEN5 = Machine("Zen 5, 2 cores", 2, 40e9, 45e9, 474e9)
ZEN4 = Machine("Zen 4, 2 cores", 2, 30e9, 33e9, 220e9)
DESKTOP = Machine("desktop, 8 cores, 2 channels", 8, 40e9, 75e9, 474e9)
SERVER32 = Machine("server, 32 cores, 8 channels", 32, 25e9, 300e9, 350e9)
SERVER96 = Machine("server, 96 cores, 12 channels", 96, 25e9, 480e9, 350e9)
TWO_SOCKETS = replace(SERVER96, name="two sockets of 96 cores", sockets=2)

#: Measured rates (benchmarks/results): model, machine, threads, test, tokens per second.
MEASURED = (
    (SMOLLM2, ZEN5, 2, "pp512", 3115), (SMOLLM2, ZEN5, 2, "pp4096", 1555),
    (SMOLLM2, ZEN5, 2, "tg128", 324), (SMOLLM2, ZEN5, 2, "tg32@4096", 156),
    (SMOLLM2, ZEN5, 1, "pp512", 1739), (SMOLLM2, ZEN5, 1, "pp4096", 860),
    (SMOLLM2, ZEN5, 1, "tg128", 307), (SMOLLM2, ZEN5, 1, "tg32@4096", 119),
    (GEMMA3, ZEN5, 2, "pp512", 3019), (GEMMA3, ZEN5, 2, "pp4096", 2531),
    (GEMMA3, ZEN5, 2, "tg128", 151), (GEMMA3, ZEN5, 2, "tg32@4096", 154),
    (TERNARY, ZEN5, 2, "pp512", 334), (TERNARY, ZEN5, 2, "pp4032", 210),
    (TERNARY, ZEN5, 2, "tg128", 43), (TERNARY, ZEN5, 2, "tg32@4032", 24),
    (TERNARY, ZEN5, 1, "pp512", 180), (TERNARY, ZEN5, 1, "tg128", 36),
    (SMOLLM2, ZEN4, 2, "pp512", 1649), (SMOLLM2, ZEN4, 2, "pp4096", 794),
    (SMOLLM2, ZEN4, 2, "tg128", 204), (SMOLLM2, ZEN4, 2, "tg32@4096", 111),
    (SMOLLM2, ZEN4, 1, "pp512", 967), (SMOLLM2, ZEN4, 1, "tg128", 238),
    (GEMMA3, ZEN4, 2, "pp512", 1700), (GEMMA3, ZEN4, 2, "pp4096", 1448),
    (GEMMA3, ZEN4, 2, "tg128", 139), (GEMMA3, ZEN4, 1, "tg128", 89),
)  # fmt: skip


def bandwidth(machine: Machine, threads: int) -> float:
    """Bytes per second that *threads* read together."""
    used_sockets = min(machine.sockets, ceil(threads / machine.cores))
    total = min(threads * machine.core_bytes, used_sockets * machine.socket_bytes)
    return total * (REMOTE if used_sockets > 1 else 1.0)


def share(units: int, threads: int) -> float:
    """Share of their time that *threads* work, if they share *units* of work of equal size."""
    return units / threads / ceil(units / threads)


def barriers_s(shape: Shape, threads: int) -> float:
    """Seconds that the barriers of a pass take; two threads need STAGE_S for each."""
    return shape.layers * STAGES * STAGE_S * log2(2 * threads) / 2


def decode_s(
    shape: Shape, machine: Machine, threads: int, context: float = 0, batch: int = 1
) -> float:
    """Seconds of a pass that decodes one token of each of *batch* sequences after *context*."""
    read = bandwidth(machine, threads)
    busy = share(ceil(shape.dim / TILE_ROWS), threads)
    products = threads * machine.products * shape.efficiency * busy
    weights = max(shape.weight_bytes / read, batch * shape.products / products)
    positions = shape.positions(context)
    units = max(1, batch * shape.kv_heads * ceil(positions / SPLIT))
    kv = batch * shape.kv_bytes * positions / (read * KV_READ * share(units, threads))
    return weights + kv + barriers_s(shape, threads) + PASS_S


def prefill_s(shape: Shape, machine: Machine, threads: int, tokens: int) -> float:
    """Seconds to read a prompt of *tokens*."""
    rate = threads * machine.products
    matrices = tokens * shape.products / (rate * shape.efficiency)
    pairs = tokens * shape.positions(tokens / 2)
    attention = pairs * shape.attention_products / (rate / 2 * ATTENTION)
    passes = ceil(tokens / 256)  # the scheduler's PREFILL_CHUNK
    return matrices + attention + passes * (barriers_s(shape, threads) + PASS_S)


def predict(shape: Shape, machine: Machine, threads: int, test: str) -> float:
    """Tokens per second of *test*, such as ``pp512`` or ``tg32@4096``."""
    count, _, depth = test[2:].partition("@")
    if test.startswith("pp"):
        return int(count) / prefill_s(shape, machine, threads, int(count))
    return 1 / decode_s(shape, machine, threads, int(depth or 0) + int(count) / 2)


def row(*cells: object) -> str:
    """A row of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def check_table() -> list[str]:
    """Table of the measured rates, and those of the cost model."""
    lines = [row("model", "machine", "threads", "test", "measured", "computed", "ratio")]
    lines.append("|---|---|---|---|---|---|---|")
    for shape, machine, threads, test, rate in MEASURED:
        computed = predict(shape, machine, threads, test)
        cells = (shape.name, machine.name.split(",")[0], threads, test, f"{rate:,}")
        lines.append(row(*cells, f"{computed:,.0f}", f"{computed / rate:.2f}"))
    return lines


def growth_table() -> list[str]:
    """Tokens per second of the ternary shape by machine and threads."""
    names = (
        "machine",
        "threads",
        "pp512",
        "tg",
        "tg behind 4,096",
        "tg behind 32,768",
        "batch of 8",
    )
    lines = [row(*names), "|---" * len(names) + "|"]
    for machine, counts in (
        (DESKTOP, (2, 8)), (SERVER32, (8, 32)), (SERVER96, (32, 96)), (TWO_SOCKETS, (192,))
    ):  # fmt: skip
        for threads in counts:
            rates = [512 / prefill_s(TERNARY, machine, threads, 512)]
            rates += [1 / decode_s(TERNARY, machine, threads, at) for at in (0, 4096, 32768)]
            rates.append(8 / decode_s(TERNARY, machine, threads, 512, 8))
            lines.append(row(machine.name, threads, *(f"{rate:,.0f}" for rate in rates)))
    return lines


def replica_table() -> list[str]:
    """Tokens per second of 32 sequences, by the number of replicas that share a machine's cores."""
    lines = [row("machine", "replicas", "sequences each", "total tok/s", "one sequence tok/s")]
    lines.append("|---|---|---|---|---|")
    for machine in (DESKTOP, SERVER32, SERVER96, TWO_SOCKETS):
        for replicas in (1, 2, 4):
            cores = machine.cores * machine.sockets
            threads = cores // replicas
            batch = 32 // replicas
            # Replicas on one socket share its bandwidth; each socket has its own.
            n_sockets = machine.sockets if replicas >= machine.sockets else 1
            part = replace(
                machine,
                sockets=machine.sockets if replicas < machine.sockets else 1,
                socket_bytes=machine.socket_bytes * n_sockets / replicas,
            )
            pass_s = decode_s(TERNARY, part, threads, 512, batch)
            total = replicas * batch / pass_s
            lines.append(row(machine.name, replicas, batch, f"{total:,.0f}", f"{1 / pass_s:,.1f}"))
    return lines


def main() -> None:
    """Print the tables."""
    for title, lines in (
        ("Checked", check_table()), ("Growth", growth_table()), ("Replicas", replica_table())
    ):  # fmt: skip
        print(f"\n{title}\n")
        print("\n".join(lines))


if __name__ == "__main__":
    main()

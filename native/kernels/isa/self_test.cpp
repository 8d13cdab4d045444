// Compares every kernel of the chosen level with the scalar one, once per process, before the first
// product. If one disagrees, the next slower level is chosen and compared, and in the end `scalar`.

#include "ops/linear.hpp"
#include "ops/ops.hpp"
#include "ternary/layout.hpp"
#include "system/thread_pool.hpp"

namespace bitnet {
namespace {

constexpr double kSelfTestNmse = 1e-9;  // float sums in another order: about 1e-13

// The same random numbers on every machine (xorshift).
struct Random {
    uint32_t state = 0x9e3779b9;
    uint32_t next() {
        state ^= state << 13;
        state ^= state >> 17;
        return state ^= state << 5;
    }
    float unit() { return float(next() >> 8) * 0x1p-23f - 1.0f; }
    std::vector<float> units(int64_t n) {
        std::vector<float> drawn(static_cast<size_t>(n));
        for (float& f : drawn) f = unit();
        return drawn;
    }
};

// Random bytes are valid codes almost everywhere; scales, whose places in a block differ, must be
// ordinary numbers.
std::vector<uint8_t> random_weights(Type type, int64_t rows, int64_t cols, Random& random) {
    const Encoding& size = encoding(type);
    std::vector<uint8_t> bytes(size_t(weight_bytes(type, rows, cols)));
    for (uint8_t& b : bytes) b = uint8_t(random.next() >> 11);
    const auto put_half = [&](size_t at) {
        const uint16_t h = float_to_half(0.01f + 0.005f * random.unit());
        std::memcpy(&bytes[at], &h, 2);
    };
    for (size_t at = 0; at < bytes.size(); at += size_t(size.bytes)) {
        switch (type) {
            case Type::F32: {
                const float f = random.unit();
                std::memcpy(&bytes[at], &f, 4);
                break;
            }
            case Type::F16:
                put_half(at);
                break;
            case Type::BF16:
                bytes[at + 1] = uint8_t(0x3c | (bytes[at + 1] & 0x80));  // 2^-7 to 2^-5
                break;
            case Type::Ternary:
            case Type::TernaryBlocks:
            case Type::TernaryDense:
                break;
            case Type::Q6_K:
                put_half(at + 208);
                break;
            case Type::PTQ1_0:
                put_half(at + size_t(size.bytes) - 2);
                break;
            case Type::MXFP4:
                bytes[at] = uint8_t(118 + bytes[at] % 4);
                break;
            default:
                put_half(at);
                if (size.minimum) put_half(at + 2);
        }
    }
    if (is_ternary(type)) {
        const auto codes = size_t(ternary_code_bytes(type, rows, cols));
        for (size_t i = 0; i < codes; ++i)  // without code 3, and without a low part of 27
            if (type == Type::TernaryDense)
                bytes[i] = uint8_t(bytes[i] % 9 * 28 + bytes[i] / 9 % 27);
            else
                bytes[i] &= uint8_t(~((bytes[i] & (bytes[i] >> 1) & 0x55) << 1));
        for (size_t i = codes; i < bytes.size(); i += 4) {
            const float scale = random.unit();
            std::memcpy(&bytes[i], &scale, 4);
        }
    }
    return bytes;
}

// Whether the NMSE of *got* is at most kSelfTestNmse, or, if *exact*, all numbers are equal.
bool close(const std::vector<float>& got, const std::vector<float>& expected, bool exact) {
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
        if (exact && got[i] != expected[i]) return false;
        error += (double(got[i]) - expected[i]) * (double(got[i]) - expected[i]);
        norm += double(expected[i]) * expected[i];
    }
    return error <= kSelfTestNmse * norm;
}

// Whether run(kernels, out) writes the same *n* numbers with *k* as with the scalar kernels, or, if
// not *exact*, floats near them.
template <class T, class Run>
bool agrees(const Kernels& k, int64_t n, bool exact, Run run) {
    std::vector<T> got(static_cast<size_t>(n)), expected(got.size());
    run(scalar_kernels(), expected.data());
    run(k, got.data());
    if constexpr (std::is_same_v<T, float>)
        return close(got, expected, exact);
    else
        return std::memcmp(got.data(), expected.data(), got.size() * sizeof(T)) == 0;
}

// Matrix of *type*: random rows, packed where the type has interleaved ones.
std::vector<uint8_t> random_matrix(Type type, int64_t rows, int64_t cols, Random& random) {
    if (!is_tiled(type)) return random_weights(type, rows, cols, random);
    const Type source = in_rows(type);
    const std::vector<uint8_t> weights = random_weights(source, rows, cols, random);
    std::vector<uint8_t> out(size_t(weight_bytes(type, rows, tiled_cols(source, cols))));
    pack_rows(source, weights.data(), rows, cols, out.data());
    return out;
}

// A product of random numbers, which any kernel of *type* can compute.
struct Product {
    int64_t rows, tokens;  // both: whole tiles and a rest; if ternary, a pair of tiles and one more
    std::vector<uint8_t> weight;
    std::vector<float> x;
    Activations activations;
    LinearArgs a;

    explicit Product(Type type)
        : rows(is_ternary(type) || is_grouped(type) ? 33 : 19), tokens(is_float(type) ? 17 : 41) {
        int64_t cols = encoding(type).weights <= 32 ? 160 : 512;  // whole blocks
        if (is_float(type)) cols = 480;
        if (is_grouped(type)) cols = 1280;
        Random random;
        weight = random_matrix(type, rows, cols, random);
        x = random.units(tokens * cols);
        activations.prepare({{type, weight.data(), rows, cols, cols}}, tokens);
        for (int64_t t = 0; t < tokens; ++t) activations.quantize(&x[size_t(t * cols)], t);
        a.weight = weight.data();
        a.type = type;
        a.row_bytes = row_bytes(type, cols);
        a.rows = rows;
        a.cols = cols;
        a.scale = 0.7f;
        a.x = x.data();
        activations.point(a);
    }

    // y (n, rows) of the first *n* tokens.
    std::vector<float> run(LinearKernel kernel, int64_t n) {
        std::vector<float> y(size_t(n * rows));
        a.tokens = n;
        a.y = y.data();
        kernel(a, 0, rows, thread_scratch(scratch_bytes(a.cols)));
        return y;
    }
};

// Whether both kernels of a type agree with the scalar one, and give the same bits in every batch.
bool linear_agrees(Type type, const Kernels& k) {
    Product product(type);
    const LinearKernel decode = k.decode[int(type)], prefill = k.prefill[int(type)];
    const std::vector<float> all = product.run(prefill, product.tokens);
    if (!close(all, product.run(scalar_kernels().decode[int(type)], product.tokens),
               !is_float(type)))
        return false;
    for (const int64_t tokens : {1, 7, kDecodeTokens}) {
        const std::vector<float> some = product.run(decode, tokens);
        if (!std::equal(some.begin(), some.end(), all.begin())) return false;
    }
    return true;
}

bool dequantize_agrees(const Kernels& k) {
    constexpr int64_t kCols = 512;
    Random random;
    for (int i = 0; i < kTypes; ++i) {
        const Type type = Type(i);
        if (is_ternary(type) || is_tiled(type)) continue;
        const std::vector<uint8_t> weight = random_weights(type, 2, kCols, random);
        const auto run = [&](const Kernels& kernels, float* out) {
            kernels.dequantize(type, weight.data(), 1, kCols, out);
        };
        if (!agrees<float>(k, kCols, true, run)) return false;
    }
    return true;
}

// Whether rows one after the other give the bits of the same rows in tiles.
bool rows_agree(Type type) {
    Product rows(type), tiles(tiled(type));
    const LinearKernel kernel = detail::active().decode[int(tiled(type))];
    return rows.run(linear_in_rows, rows.tokens) == tiles.run(kernel, tiles.tokens);
}

bool gather_agrees(const Kernels& k) {
    Random random;
    for (int i = 0; i < kTypes; ++i) {
        const Type type = Type(i);
        if (!can_tile(type) || is_grouped_row(type)) continue;
        const int64_t cols = is_float(type) ? 51 : 512;
        const std::vector<uint8_t> weight = random_weights(type, kTileRows, cols, random);
        const uint8_t* rows[kTileRows];
        for (int r = 0; r < kTileRows; ++r)
            rows[r] = &weight[size_t((r * 7 + 3) % kTileRows * row_bytes(type, cols))];
        const auto run = [&](const Kernels& kernels, uint8_t* out) {
            kernels.gather(type, rows, cols, out);
        };
        if (!agrees<uint8_t>(k, weight_bytes(tiled(type), kTileRows, cols), true, run) ||
            !rows_agree(type))
            return false;
    }
    return true;
}

// Whether rows of codes become the same tiles, and a code of 3 is reported in both kernels.
bool packing_agrees(const Kernels& k) {
    constexpr int64_t kCols = 512, kDense = kCols / kDenseStep * kDenseStep;
    Random random;
    const auto without_threes = [](std::vector<uint8_t>& codes) {
        for (uint8_t& b : codes) b &= uint8_t(~((b & (b >> 1) & 0x55) << 1));
    };
    for (const TernarySource source : {TernarySource::i2_s, TernarySource::tq2_0}) {
        const int64_t row_bytes = ternary_source_bytes(source, 1, kCols);
        std::vector<uint8_t> weight(size_t(kTernaryRows * row_bytes)), tile(4 * kCols);
        const uint8_t* rows[kTernaryRows];
        for (int r = 0; r < kTernaryRows; ++r) rows[r] = &weight[size_t(r * row_bytes)];
        for (const bool wrong : {false, true}) {
            for (uint8_t& b : weight) b = uint8_t(random.next() >> 11);
            if (!wrong) without_threes(weight);
            bool right = true;
            const auto run = [&](const Kernels& kernels, uint8_t* out) {
                right = kernels.pack_two_bits(source, rows, kCols, out) == wrong && right;
            };
            if (!agrees<uint8_t>(k, 4 * kCols, true, run) || !right) return false;
        }
        scalar_kernels().pack_two_bits(source, rows, kCols, tile.data());
        without_threes(tile);
        const auto run = [&](const Kernels& kernels, uint8_t* out) {
            kernels.make_dense(tile.data(), kDense, out);
        };
        if (!agrees<uint8_t>(k, kDense / kDenseStep * 64, true, run)) return false;
    }
    return true;
}

// Whether the copies of a head of random numbers are equal, and the logits and bounds of a hidden
// state near one of its rows.
bool exact_head_agrees(const Kernels& k) {
    constexpr int64_t kRows = kHeadRows, kCols = 200, kWidth = head_blocks(kCols) * kHeadBlock;
    // A copy in one array: the tile, sixth bits of the rows, and at kFloats three floats a row.
    constexpr int64_t kTile = head_tile_bytes(kCols), kSixth = head_sixth_bytes(kCols),
                      kFloats = kTile + kRows * kSixth;
    Random random;
    const std::vector<float> weight = random.units(kRows * kWidth), ones(kCols, 1.0f);
    std::vector<float> x = random.units(kCols);
    std::vector<int32_t> order(kCols);
    for (int64_t c = 0; c < kCols; ++c) {
        x[size_t(c)] += weight[size_t(kWidth + c)];
        order[size_t(c)] = int32_t(c);
    }
    ExactHead m;
    m.rows = kRows;
    m.cols = kCols;
    m.order = order.data();
    m.factors = ones.data();
    const auto pack = [&](const Kernels& kernels, uint8_t* out) {
        m.tiles = out;
        m.sixth = out + kTile;
        m.step = reinterpret_cast<float*>(out + kFloats);
        m.residual = m.step + kRows;
        m.norm = m.residual + kRows;
        std::vector<float> rows = weight;
        for (int64_t r = 0; r < kRows; ++r)
            std::fill_n(&rows[size_t(r * kWidth + kCols)], kWidth - kCols, 0.0f);
        kernels.exact_head.pack(m, 0, rows.data());
    };
    if (!agrees<uint8_t>(k, kFloats + 12 * kRows, true, pack)) return false;
    std::vector<uint8_t> copy(kFloats + 12 * kRows);
    pack(scalar_kernels(), copy.data());
    HeadInput input;
    head_input(m, x.data(), input);
    const auto tile = [&](const Kernels& kernels, float* out) {
        kernels.exact_head.tile(m.tiles, head_stored_blocks(kCols), input, m.step, m.residual,
                                m.norm, out, out + kRows);
    };
    const auto sixth = [&](const Kernels& kernels, float* out) {
        for (int64_t r = 0; r < kRows; ++r)
            kernels.exact_head.sixth(m.sixth + r * kSixth, kCols, input, out + r, out + kRows + r);
    };
    return agrees<float>(k, 2 * kRows, false, tile) && agrees<float>(k, 2 * kRows, false, sixth);
}

// Whether layers with a state give the same bits, as they must, because they add in one order.
bool states_agree(const Kernels& k) {
    constexpr int64_t kTokens = 3, kHeads = 2, kKeys = 24, kValues = 37, kWidth = 3, kChannels = 41;
    constexpr int64_t kOut = kTokens * kHeads * kValues, kState = kHeads * kKeys * kValues;
    constexpr int64_t kMixed = kTokens * kChannels, kBefore = (kWidth - 1) * kChannels;
    Random random;
    const std::vector<float> q = random.units(kTokens * kKeys), key = random.units(kTokens * kKeys),
                             v = random.units(kOut);
    const std::vector<float> alpha = random.units(kTokens * kHeads), a = random.units(kHeads),
                             start = random.units(kState);
    const std::vector<float> x = random.units(kMixed), weight = random.units(kChannels * kWidth);
    const auto delta = [&](float floor) {
        return [&, floor](const Kernels& kernels, float* out) {
            DeltaArgs d;
            d.floor = floor;
            d.q = q.data();
            d.k = key.data();
            d.v = v.data();
            d.alpha = v.data();  // has a decay for each row of a state
            d.decays = kKeys;
            d.beta = alpha.data();
            d.a = a.data();
            d.dt = key.data();
            d.strength = 2.0f;
            d.state = std::copy_n(start.data(), kState, out) - kState;
            d.out = out + kState;
            d.tokens = kTokens;
            d.heads = kHeads;
            d.key_heads = 1;
            d.key_dim = kKeys;
            d.value_dim = kValues;
            for (int64_t head = 0; head < kHeads; ++head) kernels.delta_rule(d, head);
        };
    };
    const auto scan = [&](const Kernels& kernels, float* out) {
        ScanArgs s;
        s.x = v.data();
        s.b = q.data();
        s.c = key.data();
        s.dt = alpha.data();
        s.a = q.data();
        s.decays = kKeys;
        s.bias = s.skip = a.data();
        s.state = std::copy_n(start.data(), kState, out) - kState;
        s.out = out + kState;
        s.tokens = kTokens;
        s.heads = kHeads;
        s.head_dim = kValues;
        s.groups = 1;
        s.state_size = kKeys;
        for (int64_t head = 0; head < kHeads; ++head) kernels.selective_scan(s, head);
    };
    const auto convolve = [&](bool silu) {
        return [&, silu](const Kernels& kernels, float* out) {
            ConvolveArgs c;
            c.x = x.data();
            c.weight = weight.data();
            c.bias = silu ? nullptr : x.data();
            c.silu = silu;
            c.state = std::copy_n(start.data(), kBefore, out) - kBefore;
            c.out = out + kBefore;
            c.tokens = kTokens;
            c.channels = kChannels;
            c.width = kWidth;
            kernels.convolve(c, 0, kChannels);
        };
    };
    return agrees<float>(k, kState + kOut, true, delta(0.0f)) &&
           agrees<float>(k, kState + kOut, true, delta(-5.0f)) &&
           agrees<float>(k, kState + kOut, true, scan) &&
           agrees<float>(k, kBefore + kMixed, true, convolve(true)) &&
           agrees<float>(k, kBefore + kMixed, true, convolve(false));
}

bool row_ops_agree(const Kernels& k) {
    constexpr int64_t kCols = 336;
    Random random;
    const std::vector<float> x = random.units(kCols), w = random.units(kCols);
    const auto near = [&](auto run) { return agrees<float>(k, kCols, false, run); };
    for (const Gate kind : {Gate::silu, Gate::gelu_tanh, Gate::relu2, Gate::relu, Gate::sigmoid,
                            Gate::silu_clamped, Gate::swiglu_oai, Gate::identity, Gate::gelu,
                            Gate::gelu_quick, Gate::softplus, Gate::tanh})
        if (!near([&](const Kernels& kernels, float* out) {
                kernels.gate(kind, x.data(), w.data(), kCols - 3, out);
            }))
            return false;
    for (const bool half : {true, false}) {
        RopeArgs a;
        a.x = x.data();
        a.cos = w.data();
        a.sin = w.data() + 20;
        a.half = half;
        a.heads = 8;
        a.head_dim = kCols / 8;
        a.rotated = 40;
        if (!near([&](const Kernels& kernels, float* out) {
                a.out = out;
                kernels.rope(a, 0, 1);
            }))
            return false;
    }
    return near([&](const Kernels& kernels, float* out) {
               kernels.rms_norm(x.data(), w.data(), kCols - 3, 1e-5f, out);
           }) &&
           near([&](const Kernels& kernels, float* out) {
               kernels.softcap(x.data(), kCols - 3, 0.5f, out);
           }) &&
           states_agree(k);
}

// Whether activations are rounded to the same bits, which results depend on.
bool rounding_agrees(const Kernels& k) {
    constexpr int64_t kCols = 416, kRuns = kCols / 32;
    struct Rounded {
        int8_t q[2 * kCols];
        float step[1 + kRuns];
        int32_t sum[1 + kRuns];
    };
    Random random;
    const std::vector<float> x = random.units(kCols);
    const auto blocks = [&](const Kernels& kernels, BlockInput* out) {
        kernels.quantize_block(x.data(), kCols, out);
    };
    const auto others = [&](const Kernels& kernels, Rounded* out) {
        kernels.quantize_ternary(x.data(), kCols, out->q, out->step, out->sum);
        kernels.quantize_runs(x.data(), kCols, out->q + kCols, out->step + 1, out->sum + 1);
    };
    return agrees<BlockInput>(k, kRuns, true, blocks) && agrees<Rounded>(k, 1, true, others);
}

bool attention_agrees(KvType type, const Kernels& k) {
    AttentionArgs a;
    a.kv_type = type;
    a.tokens = 11;
    a.heads = 4;
    a.kv_heads = 2;
    a.head_dim = 72;
    a.start = 70;
    a.window = 68;
    a.scale = 0.2f;
    const int64_t rows = a.tokens * a.heads / a.kv_heads, positions = a.start + a.tokens;
    const size_t page = size_t(2 * a.kv_heads * head_words(a.head_dim, type));
    Random random;
    std::vector<float> q(size_t(a.tokens * a.heads * a.head_dim)),
        kv(size_t(a.kv_heads * a.head_dim));
    for (float& f : q) f = random.unit();
    std::vector<int16_t> pages[2] = {std::vector<int16_t>(2 * page),
                                     std::vector<int16_t>(2 * page)};
    const Kernels* both[2] = {&scalar_kernels(), &k};
    for (int64_t p = 0; p < positions; ++p) {
        for (float& f : kv) f = random.unit();
        for (int i = 0; i < 2; ++i)
            both[i]->store_position(kv.data(), kv.data(), type, a.kv_heads, a.head_dim,
                                    p % kKeyBlock, &pages[i][size_t(p / kKeyBlock) * page]);
    }
    if (pages[0] != pages[1]) return false;
    const int16_t* at[2] = {pages[0].data(), pages[0].data() + page};
    a.q = q.data();
    a.pages = at;
    const auto floats = size_t(PartialAttention::floats(rows, a.head_dim));
    std::vector<float> got(floats), expected(floats);
    auto* scratch = reinterpret_cast<float*>(
        thread_scratch(size_t(attend_scratch(rows, a.head_dim)) * sizeof(float)));
    for (const bool causal : {true, false}) {
        a.causal = causal;
        a.slopes = causal ? nullptr : q.data();
        a.distances = causal ? q.data() : nullptr;
        a.reach = 1;
        for (int64_t head = 0; head < a.kv_heads; ++head)
            for (const int64_t tokens : {int64_t(2), a.tokens}) {  // a few rows; tiles and a rest
                scalar_kernels().attend(a, head, 0, tokens, 0, 1, expected.data(), scratch);
                k.attend(a, head, 0, tokens, 0, 1, got.data(), scratch);
                if (!close(got, expected, true)) return false;
            }
    }
    return true;
}

}  // namespace

std::vector<std::string> self_test() {
    const Kernels& chosen = detail::active();
    std::vector<std::string> wrong;
    const auto check = [&](bool agrees, const std::string& name) {
        if (!agrees) wrong.push_back(name);
    };
    check(rounding_agrees(chosen), "rounding of activations");
    for (int i = 0; i < kTypes; ++i)
        if (!can_tile(Type(i)))  // matrices in rows are checked with gather, as tiles
            check(linear_agrees(Type(i), chosen), std::string("linear ") + kEncodings[i].name);
    check(dequantize_agrees(chosen), "dequantize");
    check(gather_agrees(chosen), "gather");
    check(exact_head_agrees(chosen), "exact head");
    check(row_ops_agree(chosen), "operations on rows");
    check(packing_agrees(chosen), "packing of ternary weights");
    check(attention_agrees(KvType::f16, chosen) && attention_agrees(KvType::q8, chosen),
          "attention");
    const std::vector<const Kernels*>& tables = detail::offered();
    if (wrong.empty() || chosen.name == tables.front()->name) return wrong;
    auto level = tables.end() - 1;
    while ((*level)->name != chosen.name) --level;
    detail::active() = **(level - 1);
    const std::vector<std::string> of_lower_level = self_test();
    wrong.insert(wrong.end(), of_lower_level.begin(), of_lower_level.end());
    return wrong;
}

}  // namespace bitnet

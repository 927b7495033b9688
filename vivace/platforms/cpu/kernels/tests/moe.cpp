// Mixtures of experts: choices and places exactly, weights and sums closely, against plain loops.
#include <numeric>

#include "check.h"

namespace check {
namespace {

struct Gate {
    int64_t experts, top, sigmoid, renormalize, groups, top_groups;
    double scale;
};

const std::vector<Gate> GATES = {
    {1, 1, 0, 0, 1, 1, 1},   {8, 2, 0, 1, 1, 1, 1},    {15, 15, 1, 0, 1, 1, 2.5}, {16, 3, 1, 1, 1, 1, 1},
    {17, 4, 0, 0, 1, 1, 16}, {8, 3, 1, 1, 8, 3, 2.5},  {64, 6, 0, 0, 8, 3, 1},    {60, 8, 1, 1, 4, 2, 2.5},
    {12, 3, 0, 1, 4, 1, 1},  {160, 6, 0, 0, 8, 3, 16}, {256, 8, 1, 1, 8, 4, 2.5}};

// Where the `count` largest are, the first of equals first, and a NaN before every number.
std::vector<int64_t> best_of(const std::vector<double>& x, int64_t count) {
    std::vector<int64_t> at(x.size());
    std::iota(at.begin(), at.end(), 0);
    std::stable_sort(at.begin(), at.end(),
                     [&](int64_t a, int64_t b) { return x[a] > x[b] || (x[a] != x[a] && x[b] == x[b]); });
    at.resize((size_t)count);
    return at;
}

std::vector<double> scores_of(const Gate& gate, const float* x) {
    std::vector<double> scores;
    double row_max = x[0], total = 0;
    for (int64_t i = 0; i < gate.experts; ++i) row_max = std::max(row_max, (double)x[i]);
    for (int64_t i = 0; i < gate.experts; ++i) {
        scores.push_back(gate.sigmoid ? 1 / (1 + std::exp(-(double)x[i])) : std::exp(x[i] - row_max));
        total += scores.back();
    }
    for (double& score : scores) score /= gate.sigmoid ? 1 : total;
    return scores;
}

// A group counts as its best expert or, with a bias, as its two best ones.
void leave_groups(const Gate& gate, std::vector<double>& choice, bool biased) {
    const int64_t size = gate.experts / gate.groups;
    std::vector<double> of_groups;
    for (int64_t g = 0; g < gate.groups; ++g) {
        std::vector<double> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
        const bool two = biased && size > 1;
        double sum = 0;
        for (int64_t at : best_of(group, two ? 2 : 1)) sum += group[at];
        of_groups.push_back(sum);
    }
    const auto best = best_of(of_groups, gate.top_groups);
    for (int64_t i = 0; i < gate.experts; ++i)
        if (std::find(best.begin(), best.end(), i / size) == best.end()) choice[i] = -INFINITY;
}

void choose(const Gate& gate, const float* x, const float* bias, std::vector<int64_t>& chosen,
            std::vector<double>& weights) {
    const auto scores = scores_of(gate, x);
    auto choice = scores;
    for (int64_t i = 0; bias && i < gate.experts; ++i) choice[i] += bias[i];
    if (gate.top_groups < gate.groups) leave_groups(gate, choice, bias);
    double total = 0;
    const auto best = best_of(choice, gate.top);
    for (int64_t expert : best) total += scores[expert];
    for (int64_t expert : best) {
        chosen.push_back(expert);
        weights.push_back(gate.scale *
                          (gate.renormalize ? scores[expert] / (total + 1e-20) : scores[expert]));
    }
}

// Without a bias many logits are equal. `odd`: what some logits become, 0 for none.
bool moe_gate(Suite& suite, Random& random, const Gate& gate, int64_t rows, bool biased, float odd) {
    const int64_t stride = gate.experts + 3;
    std::vector<float> x((size_t)(rows * stride), NAN), bias = floats(random, gate.experts), weights;
    for (int64_t i = 0; i < rows * stride; ++i)
        if (i % stride < gate.experts) x[i] = (float)(random.below(33) - 16) / 8;
    for (int64_t r = 0; odd != 0 && r < rows; r += 2) x[r * stride + random.below(gate.experts)] = odd;
    if (odd < 0) std::fill_n(&x[(rows - 1) * stride], gate.experts, odd);
    std::vector<int64_t> chosen, wanted;
    std::vector<double> expected, scale;
    const auto reset = [&] {
        weights.assign((size_t)(rows * gate.top), 0), chosen.assign(weights.size(), -1);
    };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(biased ? bias.data() : nullptr);
    words.add(weights).add(chosen).add(gate.experts);
    words.add(gate.top).add(gate.sigmoid).add(gate.renormalize);
    words.add(gate.groups).add(gate.top_groups).add(gate.scale);
    if (!suite.run("moe_gate", words, reset, [&] { return bytes_of(chosen); })) return false;
    for (int64_t r = 0; r < rows; ++r)
        choose(gate, &x[r * stride], biased ? bias.data() : nullptr, wanted, expected);
    if (chosen != wanted) return suite.fail("moe_gate", "chooses other experts");
    for (size_t i = 0; i < weights.size(); ++i) {
        const bool number = expected[i] == expected[i];
        if (number != (weights[i] == weights[i])) return suite.fail("moe_gate", "hides or spreads a NaN");
        if (!number) weights[i] = 0, expected[i] = 0;
        scale.push_back(std::fabs(expected[i]) + 1e-6);
    }
    return suite.close("moe_gate", weights, expected, scale, 3e-6);
}

bool moe_gate(Suite& suite, Random& random) {
    for (const Gate& gate : GATES)
        for (int64_t rows : {1, 4, 9})
            for (bool biased : {false, true}) {
                if (!moe_gate(suite, random, gate, rows, biased, 0)) return false;
                if (!moe_gate(suite, random, gate, rows, biased, NAN)) return false;
                if (gate.groups > 1) continue;
                if (!moe_gate(suite, random, gate, rows, biased, -INFINITY)) return false;
                if (!moe_gate(suite, random, gate, rows, biased, INFINITY)) return false;
            }
    return true;
}

// Pairs of tokens and experts, of which the last has no token; some are another rank's.
struct Pairs {
    int64_t rows, top, experts;
    std::vector<int64_t> chosen, places, starts;

    Pairs(Random& random, int64_t tokens, int64_t each, int64_t count)
        : rows(tokens),
          top(each),
          experts(count),
          places((size_t)(tokens * each), -1),
          starts((size_t)(count + 1), 0) {
        const int64_t used = std::max<int64_t>(1, random.below(3) ? experts - 1 : 1);
        const int64_t others = random.below(2);
        for (int64_t i = 0; i < rows * top; ++i)
            chosen.push_back(others && random.below(3) == 0 ? (random.below(2) ? -1 - random.below(5)
                                                                               : experts + random.below(5))
                                                            : random.below(used));
        int64_t next = 0;
        for (int64_t e = 0; e < experts; ++e) {
            starts[e] = next;
            for (int64_t i = 0; i < rows * top; ++i)
                if (chosen[i] == e) places[i] = next++;
        }
        starts[experts] = next;
    }
};

bool moe_place(Suite& suite, Random& random, const Pairs& pairs, int64_t period, bool counted) {
    const int64_t slots = pairs.experts * 2, first = random.below(slots);
    std::vector<int64_t> chosen, positions, table, placed, counts, wanted, sums((size_t)slots, 0);
    for (int64_t i = 0; i < pairs.rows * pairs.top; ++i) chosen.push_back(random.below(pairs.experts));
    for (int64_t i = 0; i < pairs.rows; ++i) positions.push_back(i % 5 == 3 ? -1 : random.below(1 << 20));
    for (int64_t i = 0; i < pairs.experts * period; ++i) table.push_back(random.below(slots));
    const auto reset = [&] { placed.assign(chosen.size(), -9), counts.assign((size_t)slots, 0); };
    reset();
    Words words;
    words.add(pairs.rows).add(chosen).add(positions).add(table).add(placed).add(pairs.top);
    words.add(pairs.experts).add(period).add(first);
    if (counted) words.add(counts);
    else words.add((int64_t)0);
    words.add(slots);
    if (!suite.run("moe_place", words, reset, [&] { return bytes_of(placed); })) return false;
    for (int64_t i = 0; i < pairs.rows * pairs.top; ++i) {
        const int64_t at = positions[i / pairs.top];  // below 0: nobody's
        const int64_t slot = at < 0 ? -1 : table[chosen[i] * period + at % period];
        wanted.push_back(slot - first);
        if (at >= 0) sums[slot] += counted;
    }
    return placed == wanted && counts == sums;
}

bool moe_routes(Suite& suite, const Pairs& pairs) {
    std::vector<int64_t> places, starts;
    const auto reset = [&] {
        places.assign(pairs.places.size(), -1), starts.assign(pairs.starts.size(), -1);
    };
    reset();
    Words words;
    words.add(pairs.rows).add(pairs.chosen).add(places).add(starts).add(pairs.top).add(pairs.experts);
    if (!suite.run("moe_routes", words, reset, [&] { return bytes_of(starts); })) return false;
    return places == pairs.places && starts == pairs.starts;
}

bool moe_permute(Suite& suite, Random& random, const Pairs& pairs, int64_t n, bool weighed) {
    const int64_t stride = n + 3;
    const auto x = floats(random, pairs.rows * stride), weights = floats(random, (int64_t)pairs.places.size());
    std::vector<float> out, wanted(pairs.places.size() * (size_t)n);
    const auto reset = [&] { out.assign(wanted.size(), 0); };
    reset();
    Words words;
    words.add(pairs.rows).add(x).add(stride).add(pairs.places).add(out).add(pairs.top).add(n);
    words.add(weighed ? weights.data() : nullptr);
    if (!suite.run("moe_permute", words, reset, [&] { return bytes_of(out); })) return false;
    for (size_t i = 0; i < pairs.places.size(); ++i)
        for (int64_t c = 0; c < n && pairs.places[i] >= 0; ++c)
            wanted[pairs.places[i] * n + c] = x[(int64_t)i / pairs.top * stride + c] * (weighed ? weights[i] : 1);
    return out == wanted;
}

bool moe_combine(Suite& suite, Random& random, const Pairs& pairs, int64_t n, bool weighed = true) {
    const int64_t stride = n + 3, count = (int64_t)pairs.places.size();
    const auto x = floats(random, count * stride, 4), weights = floats(random, count);
    std::vector<float> out;
    const auto reset = [&] { out.assign((size_t)(pairs.rows * n), 0); };
    reset();
    Words words;
    words.add(pairs.rows).add(x).add(stride).add(pairs.places).add(out).add(pairs.top).add(n);
    words.add(weighed ? weights.data() : nullptr);
    if (!suite.run("moe_combine", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted(out.size(), 0), scale(out.size(), 0);
    for (int64_t i = 0; i < count; ++i)
        for (int64_t c = 0; c < n && pairs.places[i] >= 0; ++c) {
            const double product = (weighed ? (double)weights[i] : 1) * x[pairs.places[i] * stride + c];
            wanted[i / pairs.top * n + c] += product, scale[i / pairs.top * n + c] += std::fabs(product);
        }
    return suite.close("moe_combine", out, wanted, scale, 1e-6);
}

bool add_gated(Suite& suite, Random& random, int64_t rows, int64_t n, bool gated) {
    const int64_t stride = n + 3;
    const auto x = floats(random, rows * stride), gate = floats(random, rows, 20), before = floats(random, rows * n);
    std::vector<float> out;
    const auto reset = [&] { out = before; };
    reset();
    Words words;
    words.add(rows).add(out).add(x).add(stride);
    gated ? words.add(gate).add(n) : words.add(0).add(n);
    if (!suite.run("add_gated", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted(out.size()), scale(out.size());
    for (int64_t i = 0; i < rows * n; ++i) {
        const double by = gated ? 1 / (1 + std::exp(-(double)gate[i / n])) : 1, more = by * x[i / n * stride + i % n];
        wanted[i] = before[i] + more, scale[i] = std::fabs(before[i]) + std::fabs(more);
    }
    return suite.close("add_gated", out, wanted, scale, 2e-6);
}

// Weights of a format as a file has them: `bytes` of `numbers`, whose first two are a half where `scaled`.
struct Kind {
    const char* name;
    int64_t numbers, bytes, panel_header;
    bool scaled;
};

const std::vector<Kind> KINDS = {{"f32", 1, 4, 0, false},   {"bf16", 1, 2, 0, false},
                                 {"i8", 1, 1, 64, false},   {"w8a8", 1, 1, 128, false},
                                 {"q8_0", 32, 34, 0, true}, {"q4_0", 32, 18, 0, true},
                                 {"mxfp4", 32, 17, 0, false}, {"q4_0_a8", 32, 18, 0, true},
                                 {"q5_0_a8", 32, 22, 0, true}};

struct Experts {
    int64_t n, k, panel_bytes;
    std::vector<std::vector<uint8_t>> panels;
    std::vector<float> plain;  // [experts, n, k], f32 only

    bool pack(Suite& suite, Random& random, const Kind& kind, int64_t count) {
        const int64_t row = k / kind.numbers * kind.bytes;
        panel_bytes = 16 * row + kind.panel_header;
        panels.assign((size_t)count, std::vector<uint8_t>((size_t)((n + 15) / 16 * panel_bytes)));
        for (auto& packed : panels) {
            const auto weights = floats(random, n * k), scales = floats(random, n);
            std::vector<uint8_t> bytes;
            for (int64_t i = 0; i < n * row; ++i) bytes.push_back((uint8_t)random.next());
            if (kind.bytes == 4) bytes = bytes_of(weights);
            for (int64_t i = 0; kind.bytes == 2 && i < n * k; ++i)
                bytes[2 * i + 1] = (bytes[2 * i + 1] & 0x80) | 0x3e;
            for (int64_t i = 0; kind.scaled && i < n * row; i += kind.bytes) bytes[i + 1] = 0x20;
            plain.insert(plain.end(), weights.begin(), weights.end());
            Words words;
            words.add(n).add(bytes).add(row).add(packed).add(k).add(scales);
            if (!suite.run((std::string("pack_") + kind.name).c_str(), words, [] {},
                           [&] { return bytes_of(packed); }))
                return false;
        }
        return true;
    }
};

bool quantize_experts(Suite& suite, Random& random, const Pairs& pairs, int64_t n) {
    const int64_t count = (int64_t)pairs.places.size(), stride = n + 3;
    const auto x = floats(random, count * stride, 8), offsets = floats(random, pairs.experts, 9);
    auto scales = floats(random, pairs.experts);
    for (float& scale : scales) scale = 0.02f + std::fabs(scale) / 50;
    std::vector<float> out;
    const auto reset = [&] { out.assign((size_t)(count * n), 0); };
    reset();
    Words words;
    words.add(pairs.rows).add(x).add(stride).add(out).add(n).add(scales).add(offsets);
    words.add(pairs.starts).add(pairs.experts);
    if (!suite.run("quantize_experts", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<float> wanted(out.size(), 0);
    for (int64_t e = 0; e < pairs.experts; ++e)
        for (int64_t row = pairs.starts[e]; row < pairs.starts[e + 1]; ++row)
            for (int64_t i = 0; i < n; ++i) {
                const float number = x[row * stride + i] / scales[e] + offsets[e];
                wanted[row * n + i] = std::nearbyintf(std::fmin(127.0f, std::fmax(-128.0f, number)));
            }
    return out == wanted || suite.fail("quantize_experts", "other numbers");
}

// Each expert's rows have the bits that quantize_rows gives them alone.
bool quantize_groups(Suite& suite, const Pairs& pairs, const std::vector<float>& x, int64_t stride, int64_t k,
                     std::vector<uint8_t>& int8) {
    std::vector<uint8_t> alone(int8.size());
    Words words;
    words.add(pairs.rows).add(x).add(stride).add(int8).add(k).add(pairs.starts).add(pairs.experts);
    if (!suite.run("quantize_groups", words, [&] { std::fill(int8.begin(), int8.end(), 0); },
                   [&] { return bytes_of(int8); })) return false;
    for (int64_t e = 0; e < pairs.experts; ++e) {
        const int64_t first = pairs.starts[e], rows = pairs.starts[e + 1] - first;
        Words one;
        one.add(rows).add(&x[first * stride]).add(stride).add(&alone[first * k / 32 * 48]).add(k);
        if (rows) run_one(suite.contexts[0], vv_find(suite.contexts[0], "quantize_rows"), one.list.data());
    }
    return int8 == alone || suite.fail("quantize_groups", "differs from quantize_rows");
}

// Each expert's rows have the bits of an ordinary product; in float32 they are compared with a plain one too.
bool grouped_linear(Suite& suite, Random& random, const Kind& kind, const Pairs& pairs, int64_t n,
                    int64_t k, bool biased) {
    Experts experts{n, k, 0, {}, {}};
    if (!experts.pack(suite, random, kind, pairs.experts)) return false;
    const int64_t count = (int64_t)pairs.places.size(), stride = k + 5, out_stride = n + 3;
    const auto x = floats(random, count * stride), bias = floats(random, pairs.experts * (n + 5));
    std::vector<const void*> addresses;
    for (const auto& packed : experts.panels) addresses.push_back(packed.data());
    const int64_t op = vv_find(suite.contexts[0], (std::string("linear_") + kind.name).c_str());
    std::vector<float> out, alone((size_t)(count * out_stride), 0);
    const auto reset = [&] { out.assign(alone.size(), 0); };
    reset();
    Words words;
    words.add(pairs.rows).add(vv_address(suite.contexts[0], op)).add(x);
    words.add(stride).add(addresses).add(experts.panel_bytes);
    words.add(pairs.starts).add(out).add(out_stride).add(n).add(k).add(pairs.experts);
    words.add(biased ? bias.data() : nullptr).add(n + 5);
    std::vector<uint8_t> int8((size_t)(count * k / 32 * 48));
    const bool quantized = std::strstr(kind.name, "_a8");
    if (quantized && !quantize_groups(suite, pairs, x, stride, k, int8)) return false;
    words.add(quantized ? int8.data() : nullptr).add(k / 32 * 48);
    if (!suite.run("grouped_linear", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted(out.size(), 0), scale(out.size(), 0);
    for (int64_t e = 0; e < pairs.experts; ++e) {
        const int64_t first = pairs.starts[e];
        Words one;
        one.add(pairs.starts[e + 1] - first).add(&x[first * stride]).add(stride);
        one.add(experts.panels[e]).add(biased ? &bias[e * (n + 5)] : nullptr);
        one.add(&alone[first * out_stride]).add(out_stride).add(n).add(k).add(0);
        if (one.list[0]) run_one(suite.contexts[0], op, one.list.data());
        for (int64_t i = first * n; kind.bytes == 4 && i < pairs.starts[e + 1] * n; ++i) {
            if (biased) wanted[i / n * out_stride + i % n] = bias[e * (n + 5) + i % n], scale[i / n * out_stride + i % n] = 1;
            for (int64_t j = 0; j < k; ++j) {
                const double product = (double)x[i / n * stride + j] * experts.plain[(e * n + i % n) * k + j];
                wanted[i / n * out_stride + i % n] += product,
                    scale[i / n * out_stride + i % n] += std::fabs(product);
            }
        }
    }
    if (bytes_of(out) != bytes_of(alone))
        return suite.fail("grouped_linear", "differs from ordinary products");
    return kind.bytes != 4 || suite.close("grouped_linear", out, wanted, scale, 3e-6);
}

// `test` of few and many pairs; experts may be one.
bool each_pairs(Random& random, const std::function<bool(const Pairs&)>& test) {
    for (int64_t rows : {1, 4, 5, 61})
        for (int64_t experts : {1, 2, 7, 64})
            for (int64_t top : {1, 3})
                if (!test(Pairs(random, rows, top, experts))) return false;
    return true;
}

}  // namespace

void moe(Suite& suite) {
    suite.op("moe_gate", [&](Random& random) { return moe_gate(suite, random); });
    suite.op("moe_place", [&](Random& random) {
        return each_pairs(random, [&](const Pairs& pairs) {
            return moe_place(suite, random, pairs, 1, false) && moe_place(suite, random, pairs, 6, true);
        });
    });
    suite.op("moe_routes", [&](Random& random) {
        return each_pairs(random, [&](const Pairs& pairs) { return moe_routes(suite, pairs); });
    });
    suite.op("moe_permute", [&](Random& random) {
        return each_pairs(random, [&](const Pairs& pairs) {
            return moe_permute(suite, random, pairs, 1, false) && moe_permute(suite, random, pairs, 21, false) &&
                   moe_permute(suite, random, pairs, 37, true);
        });
    });
    suite.op("moe_combine", [&](Random& random) {
        return each_pairs(random, [&](const Pairs& pairs) {
            return moe_combine(suite, random, pairs, 1) && moe_combine(suite, random, pairs, 16) &&
                   moe_combine(suite, random, pairs, 37) && moe_combine(suite, random, pairs, 37, false);
        });
    });
    suite.op("add_gated", [&](Random& random) {
        for (int64_t rows : {1, 5, 60})
            for (int64_t n : {1, 16, 37})
                if (!add_gated(suite, random, rows, n, true) || !add_gated(suite, random, rows, n, false)) return false;
        return true;
    });
    suite.op("quantize_experts", [&](Random& random) {
        return each_pairs(random, [&](const Pairs& pairs) {
            return quantize_experts(suite, random, pairs, 16) && quantize_experts(suite, random, pairs, 37);
        });
    });
    suite.op("quantize_groups", [&](Random& random) {
        return each_pairs(random, [&](const Pairs& pairs) {
            const auto x = floats(random, (int64_t)pairs.places.size() * 101, 3);
            std::vector<uint8_t> int8(pairs.places.size() * 3 * 48);
            return quantize_groups(suite, pairs, x, 101, 96, int8);
        });
    });
    suite.op("grouped_linear", [&](Random& random) {
        for (const Kind& kind : KINDS)
            for (int64_t rows : {1, 5, 60})
                for (int64_t n : {16, 64, 100})
                    if (!grouped_linear(suite, random, kind, Pairs(random, rows, 2, 5), n, 96, n > 64)) return false;
        return true;
    });
}

}  // namespace check

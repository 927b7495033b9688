// W8A8: int8 weights by activations that the operation makes int8, row by row.
#include "check.h"

namespace check {
namespace {

struct Quantized {
    int64_t n, k;
    std::vector<int8_t> weights;  // [n, k]
    std::vector<float> scales;
    std::vector<uint8_t> panels;

    Quantized(Random& random, int64_t columns, int64_t depth) : n(columns), k(depth), scales(floats(random, columns)) {
        weights.resize((size_t)(n * k));
        for (auto& w : weights) w = (int8_t)(random.below(256) - 128);
        for (int64_t i = 0; i < k; ++i) weights[i] = 127;  // the largest sums there are
        panels.resize((size_t)((n + 15) / 16 * (128 + (k + 3) / 4 * 64)));
    }

    bool pack(Suite& suite) {
        Words words;
        words.add(n).add(weights).add(k).add(panels).add(k).add(scales);
        return suite.run("pack_w8a8", words, [&] { std::fill(panels.begin(), panels.end(), 0xa5); },
                         [&] { return bytes_of(panels); });
    }
};

// The nearest int8 of every number, and the row's scale.
float quantize(const float* x, int64_t k, std::vector<int64_t>& out) {
    float largest = 1e-10f;
    for (int64_t i = 0; i < k; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float factor = 127.0f / largest;
    out.resize((size_t)k);
    for (int64_t i = 0; i < k; ++i) out[i] = (int64_t)std::nearbyintf(x[i] * factor);
    return largest / 127.0f;
}

bool multiply(Suite& suite, const Quantized& layer, Random& random, int64_t rows, bool biased) {
    const int64_t n = layer.n, k = layer.k, stride = k + 5, out_stride = n + 3;
    auto x = floats(random, rows * stride, 3);
    for (int64_t i = 0; i < k; ++i) x[i] = 2.5f;
    const auto bias = floats(random, n);
    std::vector<float> out, wanted((size_t)(rows * out_stride), 0);
    const auto reset = [&] { out.assign(wanted.size(), 0); };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(layer.panels).add(biased ? bias.data() : nullptr);
    words.add(out).add(out_stride).add(n).add(k);
    if (!suite.run("linear_w8a8", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<int64_t> quantized;
    for (int64_t r = 0; r < rows; ++r) {
        const float scale = quantize(&x[r * stride], k, quantized);
        for (int64_t c = 0; c < n; ++c) {
            int64_t sum = 0;
            for (int64_t i = 0; i < k; ++i) sum += quantized[i] * layer.weights[c * k + i];
            const float y = (float)sum * (scale * layer.scales[c]);
            wanted[r * out_stride + c] = biased ? y + bias[c] : y;
        }
    }
    return out == wanted || suite.fail("linear_w8a8", "differs from exact sums");
}

}  // namespace

void linear_vnni(Suite& suite) {
    suite.op("pack_w8a8", [&](Random& random) { return Quantized(random, 37, 130).pack(suite); });
    suite.op("linear_w8a8", [&](Random& random) {
        for (int64_t k : {2, 66, 1536})
            for (int64_t n : {16, 200}) {
                Quantized layer(random, n, k);
                if (!layer.pack(suite)) return false;
                for (int64_t rows : {1, 2, 5, 12, 13, 29, 100})
                    if (!multiply(suite, layer, random, rows, rows % 2)) return false;
            }
        return true;
    });
}

}  // namespace check

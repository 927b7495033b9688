// Linear layers with a weight for each head, against ordinary ones and plain loops.
#include "check.h"

namespace check {
namespace {

// Each head has the bits of an ordinary product over its part of x; in float32 it is compared with a plain one too.
bool heads_linear(Suite& suite, Random& random, const char* kind, int64_t bytes, int64_t rows, int64_t heads,
                  int64_t n, int64_t k) {
    const int64_t head_stride = k + 3, stride = heads * head_stride + 5, panel_bytes = 16 * k * bytes;
    const auto x = floats(random, rows * stride);
    std::vector<std::vector<float>> weights;
    std::vector<std::vector<uint8_t>> panels;
    std::vector<const void*> addresses;
    for (int64_t h = 0; h < heads; ++h) {
        weights.push_back(floats(random, n * k));
        std::vector<uint16_t> halves;
        for (float& w : weights.back()) halves.push_back(to_bf16(w)), w = bytes == 2 ? from_bf16(halves.back()) : w;
        panels.emplace_back((size_t)((n + 15) / 16 * panel_bytes));
        Words words;
        words.add(n).add(bytes == 2 ? (const void*)halves.data() : weights.back().data()).add(k * bytes);
        words.add(panels.back()).add(k).add(nullptr);
        const std::string pack = std::string("pack_") + kind;
        if (!suite.run(pack.c_str(), words, [] {}, [&] { return bytes_of(panels.back()); })) return false;
    }
    for (const auto& packed : panels) addresses.push_back(packed.data());
    const int64_t op = vv_find(suite.contexts[0], (std::string("linear_") + kind).c_str());
    std::vector<float> out, alone((size_t)(rows * heads * n), 0);
    const auto reset = [&] { out.assign(alone.size(), 0); };
    reset();
    Words words;
    words.add(rows).add(vv_address(suite.contexts[0], op)).add(x).add(stride).add(head_stride).add(addresses);
    words.add(panel_bytes).add(out).add(n).add(k).add(heads);
    if (!suite.run("heads_linear", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted(out.size(), 0), scale(out.size(), 0);
    for (int64_t h = 0; h < heads; ++h) {
        Words one;
        one.add(rows).add(&x[h * head_stride]).add(stride).add(panels[h]).add(nullptr);
        one.add(&alone[h * n]).add(heads * n).add(n).add(k);
        run_one(suite.contexts[0], op, one.list.data());
        for (int64_t i = 0; i < rows * n; ++i)
            for (int64_t j = 0; j < k; ++j) {
                const size_t at = (size_t)((i / n * heads + h) * n + i % n);
                const double product = (double)x[i / n * stride + h * head_stride + j] * weights[h][i % n * k + j];
                wanted[at] += product, scale[at] += std::fabs(product);
            }
    }
    if (bytes_of(out) != bytes_of(alone)) return suite.fail("heads_linear", "differs from ordinary products");
    // kernels of bfloat16 may round x too
    return suite.close("heads_linear", out, wanted, scale, bytes == 4 ? 3e-6 : 8e-3);
}

}  // namespace

void heads(Suite& suite) {
    suite.op("heads_linear", [&](Random& random) {
        for (int64_t rows : {1, 3, 20})
            for (int64_t heads : {1, 5})
                for (int64_t n : {16, 24, 130})
                    for (int64_t k : {8, 64})
                        if (!heads_linear(suite, random, "f32", 4, rows, heads, n, k) ||
                            !heads_linear(suite, random, "bf16", 2, rows, heads, n, k))
                            return false;
        return true;
    });
}

}  // namespace check

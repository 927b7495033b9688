// Products by segments of their inputs: the bits of ordinary products, added by the tree in float32.
#include "check.h"

namespace check {
namespace {

// A tree over seven segments of which the rank keeps two subtrees: ((0 1) (2 3)) and (4 (5 6)); 2 and 6 are empty.
const std::vector<int64_t> INPUTS = {32, 64, 0, 32, 96, 32, 0}, MERGES = {0, 1, 0, 2, 0, 0, 2};
constexpr int64_t SUMS = 2;

// What a stack makes of the sums.
std::vector<std::vector<float>> add_by_tree(const std::vector<std::vector<float>>& sums,
                                            const std::vector<int64_t>& merges) {
    std::vector<std::vector<float>> left;
    for (size_t s = 0; s < sums.size(); ++s) {
        left.push_back(sums[s]);
        for (int64_t m = 0; m < merges[s]; ++m) {
            const auto last = left.back();
            left.pop_back();
            for (size_t i = 0; i < last.size(); ++i) left.back()[i] += last[i];
        }
    }
    return left;
}

struct Format {
    const char* name;
    int64_t numbers, bytes, header;  // of a block; of a panel
};

const std::vector<Format> FORMATS = {{"f32", 1, 4, 0}, {"w8a8", 1, 1, 128}, {"q4_0_a8", 32, 18, 0}};

// Panels of one segment; numbers of a plausible size.
std::vector<uint8_t> pack(Suite& suite, Random& random, const Format& format, int64_t n, int64_t k) {
    const int64_t row = k / format.numbers * format.bytes;
    const auto weights = floats(random, n * k), scales = floats(random, n);
    std::vector<uint8_t> bytes, panels((size_t)((n + 15) / 16 * (16 * row + format.header)));
    for (int64_t i = 0; i < n * row; ++i) bytes.push_back((uint8_t)random.next());
    if (format.bytes == 4) bytes = bytes_of(weights);
    for (int64_t i = 0; format.numbers > 1 && i < n * row; i += format.bytes) bytes[i + 1] = 0x20;
    Words words;
    words.add(n).add(bytes).add(row).add(panels).add(k).add(scales);
    run_one(suite.contexts[0], vv_find(suite.contexts[0], (std::string("pack_") + format.name).c_str()),
           words.list.data());
    return panels;
}

// `experts` 0: one weight for all rows; otherwise their rows follow each other, the last one has none.
bool segmented_linear(Suite& suite, Random& random, const Format& format, int64_t rows, int64_t n, int64_t experts,
                      bool biased) {
    const int64_t count = experts ? experts : 1, segments = (int64_t)INPUTS.size(), stride = 256 + 5;
    std::vector<std::vector<uint8_t>> panels;
    std::vector<const void*> addresses;
    std::vector<int64_t> bytes, starts;
    for (int64_t k : INPUTS) bytes.push_back(16 * (k / format.numbers * format.bytes) + format.header);
    for (int64_t i = 0; i < count * segments; ++i) {
        const int64_t k = INPUTS[i % segments];
        panels.push_back(k ? pack(suite, random, format, n, k) : std::vector<uint8_t>());
    }
    for (const auto& one : panels) addresses.push_back(one.empty() ? nullptr : one.data());
    for (int64_t e = 0; e <= experts; ++e) starts.push_back(e == experts ? rows : e * rows / (experts > 1 ? experts - 1 : 1));
    if (experts > 1) starts[experts - 1] = rows;
    const auto x = floats(random, rows * stride), bias = floats(random, count * n);
    const int64_t op = vv_find(suite.contexts[0], (std::string("linear_") + format.name).c_str());
    std::vector<float> out, wanted;
    const auto reset = [&] { out.assign((size_t)(rows * SUMS * n), 0); };
    reset();
    Words words;
    words.add(rows).add(vv_address(suite.contexts[0], op)).add(x).add(stride).add(addresses).add(bytes).add(INPUTS);
    words.add(MERGES).add(segments).add(experts ? starts.data() : nullptr).add(count).add(out).add(n).add(SUMS);
    words.add(biased ? bias.data() : nullptr);
    if (!suite.run("segmented_linear", words, reset, [&] { return bytes_of(out); })) return false;
    for (int64_t row = 0; row < rows; ++row) {
        int64_t expert = 0, at = 0;
        while (experts && row >= starts[expert + 1]) ++expert;
        std::vector<std::vector<float>> sums;
        for (int64_t s = 0; s < segments; at += INPUTS[s++]) {
            const float* added = biased && s == 0 ? &bias[expert * n] : nullptr;
            std::vector<float> y((size_t)n, 0);
            Words one;
            one.add((int64_t)1).add(&x[row * stride + at]).add(stride).add(panels[expert * segments + s]).add(added);
            one.add(y).add(n).add(n).add(INPUTS[s]).add(0);
            if (INPUTS[s]) run_one(suite.contexts[0], op, one.list.data());
            sums.push_back(y);
        }
        for (const auto& sum : add_by_tree(sums, MERGES)) wanted.insert(wanted.end(), sum.begin(), sum.end());
    }
    return out == wanted || suite.fail("segmented_linear", "differs from ordinary products");
}

bool add_segments(Suite& suite, Random& random, int64_t rows, int64_t n) {
    const std::vector<int64_t> merges = {0, 0, 1, 1, 0, 2};
    const int64_t count = (int64_t)merges.size(), stride = count * n + 3;
    const auto x = floats(random, rows * stride);
    std::vector<float> out, wanted;
    const auto reset = [&] { out.assign((size_t)(rows * n), 0); };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(merges).add(count).add(out).add(n);
    if (!suite.run("add_segments", words, reset, [&] { return bytes_of(out); })) return false;
    for (int64_t row = 0; row < rows; ++row) {
        std::vector<std::vector<float>> sums;
        for (int64_t s = 0; s < count; ++s)
            sums.emplace_back(x.begin() + row * stride + s * n, x.begin() + row * stride + (s + 1) * n);
        const auto left = add_by_tree(sums, merges);
        wanted.insert(wanted.end(), left[0].begin(), left[0].end());
    }
    return out == wanted || suite.fail("add_segments", "another order");
}

}  // namespace

void segments(Suite& suite) {
    suite.op("segmented_linear", [&](Random& random) {
        for (const Format& format : FORMATS)
            for (int64_t rows : {1, 5, 61})
                for (int64_t n : {16, 100})
                    for (int64_t experts : {0, 3})
                        if (!segmented_linear(suite, random, format, rows, n, experts, n > 16)) return false;
        return true;
    });
    suite.op("add_segments", [&](Random& random) {
        return add_segments(suite, random, 1, 1) && add_segments(suite, random, 9, 37) &&
               add_segments(suite, random, 4, 64);
    });
}

}  // namespace check

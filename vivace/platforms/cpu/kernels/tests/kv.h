// Keys and values as a cache keeps them.
#pragma once
#include "check.h"

namespace check {

constexpr int64_t WIDE = 0, BF16 = 1, INT8 = 2;  // as KvType in kvcache.inc

// For each span of a step of single tokens how many of its last keys lie elsewhere, and their slots. Any of the
// tokens in `pages` may be that; a span that is shorter than `longest` keys has as many as it has.
struct Paths {
    int64_t stride;
    std::vector<int64_t> words;

    Paths(Random& random, const std::vector<int64_t>& lengths, int64_t longest, int64_t slots) : stride(longest + 2) {
        for (const int64_t length : lengths) {
            const int64_t count = std::min(random.below(longest + 1), length);
            words.push_back(count);
            for (int64_t i = 1; i < stride; ++i) words.push_back(i <= count ? random.below(slots) : -1);
        }
    }
    // The slot of a key of a span of `length` tokens; -1: it lies where pages say.
    int64_t find(int64_t span, int64_t length, int64_t key) const {
        const int64_t* path = &words[(size_t)(span * stride)];
        return key < length - path[0] ? -1 : path[1 + key - (length - path[0])];
    }
};

inline int64_t kept_bytes(int64_t kv, int64_t dim) {
    return kv == WIDE ? 4 * dim : kv == BF16 ? 2 * dim : dim + 4;
}

// `heads` heads of `dim` numbers as a KV type keeps them; the numbers become what can be read back.
inline std::vector<uint8_t> kept_as(int64_t kv, std::vector<float>& numbers, int64_t dim) {
    std::vector<uint8_t> out;
    const auto put = [&](const void* p, size_t n) {
        out.insert(out.end(), (const uint8_t*)p, (const uint8_t*)p + n);
    };
    for (size_t head = 0; head < numbers.size(); head += (size_t)dim) {
        float largest = 0;
        bool finite = true;
        for (int64_t i = 0; i < dim; ++i) {
            largest = std::max(largest, std::fabs(numbers[head + i]));
            finite = finite && std::isfinite(numbers[head + i]);
        }
        const bool kept = finite && largest >= 1e-36f;
        const float scale = kept ? largest / 127 : finite ? 0 : NAN, inverse = 127 / largest;
        for (int64_t i = 0; i < dim; ++i) {
            float& x = numbers[head + i];
            const uint16_t half = to_bf16(x);
            const int8_t byte = kept ? (int8_t)std::nearbyintf(x * inverse) : 0;
            if (kv == WIDE) put(&x, 4);
            if (kv == BF16) put(&half, 2), x = from_bf16(half);
            if (kv == INT8) put(&byte, 1), x = (float)byte * scale;
        }
        if (kv == INT8) put(&scale, 4);
    }
    return out;
}

}  // namespace check

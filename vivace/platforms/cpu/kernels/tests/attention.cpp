// Rotary embedding, stores into paged KV, and attention over it, against plain double loops.
#include <algorithm>

#include "check.h"

namespace check {
namespace {

constexpr int64_t PAGE = 16;

struct Shape {
    int64_t heads, kv_heads, head_dim, window;
    double soft_cap;
    int64_t kv;  // as KvType in kvcache.inc
};

constexpr int64_t WIDE = 0, BF16 = 1, INT8 = 2;

// `heads` heads of `dim` numbers as a KV type keeps them; the numbers become what can be read back.
std::vector<uint8_t> kept_as(int64_t kv, std::vector<float>& numbers, int64_t dim) {
    std::vector<uint8_t> out;
    const auto put = [&](const void* p, size_t n) { out.insert(out.end(), (const uint8_t*)p, (const uint8_t*)p + n); };
    for (size_t head = 0; head < numbers.size(); head += (size_t)dim) {
        float most = 0;
        for (int64_t i = 0; i < dim; ++i) most = std::max(most, std::fabs(numbers[head + i]));
        const float scale = most / 127, inverse = 127 / most;
        for (int64_t i = 0; i < dim; ++i) {
            float& x = numbers[head + i];
            const uint16_t half = to_bf16(x);
            const int8_t byte = most > 0 ? (int8_t)std::nearbyintf(x * inverse) : 0;
            if (kv == WIDE) put(&x, 4);
            if (kv == BF16) put(&half, 2), x = from_bf16(half);
            if (kv == INT8) put(&byte, 1), x = (float)byte * scale;
        }
        if (kv == INT8) put(&scale, 4);
    }
    return out;
}

// A KV cache of random numbers whose pages lie in any order.
struct Cache {
    const Shape& shape;
    int64_t pages_a_span;
    std::vector<float> floats_;
    std::vector<uint8_t> bytes;
    std::vector<int64_t> pages;

    Cache(const Shape& s, Random& random, const std::vector<int64_t>& lengths) : shape(s) {
        pages_a_span = (*std::max_element(lengths.begin(), lengths.end()) + PAGE - 1) / PAGE + 1;
        const int64_t count = (int64_t)lengths.size() * pages_a_span;
        for (int64_t i = 0; i < count; ++i) pages.push_back(i);
        for (int64_t i = count - 1; i > 0; --i) std::swap(pages[i], pages[random.below(i + 1)]);
        floats_ = floats(random, count * PAGE * 2 * s.kv_heads * s.head_dim);
        bytes = kept_as(s.kv, floats_, s.head_dim);
    }
    const float* at(int64_t span, int64_t position, int64_t head, bool value) const {
        const int64_t token = pages[span * pages_a_span + position / PAGE] * PAGE + position % PAGE;
        return &floats_[((token * 2 + value) * shape.kv_heads + head) * shape.head_dim];
    }
};

struct Query {
    int64_t span, position;
};

void attend(const Shape& s, const Cache& cache, Query query, const float* q, int64_t head, double* out) {
    const int64_t kv_head = head / (s.heads / s.kv_heads);
    const int64_t first = s.window && query.position >= s.window ? query.position - s.window + 1 : 0;
    std::vector<double> scores;
    for (int64_t p = first; p <= query.position; ++p) {
        double dot = 0;
        for (int64_t i = 0; i < s.head_dim; ++i) dot += (double)q[i] * cache.at(query.span, p, kv_head, false)[i];
        dot /= std::sqrt((double)s.head_dim);
        scores.push_back(s.soft_cap > 0 ? s.soft_cap * std::tanh(dot / s.soft_cap) : dot);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - most);
    for (int64_t i = 0; i < s.head_dim; ++i) {
        out[i] = 0;
        for (size_t p = 0; p < scores.size(); ++p)
            out[i] += scores[p] / total * cache.at(query.span, first + (int64_t)p, kv_head, true)[i];
    }
}

// `fresh` queries at the end of each span; all of them 1 is a decoding step.
bool attention(Suite& suite, Random& random, const Shape& s, const std::vector<int64_t>& lengths,
               const std::vector<int64_t>& fresh, bool decoding) {
    const int64_t spans = (int64_t)lengths.size(), width = s.heads * s.head_dim, group = s.heads / s.kv_heads;
    std::vector<int64_t> starts = {0};
    std::vector<Query> queries;
    for (int64_t span = 0; span < spans; ++span) {
        for (int64_t i = 0; i < fresh[span]; ++i) queries.push_back({span, lengths[span] - fresh[span] + i});
        starts.push_back((int64_t)queries.size());
    }
    const Cache cache(s, random, lengths);
    const int64_t rows = (int64_t)queries.size(), q_stride = width + 8, max_tiles = 64;
    const auto q = floats(random, rows * q_stride, 2);
    std::vector<float> out, partial((size_t)(spans * s.kv_heads * max_tiles * (2 * ((group + 15) / 16 * 16) + group * s.head_dim)));
    std::vector<int64_t> arrivals((size_t)(spans * s.kv_heads), 0);
    const auto reset = [&] { out.assign((size_t)(rows * width), 0); };
    reset();
    Words words;
    words.add(rows).add(q).add(q_stride).add(out).add(width).add(cache.bytes).add(s.kv).add(PAGE);
    words.add(s.heads).add(s.kv_heads).add(s.head_dim).add(1 / std::sqrt((double)s.head_dim)).add(s.window).add(s.soft_cap);
    words.add(cache.pages).add(cache.pages_a_span).add(lengths).add(decoding ? nullptr : starts.data()).add(spans);
    words.add(partial).add(arrivals).add(spans).add(max_tiles);
    if (!suite.run("attention", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted(out.size());
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t head = 0; head < s.heads; ++head)
            attend(s, cache, queries[row], &q[row * q_stride + head * s.head_dim], head, &wanted[row * width + head * s.head_dim]);
    return suite.close("attention", out, wanted, std::vector<double>(out.size(), 1), 2e-5);
}

bool rotary_store(Suite& suite, Random& random, int64_t kv) {
    const int64_t rows = 11, heads = 3, kv_heads = 2, dim = 24, rotated = 20, half = rotated / 2, tokens = 40;
    const int64_t q_stride = heads * dim + 4, k_stride = kv_heads * dim + 2, size = kv_heads * dim;
    const auto q0 = floats(random, rows * q_stride), k0 = floats(random, rows * k_stride), v = floats(random, rows * k_stride);
    const auto turns = floats(random, 50 * rotated);
    std::vector<int64_t> positions, slots;
    for (int64_t i = 0; i < rows; ++i) positions.push_back(random.below(50)), slots.push_back((i * 7 + 3) % tokens);
    std::vector<float> q, k;
    std::vector<uint8_t> memory;
    const int64_t element = kv == WIDE ? 4 : kv == BF16 ? 2 : 1, row = dim * element + (kv == INT8 ? 4 : 0);
    const auto reset = [&] {
        q = q0, k = k0;
        memory.assign((size_t)(tokens * 2 * kv_heads * row), 0);
    };
    reset();
    Words words;
    words.add(rows).add(q).add(q_stride).add(heads).add(k).add(k_stride).add(v).add(k_stride).add(positions).add(slots);
    words.add(turns).add(rotated).add(memory).add(kv).add(kv_heads).add(dim);
    if (!suite.run("rotary_store", words, reset, [&] {
            auto bytes = bytes_of(q), more = bytes_of(memory);
            bytes.insert(bytes.end(), more.begin(), more.end());
            return bytes;
        }))
        return false;
    const auto turn = [&](const float* x, int64_t i, int64_t position) -> double {
        const float* t = &turns[position * rotated];
        if (i < half) return (double)x[i] * t[i] - (double)x[i + half] * t[half + i];
        return i < rotated ? (double)x[i] * t[i - half] + (double)x[i - half] * t[i] : x[i];
    };
    std::vector<float> got, fresh;
    std::vector<double> wanted;
    std::vector<uint8_t> kept;
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < heads * dim; ++i) {
            got.push_back(q[r * q_stride + i]);
            wanted.push_back(turn(&q0[r * q_stride + i / dim * dim], i % dim, positions[r]));
        }
        for (int64_t i = 0; i < size; ++i) {
            got.push_back(k[r * k_stride + i]);
            wanted.push_back(turn(&k0[r * k_stride + i / dim * dim], i % dim, positions[r]));
        }
        fresh.insert(fresh.end(), &k[r * k_stride], &k[r * k_stride] + size);
        fresh.insert(fresh.end(), &v[r * k_stride], &v[r * k_stride] + size);
        const auto at = memory.begin() + slots[r] * 2 * kv_heads * row;
        kept.insert(kept.end(), at, at + 2 * kv_heads * row);
    }
    if (kept != kept_as(kv, fresh, dim)) return suite.fail("rotary_store", "keeps other keys and values");
    return suite.close("rotary_store", got, wanted, std::vector<double>(got.size(), 1), 1e-6);
}

}  // namespace

void attention(Suite& suite) {
    suite.op("rotary_store", [&](Random& random) {
        return rotary_store(suite, random, WIDE) && rotary_store(suite, random, BF16) && rotary_store(suite, random, INT8);
    });
    suite.op("attention", [&](Random& random) {
        for (const Shape& shape : std::vector<Shape>{{6, 2, 64, 0, 0, BF16}, {4, 4, 48, 0, 0, WIDE}, {9, 3, 64, 20, 0, BF16},
                                                     {4, 1, 128, 0, 5, WIDE}, {9, 3, 64, 0, 0, INT8}, {4, 2, 80, 30, 0, INT8}}) {
            if (!attention(suite, random, shape, {1, 17, 300, 64}, {1, 1, 1, 1}, true)) return false;
            if (!attention(suite, random, shape, {700}, {1}, true)) return false;
            if (!attention(suite, random, shape, {5, 90, 64, 130}, {5, 40, 1, 130}, false)) return false;
        }
        return true;
    });
}

}  // namespace check

// Attention over paged KV against plain double loops.
#include "kv.h"

namespace check {
namespace {

constexpr int64_t PAGE = 16;

struct Shape {
    int64_t heads, kv_heads, head_dim, window;
    double soft_cap;
    int64_t kv;
    bool sinks = false;
    int64_t chunk = 0;
};

// A KV cache of random numbers whose pages lie in any order.
struct Cache {
    const Shape& shape;
    int64_t pages_a_span;
    std::vector<float> floats_;
    std::vector<uint8_t> bytes;
    std::vector<int64_t> pages, lengths;
    const Paths* paths = nullptr;

    Cache(const Shape& s, Random& random, const std::vector<int64_t>& of) : shape(s), lengths(of) {
        pages_a_span = (*std::max_element(lengths.begin(), lengths.end()) + PAGE - 1) / PAGE + 1;
        const int64_t count = (int64_t)lengths.size() * pages_a_span;
        for (int64_t i = 0; i < count; ++i) pages.push_back(i);
        for (int64_t i = count - 1; i > 0; --i) std::swap(pages[i], pages[random.below(i + 1)]);
        floats_ = floats(random, count * PAGE * 2 * s.kv_heads * s.head_dim);
        bytes = kept_as(s.kv, floats_, s.head_dim);
    }
    const float* at(int64_t span, int64_t position, int64_t head, bool value) const {
        int64_t token = paths ? paths->find(span, lengths[span], position) : -1;
        if (token < 0) token = pages[span * pages_a_span + position / PAGE] * PAGE + position % PAGE;
        return &floats_[((token * 2 + value) * shape.kv_heads + head) * shape.head_dim];
    }
};

struct Query {
    int64_t span, position;
};

void attend(const Shape& s, const Cache& cache, Query query, const float* q, int64_t head, const float* sinks,
            double* out) {
    const int64_t kv_head = head / (s.heads / s.kv_heads);
    const int64_t first = s.chunk                                  ? query.position / s.chunk * s.chunk
                          : s.window && query.position >= s.window ? query.position - s.window + 1
                                                                   : 0;
    std::vector<double> scores;
    for (int64_t p = first; p <= query.position; ++p) {
        double dot = 0;
        for (int64_t i = 0; i < s.head_dim; ++i) dot += (double)q[i] * cache.at(query.span, p, kv_head, false)[i];
        dot /= std::sqrt((double)s.head_dim);
        scores.push_back(s.soft_cap > 0 ? s.soft_cap * std::tanh(dot / s.soft_cap) : dot);
    }
    const double sink = s.sinks ? sinks[head] : -INFINITY;
    const double row_max = std::max(sink, *std::max_element(scores.begin(), scores.end()));
    double total = std::exp(sink - row_max);
    for (double& score : scores) total += score = std::exp(score - row_max);
    for (int64_t i = 0; i < s.head_dim; ++i) {
        out[i] = 0;
        for (size_t p = 0; p < scores.size(); ++p)
            out[i] += scores[p] / total * cache.at(query.span, first + (int64_t)p, kv_head, true)[i];
    }
}

// `fresh` queries at the end of each span; all of them 1 is a decoding step. Of `apart` up to so many keys lie
// elsewhere.
bool attention(Suite& suite, Random& random, const Shape& s, const std::vector<int64_t>& lengths,
               const std::vector<int64_t>& fresh, bool decoding, int64_t apart = 0) {
    const int64_t spans = (int64_t)lengths.size(), width = s.heads * s.head_dim, group = s.heads / s.kv_heads;
    std::vector<int64_t> starts = {0};
    std::vector<Query> queries;
    for (int64_t span = 0; span < spans; ++span) {
        for (int64_t i = 0; i < fresh[span]; ++i) queries.push_back({span, lengths[span] - fresh[span] + i});
        starts.push_back((int64_t)queries.size());
    }
    Cache cache(s, random, lengths);
    const Paths paths(random, lengths, apart, (int64_t)cache.pages.size() * PAGE);
    if (apart) cache.paths = &paths;
    const int64_t rows = (int64_t)queries.size(), q_stride = width + 8, max_tiles = 64;
    const auto q = floats(random, rows * q_stride, 2), sinks = floats(random, s.heads, 6);
    std::vector<float> out,
        partial((size_t)(spans * s.kv_heads * max_tiles * (2 * ((group + 15) / 16 * 16) + group * s.head_dim)));
    std::vector<int64_t> arrivals((size_t)(spans * s.kv_heads), 0);
    const auto reset = [&] { out.assign((size_t)(rows * width), 0); };
    reset();
    Words words;
    words.add(rows).add(q).add(q_stride).add(out).add(width).add(cache.bytes).add(s.kv).add(PAGE);
    words.add(s.heads)
        .add(s.kv_heads)
        .add(s.head_dim)
        .add(1 / std::sqrt((double)s.head_dim))
        .add(s.window)
        .add(s.chunk)
        .add(s.soft_cap)
        .add(s.sinks ? sinks.data() : nullptr);
    words.add(cache.pages).add(cache.pages_a_span).add(lengths).add(decoding ? nullptr : starts.data()).add(spans);
    words.add(partial).add(arrivals).add(spans).add(max_tiles);
    words.add(apart ? paths.words.data() : nullptr).add(paths.stride);
    if (!suite.run("attention", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted(out.size());
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t head = 0; head < s.heads; ++head)
            attend(s, cache, queries[row], &q[row * q_stride + head * s.head_dim], head, sinks.data(),
                   &wanted[row * width + head * s.head_dim]);
    return suite.close("attention", out, wanted, std::vector<double>(out.size(), 1), 2e-5);
}

}  // namespace

void attention(Suite& suite) {
    suite.op("attention", [&](Random& random) {
        for (const Shape& shape : std::vector<Shape>{{6, 2, 64, 0, 0, BF16},
                                                     {4, 4, 48, 0, 0, WIDE},
                                                     {9, 3, 64, 20, 0, BF16},
                                                     {4, 1, 128, 0, 5, WIDE},
                                                     {9, 3, 64, 0, 0, INT8},
                                                     {4, 2, 80, 30, 0, INT8},
                                                     {6, 2, 64, 0, 0, WIDE, true},
                                                     {8, 1, 64, 20, 0, INT8, true},
                                                     {6, 2, 64, 0, 0, BF16, false, 50},
                                                     {4, 1, 48, 0, 0, WIDE, true, 200}}) {
            if (!attention(suite, random, shape, {1, 17, 300, 64}, {1, 1, 1, 1}, true)) return false;
            if (!attention(suite, random, shape, {700}, {1}, true)) return false;
            if (!attention(suite, random, shape, {1, 130, 300, 64}, {1, 1, 1, 1}, true, 12)) return false;
            if (!attention(suite, random, shape, {5, 90, 64, 130}, {5, 40, 1, 130}, false)) return false;
        }
        return true;
    });
}

}  // namespace check

// Attention over paged latents, and storing them, against plain double loops.
#include "kv.h"

namespace check {
namespace {

constexpr int64_t PAGE = 16;

struct Latents {
    int64_t heads, latent_dim, rope_dim, window, kv;
};

// One part of a cache whose pages lie in any order.
struct Part {
    int64_t size, pages_a_span;
    std::vector<int64_t> pages, lengths;
    std::vector<float> numbers;
    std::vector<uint8_t> bytes;
    const Paths* paths = nullptr;

    Part(int64_t kv, int64_t n, Random& random, const std::vector<int64_t>& order, int64_t each)
        : size(n), pages_a_span(each), pages(order) {
        numbers = floats(random, (int64_t)order.size() * PAGE * n);
        bytes = kept_as(kv, numbers, n);
    }
    const float* at(int64_t span, int64_t position) const {
        const int64_t slot = paths ? paths->find(span, lengths[span], position) : -1;
        if (slot >= 0) return &numbers[slot * size];
        return &numbers[(pages[span * pages_a_span + position / PAGE] * PAGE + position % PAGE) * size];
    }
};

struct Query {
    int64_t span, position;
};

void attend(const Latents& s, const Part& latents, const Part& ropes, Query query, const float* q, const float* q_rope,
            double* out) {
    const int64_t first = s.window && query.position >= s.window ? query.position - s.window + 1 : 0;
    std::vector<double> scores;
    for (int64_t p = first; p <= query.position; ++p) {
        const float *latent = latents.at(query.span, p), *rope = ropes.at(query.span, p);
        double dot = 0;
        for (int64_t i = 0; i < s.latent_dim; ++i) dot += (double)q[i] * latent[i];
        for (int64_t i = 0; i < s.rope_dim; ++i) dot += (double)q_rope[i] * rope[i];
        scores.push_back(dot * 0.2);
    }
    const double row_max = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - row_max);
    for (int64_t i = 0; i < s.latent_dim; ++i) {
        out[i] = 0;
        for (size_t p = 0; p < scores.size(); ++p)
            out[i] += scores[p] / total * latents.at(query.span, first + (int64_t)p)[i];
    }
}

int64_t filled(int64_t n) { return (n + 15) / 16 * 16; }

// `fresh` queries at the end of each span; all of them 1 is a decoding step. Of `apart` up to so many keys lie
// elsewhere.
bool latent_attention(Suite& suite, Random& random, const Latents& s, const std::vector<int64_t>& lengths,
                      const std::vector<int64_t>& fresh, bool decoding, int64_t apart = 0) {
    const int64_t spans = (int64_t)lengths.size();
    std::vector<int64_t> starts = {0}, order;
    std::vector<Query> queries;
    for (int64_t span = 0; span < spans; ++span) {
        for (int64_t i = 0; i < fresh[span]; ++i) queries.push_back({span, lengths[span] - fresh[span] + i});
        starts.push_back((int64_t)queries.size());
    }
    const int64_t each = (*std::max_element(lengths.begin(), lengths.end()) + PAGE - 1) / PAGE + 1;
    for (int64_t i = 0; i < spans * each; ++i) order.push_back(i);
    for (int64_t i = spans * each - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    Part latents(s.kv, s.latent_dim, random, order, each), ropes(s.kv, s.rope_dim, random, order, each);
    const Paths paths(random, lengths, apart, (int64_t)order.size() * PAGE);
    for (Part* part : {&latents, &ropes}) part->lengths = lengths, part->paths = apart ? &paths : nullptr;
    const int64_t step = s.kv == INT8 ? 4 : 0, rows = (int64_t)queries.size(), max_segments = 8;
    const int64_t q_stride = s.heads * s.latent_dim + 8, rope_head = s.rope_dim + 3, rope_stride = s.heads * rope_head;
    const auto q = floats(random, rows * q_stride, 2), q_rope = floats(random, rows * rope_stride, 2);
    const int64_t groups = (s.heads + 31) / 32, heads = (s.heads + groups - 1) / groups;
    std::vector<float> out, partial((size_t)(spans * groups * max_segments *
                                             (2 * filled(heads) + heads * filled(s.latent_dim))));
    std::vector<int64_t> arrivals((size_t)(spans * groups), 0);
    const auto reset = [&] { out.assign((size_t)(rows * s.heads * s.latent_dim), 0); };
    reset();
    Words words;
    words.add(rows).add(q).add(q_stride).add(s.latent_dim).add(q_rope).add(rope_stride).add(rope_head).add(out);
    words.add(latents.bytes).add(s.latent_dim + step).add(ropes.bytes).add(s.rope_dim + step).add(s.kv).add(PAGE);
    words.add(s.heads).add(s.latent_dim).add(s.rope_dim).add(0.2).add(s.window);
    words.add(order).add(each).add(lengths).add(decoding ? nullptr : starts.data()).add(spans);
    words.add(partial).add(arrivals).add(spans).add(max_segments);
    words.add(apart ? paths.words.data() : nullptr).add(paths.stride);
    if (!suite.run("latent_attention", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted(out.size());
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t head = 0; head < s.heads; ++head)
            attend(s, latents, ropes, queries[row], &q[row * q_stride + head * s.latent_dim],
                   &q_rope[row * rope_stride + head * rope_head], &wanted[(row * s.heads + head) * s.latent_dim]);
    return suite.close("latent_attention", out, wanted, std::vector<double>(out.size(), 1), 2e-5);
}

// What is stored has the bits of a plain store of the rotated numbers.
bool store_latent(Suite& suite, Random& random, const Latents& s, bool rotated) {
    const int64_t rows = 7, stride = s.latent_dim + s.rope_dim + 1, half = s.rope_dim / 2;
    const int64_t step = s.kv == INT8 ? 4 : 0, q_head = s.rope_dim + 2, q_stride = s.heads * q_head;
    const auto before = floats(random, rows * stride), q_before = floats(random, rows * q_stride);
    const auto cos_sin = floats(random, rows * s.rope_dim);
    std::vector<int64_t> slots = {3, 0, 8, 1, 9, 4, 2}, positions = {6, 2, 0, 1, 5, 3, 4};
    auto x = before, q = q_before, wanted = before, q_wanted = q_before;
    const auto turn = [&](float* part, const float* table) {
        for (int64_t i = 0; i < half; ++i) {
            const float a = part[i], b = part[half + i], c = table[i], d = table[half + i];
            const float ac = a * c, bd = b * d, bc = b * c, ad = a * d;
            part[i] = ac - bd, part[half + i] = bc + ad;
        }
    };
    const int64_t latent_bytes = kept_bytes(s.kv, s.latent_dim), rope_bytes = kept_bytes(s.kv, s.rope_dim);
    std::vector<uint8_t> latents, ropes, latents_wanted((size_t)(10 * latent_bytes), 0),
        ropes_wanted((size_t)(10 * rope_bytes), 0);
    for (int64_t t = 0; t < rows; ++t) {
        const float* table = &cos_sin[positions[t] * s.rope_dim];
        if (rotated) turn(&wanted[t * stride + s.latent_dim], table);
        for (int64_t h = 0; rotated && h < s.heads; ++h) turn(&q_wanted[t * q_stride + h * q_head], table);
        const float* row = &wanted[t * stride];
        std::vector<float> latent(row, row + s.latent_dim), rope(row + s.latent_dim, row + stride - 1);
        const auto kept = kept_as(s.kv, latent, s.latent_dim), kept_rope = kept_as(s.kv, rope, s.rope_dim);
        std::copy(kept.begin(), kept.end(), latents_wanted.begin() + slots[t] * latent_bytes);
        std::copy(kept_rope.begin(), kept_rope.end(), ropes_wanted.begin() + slots[t] * rope_bytes);
    }
    const auto reset = [&] {
        x = before, q = q_before;
        latents.assign(latents_wanted.size(), 0), ropes.assign(ropes_wanted.size(), 0);
    };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(&x[s.latent_dim]).add(stride).add(slots);
    words.add(latents).add(s.latent_dim + step).add(ropes).add(s.rope_dim + step);
    words.add(s.kv).add(s.latent_dim).add(s.rope_dim).add(rotated ? cos_sin.data() : nullptr).add(s.rope_dim);
    words.add(positions).add(q).add(q_stride).add(q_head).add(s.heads);
    if (!suite.run("store_latent", words, reset, [&] {
            auto all = latents;
            all.insert(all.end(), ropes.begin(), ropes.end());
            return all;
        }))
        return false;
    if (latents != latents_wanted || ropes != ropes_wanted) return suite.fail("store_latent", "stores other bytes");
    return (bytes_of(q) == bytes_of(q_wanted) && bytes_of(x) == bytes_of(wanted)) ||
           suite.fail("store_latent", "turns otherwise");
}

}  // namespace

void latent_attention(Suite& suite) {
    suite.op("store_latent", [&](Random& random) {
        for (int64_t kv : {WIDE, BF16, INT8})
            for (bool rotated : {false, true})
                if (!store_latent(suite, random, {3, 32, 16, 0, kv}, rotated) ||
                    !store_latent(suite, random, {1, 24, 8, 0, kv}, rotated))
                    return false;
        return true;
    });
    suite.op("latent_attention", [&](Random& random) {
        for (const Latents& shape : std::vector<Latents>{{16, 512, 64, 0, BF16},
                                                         {3, 24, 8, 0, WIDE},
                                                         {5, 32, 16, 20, INT8},
                                                         {40, 48, 16, 0, INT8},
                                                         {2, 40, 24, 600, BF16}}) {
            if (!latent_attention(suite, random, shape, {1, 17, 300, 64}, {1, 1, 1, 1}, true)) return false;
            if (!latent_attention(suite, random, shape, {1300}, {1}, true)) return false;
            if (!latent_attention(suite, random, shape, {1, 130, 600, 64}, {1, 1, 1, 1}, true, 12)) return false;
            if (!latent_attention(suite, random, shape, {5, 90, 64, 130}, {5, 40, 1, 130}, false)) return false;
            if (!latent_attention(suite, random, shape, {530, 1100}, {20, 1}, false)) return false;
        }
        return true;
    });
}

}  // namespace check

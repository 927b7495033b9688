// Recurrent layers against plain double loops, and against themselves with prompts cut otherwise.
#include "check.h"

namespace check {
namespace {

constexpr float UNSEEN = 1e30f;  // fills what no span reads

struct Recurrent {
    int64_t key_heads, group, key_dim, value_dim, kernel;
    int64_t heads() const { return key_heads * group; }
    int64_t keys() const { return key_heads * key_dim; }
    int64_t channels() const { return 2 * keys() + heads() * value_dim; }
    int64_t conv_size() const { return (kernel - 1) * channels(); }
    int64_t state_size() const { return heads() * key_dim * value_dim; }
};

// The numbers of heads of tokens, with gaps between the heads and the tokens, but none behind the last.
struct Part {
    int64_t head_stride, stride;
    std::vector<float> x;
    Part(Random& random, int64_t rows, int64_t heads, int64_t n, float scale = 1)
        : head_stride(n + 3),
          stride(heads * head_stride + 5),
          x(floats(random, (rows - 1) * stride + (heads - 1) * head_stride + n, scale)) {}
    const float* at(int64_t token, int64_t head) const { return &x[(size_t)(token * stride + head * head_stride)]; }
    void add(Words& words) const { words.add(x).add(stride).add(head_stride); }
};

double silu(double x) { return x / (1 + std::exp(-x)); }
double softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

// Spans and their slots, which lie in any order; the first two spans begin with the same state. A step of one token a
// span has no starts.
struct Spans {
    int64_t count, rows, ahead, stride, slots;
    bool decoding;
    std::vector<int64_t> starts = {0}, drafts, read, write, span_of;

    Spans(Random& random, const std::vector<int64_t>& tokens, const std::vector<int64_t>& drafts_of, bool decode)
        : count((int64_t)tokens.size()), ahead(1), decoding(decode), drafts(drafts_of) {
        for (int64_t n : drafts) ahead = std::max(ahead, 1 + n);
        stride = ahead + 2, slots = count * (1 + ahead) + 3;
        std::vector<int64_t> order;
        for (int64_t i = 0; i < slots; ++i) order.push_back(i);
        for (int64_t i = slots - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
        write.assign((size_t)((count - 1) * stride + ahead), -(1ll << 40));  // gaps are no slots
        for (int64_t span = 0; span < count; ++span) {
            read.push_back(order[span == 1 ? 0 : span]);
            for (int64_t i = 0; i < ahead; ++i) write[span * stride + i] = order[count + span * ahead + i];
            starts.push_back(starts.back() + tokens[span]);
            span_of.insert(span_of.end(), (size_t)tokens[span], span);
        }
        rows = starts.back();
    }
    // Of the state behind a token; -1: it is not kept.
    int64_t slot(int64_t token) const {
        const int64_t span = span_of[token], known = starts[span + 1] - 1 - (drafts.empty() ? 0 : drafts[span]);
        return token < known ? -1 : write[span * stride + token - known];
    }
    // Of a captured step that is replayed with fewer spans: those behind have tokens, which are not in it.
    Spans only(int64_t n) const {
        Spans some = *this;
        some.rows = starts[n];
        return some;
    }
    bool first(int64_t token) const { return starts[span_of[token]] == token; }
    void add(Words& words) const {
        words.add(read).add(write).add(stride).add(drafts.empty() ? nullptr : drafts.data());
        words.add(decoding ? nullptr : starts.data()).add(count);
    }
    // Numbers of all slots.
    std::vector<float> memory(Random& random, int64_t size) const {
        auto numbers = floats(random, slots * size);
        for (int64_t slot = 0; slot < slots; ++slot)
            if (!std::count(read.begin(), read.end(), slot)) std::fill_n(numbers.begin() + slot * size, size, UNSEEN);
        return numbers;
    }
};

// Where nothing is written, no bit may change.
std::vector<double> scale_of(const std::vector<float>& before, const std::vector<double>& wanted) {
    std::vector<double> scale;
    for (size_t i = 0; i < wanted.size(); ++i) scale.push_back(wanted[i] == before[i] ? 0 : 1);
    return scale;
}

std::vector<uint8_t> both(const std::vector<float>& a, const std::vector<float>& b) {
    auto bytes = bytes_of(a), more = bytes_of(b);
    bytes.insert(bytes.end(), more.begin(), more.end());
    return bytes;
}

// What the convolution says of a token whose `seen` inputs are the last ones, its own among them.
void convolve(const Recurrent& s, const std::vector<std::vector<float>>& seen, const std::vector<float>& weight,
              double* out) {
    for (int64_t c = 0; c < s.channels(); ++c) {
        double sum = 0;
        for (int64_t place = 0; place < s.kernel; ++place)
            sum += (double)seen[seen.size() - (size_t)(s.kernel - place)][c] * weight[place * s.channels() + c];
        out[c] = silu(sum);
    }
    for (int64_t head = 0; head < 2 * s.key_heads; ++head) {
        double *part = out + head * s.key_dim, squares = 1e-6;
        for (int64_t i = 0; i < s.key_dim; ++i) squares += part[i] * part[i];
        const double factor = head < s.key_heads ? 1 / std::sqrt((double)s.key_dim) : 1;
        for (int64_t i = 0; i < s.key_dim; ++i) part[i] *= factor / std::sqrt(squares);
    }
}

bool recurrent_conv(Suite& suite, Random& random, const Recurrent& s, const Spans& spans) {
    const int64_t channels = s.channels(), width = s.group * s.value_dim, size = s.conv_size();
    const Part q(random, spans.rows, s.key_heads, s.key_dim, 2), k(random, spans.rows, s.key_heads, s.key_dim, 2),
        v(random, spans.rows, s.key_heads, width, 2);
    const auto weight = floats(random, s.kernel * channels), before = spans.memory(random, size);
    std::vector<float> convs, out;
    const auto reset = [&] { convs = before, out.assign((size_t)(spans.rows * channels), 0); };
    reset();
    Words words;
    words.add(spans.rows);
    for (const Part* part : {&q, &k, &v}) part->add(words);
    words.add(weight).add(convs).add(out).add(s.key_heads).add(s.key_dim).add(width).add(s.kernel);
    spans.add(words);
    if (!suite.run("recurrent_conv", words, reset, [&] { return both(out, convs); })) return false;

    std::vector<double> wanted(out.size());
    auto kept = before;
    std::vector<std::vector<float>> seen;
    for (int64_t token = 0; token < spans.rows; ++token) {
        if (spans.first(token)) {
            seen.clear();
            const auto from = before.begin() + spans.read[spans.span_of[token]] * size;
            for (int64_t i = 0; i < s.kernel - 1; ++i)
                seen.emplace_back(from + i * channels, from + (i + 1) * channels);
        }
        seen.emplace_back();
        for (const auto& [part, n] :
             {std::make_pair(&q, s.key_dim), std::make_pair(&k, s.key_dim), std::make_pair(&v, width)})
            for (int64_t head = 0; head < s.key_heads; ++head)
                seen.back().insert(seen.back().end(), part->at(token, head), part->at(token, head) + n);
        convolve(s, seen, weight, &wanted[token * channels]);
        const int64_t slot = spans.slot(token);
        for (int64_t i = 0; slot >= 0 && i < s.kernel - 1; ++i) {
            const auto& x = seen[seen.size() - (size_t)(s.kernel - 1 - i)];
            std::copy(x.begin(), x.end(), kept.begin() + slot * size + i * channels);
        }
    }
    if (bytes_of(convs) != bytes_of(kept)) return suite.fail("recurrent_conv", "keeps other inputs");
    return suite.close("recurrent_conv", out, wanted, std::vector<double>(out.size(), 1), 1e-5);
}

// One head of one token: `state` [key_dim, value_dim] becomes the one behind it.
void advance(const Recurrent& s, double* state, const float* q, const float* k, const float* v, double kept,
             double fresh, double* out) {
    for (int64_t j = 0; j < s.value_dim; ++j) {
        double known = 0;
        for (int64_t i = 0; i < s.key_dim; ++i) known += k[i] * (state[i * s.value_dim + j] *= kept);
        out[j] = 0;
        for (int64_t i = 0; i < s.key_dim; ++i)
            out[j] += q[i] * (state[i * s.value_dim + j] += k[i] * fresh * (v[j] - known));
    }
}

// What the states of a layer are made of, but for the states.
struct Mixed {
    std::vector<float> x, decay, dt_bias;
    Part a, b;
    Mixed(Random& random, const Recurrent& s, int64_t rows)
        : x(floats(random, rows * s.channels())),
          decay(floats(random, s.heads(), 0.2f)),
          dt_bias(floats(random, s.heads(), 2)),
          a(random, rows, s.key_heads, s.group, 25),
          b(random, rows, s.key_heads, s.group, 20) {
        const float length = 1 / std::sqrt((float)s.key_dim);
        for (size_t i = 0; i < x.size(); ++i)  // keys and queries are of length 1 at most
            if ((int64_t)i % s.channels() < 2 * s.keys()) x[i] *= length;
        for (float& d : decay) d = std::fabs(d);
    }
    // From token `first` on.
    void add(Words& words, const Recurrent& s, int64_t first = 0) const {
        words.add(&x[first * s.channels()]).add(a.at(first, 0)).add(a.stride).add(a.head_stride);
        words.add(b.at(first, 0)).add(b.stride).add(b.head_stride).add(decay).add(dt_bias);
    }
};

void add_sizes(Words& words, const Recurrent& s) {
    words.add(s.key_heads).add(s.group).add(s.key_dim).add(s.value_dim);
}

bool recurrent_state(Suite& suite, Random& random, const Recurrent& s, const Spans& spans) {
    const int64_t heads = s.heads(), each = s.key_dim * s.value_dim, size = s.state_size();
    const Mixed mixed(random, s, spans.rows);
    const auto before = spans.memory(random, size);
    std::vector<float> states, out;
    const auto reset = [&] { states = before, out.assign((size_t)(spans.rows * heads * s.value_dim), 0); };
    reset();
    Words words;
    words.add(spans.rows);
    mixed.add(words, s);
    words.add(states).add(out);
    add_sizes(words, s);
    spans.add(words);
    if (!suite.run("recurrent_state", words, reset, [&] { return both(out, states); })) return false;

    std::vector<double> wanted(out.size()), kept(before.begin(), before.end()), state;
    for (int64_t token = 0; token < spans.rows; ++token) {
        const auto from = before.begin() + spans.read[spans.span_of[token]] * size;
        if (spans.first(token)) state.assign(from, from + size);
        const float* x = &mixed.x[token * s.channels()];
        for (int64_t head = 0; head < heads; ++head) {
            const int64_t key_head = head / s.group, place = head % s.group;
            const double forget = softplus((double)mixed.a.at(token, key_head)[place] + mixed.dt_bias[head]);
            advance(s, &state[head * each], x + key_head * s.key_dim, x + s.keys() + key_head * s.key_dim,
                    x + 2 * s.keys() + head * s.value_dim, std::exp(-mixed.decay[head] * forget),
                    1 / (1 + std::exp(-(double)mixed.b.at(token, key_head)[place])),
                    &wanted[(token * heads + head) * s.value_dim]);
        }
        if (spans.slot(token) >= 0) std::copy(state.begin(), state.end(), kept.begin() + spans.slot(token) * size);
    }
    return suite.close("recurrent_state", states, kept, scale_of(before, kept), 2e-5) &&
           suite.close("recurrent_state", out, wanted, std::vector<double>(out.size(), 1), 2e-5);
}

// A prompt in one piece (slots 0 to 1), and in pieces, one of them a decoding step (slots 0, 2, 3, 4): the same bits.
// `add` makes the words of tokens from `first` on, but for their number and the slots.
bool cut(Suite& suite, const char* op, int64_t tokens, std::vector<float>& memory, std::vector<float>& out,
         const std::function<void(Words&, int64_t first)>& add) {
    const auto run = [&](int64_t first, int64_t count, int64_t read, int64_t write, bool decoding) {
        const int64_t starts[] = {0, count};
        Words words;
        words.add(count);
        add(words, first);
        words.add(&read).add(&write).add(1).add(nullptr).add(decoding ? nullptr : starts).add(1);
        run_one(suite.contexts[2], vv_find(suite.contexts[2], op), words.list.data());
    };
    run(0, tokens, 0, 1, false);
    const auto whole = out;
    std::fill(out.begin(), out.end(), 0.0f);
    run(0, 2, 0, 2, false), run(2, 1, 2, 3, true), run(3, tokens - 3, 3, 4, false);
    const auto size = (int64_t)memory.size() / 5;
    const bool same = std::equal(memory.begin() + size, memory.begin() + 2 * size, memory.begin() + 4 * size);
    return (same && bytes_of(out) == bytes_of(whole)) || suite.fail(op, "depends on how a prompt is cut");
}

bool cut_conv(Suite& suite, Random& random, const Recurrent& s) {
    const int64_t tokens = 23, width = s.group * s.value_dim;
    const Part q(random, tokens, s.key_heads, s.key_dim), k(random, tokens, s.key_heads, s.key_dim),
        v(random, tokens, s.key_heads, width);
    const auto weight = floats(random, s.kernel * s.channels());
    auto convs = floats(random, 5 * s.conv_size()), out = std::vector<float>((size_t)(tokens * s.channels()), 0);
    return cut(suite, "recurrent_conv", tokens, convs, out, [&](Words& words, int64_t first) {
        for (const Part* part : {&q, &k, &v}) words.add(part->at(first, 0)).add(part->stride).add(part->head_stride);
        words.add(weight).add(convs).add(&out[first * s.channels()]);
        words.add(s.key_heads).add(s.key_dim).add(width).add(s.kernel);
    });
}

bool cut_state(Suite& suite, Random& random, const Recurrent& s) {
    const int64_t tokens = 23, width = s.heads() * s.value_dim;
    const Mixed mixed(random, s, tokens);
    auto states = floats(random, 5 * s.state_size()), out = std::vector<float>((size_t)(tokens * width), 0);
    return cut(suite, "recurrent_state", tokens, states, out, [&](Words& words, int64_t first) {
        mixed.add(words, s, first);
        words.add(states).add(&out[first * width]);
        add_sizes(words, s);
    });
}

using Case = bool (*)(Suite&, Random&, const Recurrent&, const Spans&);
using CutCase = bool (*)(Suite&, Random&, const Recurrent&);

bool all_shapes(Suite& suite, Random& random, Case one, CutCase cut_one) {
    for (const Recurrent& s : std::vector<Recurrent>{
             {2, 2, 16, 32, 4}, {3, 1, 24, 40, 4}, {1, 3, 5, 7, 3}, {2, 1, 37, 17, 2}, {1, 2, 130, 70, 4}}) {
        for (const Spans& spans :
             {Spans(random, {1}, {}, true), Spans(random, {1, 1, 1, 1, 1, 1, 1}, {}, true),
              Spans(random, {1, 1, 1}, {0, 0, 0}, true), Spans(random, {6, 1, 30, 2}, {}, false),
              Spans(random, {0, 5, 0, 0, 3, 0}, {}, false), Spans(random, {1, 4, 9, 3, 20}, {0, 3, 2, 2, 0}, false),
              Spans(random, {3, 3, 3, 3}, {2, 2, 2, 2}, false).only(2)})
            if (!one(suite, random, s, spans)) return false;
        if (!cut_one(suite, random, s)) return false;
    }
    return true;
}

}  // namespace

void recurrent(Suite& suite) {
    suite.op("recurrent_conv", [&](Random& random) { return all_shapes(suite, random, recurrent_conv, cut_conv); });
    suite.op("recurrent_state", [&](Random& random) { return all_shapes(suite, random, recurrent_state, cut_state); });
}

}  // namespace check

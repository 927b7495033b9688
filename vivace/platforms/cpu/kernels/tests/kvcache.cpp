// Rotary embedding and stores into paged KV: turns closely, what is kept exactly.
#include "kv.h"

namespace check {
namespace {

constexpr int64_t TOKENS = 90, POSITIONS = 50;  // of the cache; of the table of turns

struct Shape {
    int64_t rows, heads, kv_heads, dim, rotated;
};

const std::vector<Shape> SHAPES = {{1, 3, 2, 24, 20},  {3, 1, 1, 16, 2},   {4, 2, 2, 64, 64},
                                   {5, 4, 1, 128, 66}, {29, 3, 2, 80, 80}, {6, 3, 1, 20, 20}};

// Heads in rows with gaps between them.
struct Rows {
    int64_t rows, heads, dim, stride;
    std::vector<float> numbers;

    Rows(Random& random, int64_t count, int64_t heads_, int64_t dim_)
        : rows(count),
          heads(heads_),
          dim(dim_),
          stride(heads_ * dim_ + 3),
          numbers(floats(random, count * stride, 3)) {}
    const float* head(int64_t row, int64_t h) const { return &numbers[row * stride + h * dim]; }
    std::vector<float> row(int64_t r) const { return {head(r, 0), head(r, heads)}; }
    // Some heads get numbers that are large, small, lie between two bfloat16, or are none.
    void strange(Random& random) {
        const float odd[] = {INFINITY,    -INFINITY,       NAN,   3.4e38f, 1e-40f, -0.0f,
                             1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1e-37f,
                             float_of(0x7fffffff), float_of(0xffffffff), float_of(0x7f800001)};
        for (int64_t i = 0; i < rows * heads; i += 2) {
            float* x = &numbers[i / heads * stride + i % heads * dim];
            if (i % 6 == 0)
                x[random.below(dim)] = odd[random.below(12)];
            else
                std::fill_n(x, dim, i % 6 == 2 ? 0.0f : odd[4 + random.below(5)]);
        }
    }
};

// The numbers of x[rows, heads, dim] after their turns.
std::vector<double> turned(const Rows& x, const std::vector<int64_t>& positions,
                           const std::vector<float>& turns, int64_t rotated) {
    std::vector<double> out(x.numbers.begin(), x.numbers.end());
    const int64_t half = rotated / 2;
    for (int64_t r = 0; r < x.rows; ++r)
        for (int64_t h = 0; h < x.heads; ++h)
            for (int64_t i = 0; i < half; ++i) {
                const double cosine = turns[positions[r] * rotated + i],
                             sine = turns[positions[r] * rotated + half + i];
                const double a = x.head(r, h)[i], b = x.head(r, h)[i + half];
                out[r * x.stride + h * x.dim + i] = a * cosine - b * sine;
                out[r * x.stride + h * x.dim + i + half] = b * cosine + a * sine;
            }
    return out;
}

std::vector<int64_t> positions_of(Random& random, int64_t rows) {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < rows; ++i) out.push_back(i ? random.below(POSITIONS) : POSITIONS - 1);
    return out;
}

bool rotary(Suite& suite, Random& random, const Shape& s) {
    const Rows before(random, s.rows, s.heads, s.dim);
    const auto turns = floats(random, POSITIONS * s.rotated);
    const auto positions = positions_of(random, s.rows);
    std::vector<float> x = before.numbers;
    Words words;
    words.add(s.rows).add(x).add(before.stride).add(s.heads);
    words.add(s.dim).add(positions).add(turns).add(s.rotated);
    if (!suite.run("rotary", words, [&] { x = before.numbers; }, [&] { return bytes_of(x); })) return false;
    return suite.close("rotary", x, turned(before, positions, turns, s.rotated),
                       std::vector<double>(x.size(), 3), 1e-6);
}

// Memory of a cache in which each byte is 0xa5 but for the rows that are stored.
struct Memory {
    int64_t kv, dim, token;  // bytes of a token
    std::vector<uint8_t> bytes, wanted;
    std::vector<int64_t> slots;

    Memory(int64_t kv_, const Shape& s)
        : kv(kv_), dim(s.dim), token(2 * s.kv_heads * kept_bytes(kv_, s.dim)) {
        clear();
        wanted = bytes;
        for (int64_t i = 0; i < s.rows; ++i) slots.push_back((i * 7 + 3) % TOKENS);
    }
    void clear() { bytes.assign((size_t)(TOKENS * token), 0xa5); }
    // A NaN has many bits: those of a scale become the same ones.
    std::vector<uint8_t> plain() const {
        auto out = bytes;
        const int64_t head = kept_bytes(kv, dim);
        for (size_t at = 0; kv == INT8 && at < out.size(); at += (size_t)head) {
            float scale;
            std::memcpy(&scale, &out[at + dim], 4);
            if (scale != scale) scale = NAN, std::memcpy(&out[at + dim], &scale, 4);
        }
        return out;
    }
    bool keeps(const Rows& k, const Rows& v) {
        for (int64_t r = 0; r < k.rows; ++r) {
            auto fresh = k.row(r), more = v.row(r);
            fresh.insert(fresh.end(), more.begin(), more.end());
            const auto kept = kept_as(kv, fresh, dim);
            std::copy(kept.begin(), kept.end(), &wanted[slots[r] * token]);
        }
        return plain() == wanted;
    }
};

bool store_kv(Suite& suite, Random& random, const Shape& s, int64_t kv) {
    Rows k(random, s.rows, s.kv_heads, s.dim), v(random, s.rows, s.kv_heads, s.dim);
    k.strange(random), v.strange(random);
    Memory memory(kv, s);
    Words words;
    words.add(s.rows).add(k.numbers).add(k.stride).add(v.numbers).add(v.stride).add(memory.slots);
    words.add(memory.bytes).add(kv).add(s.kv_heads).add(s.dim);
    if (!suite.run("store_kv", words, [&] { memory.clear(); }, [&] { return memory.bytes; })) return false;
    return memory.keeps(k, v) || suite.fail("store_kv", "keeps other keys and values");
}

// Keys are kept as they were turned: compared with the turned keys that the operation leaves.
bool rotary_store(Suite& suite, Random& random, const Shape& s, int64_t kv) {
    const Rows q0(random, s.rows, s.heads, s.dim), k0(random, s.rows, s.kv_heads, s.dim);
    Rows q = q0, k = k0, v(random, s.rows, s.kv_heads, s.dim);
    v.strange(random);
    const auto turns = floats(random, POSITIONS * s.rotated);
    const auto positions = positions_of(random, s.rows);
    Memory memory(kv, s);
    Words words;
    words.add(s.rows).add(q.numbers).add(q.stride).add(s.heads);
    words.add(k.numbers).add(k.stride).add(v.numbers).add(v.stride);
    words.add(positions).add(memory.slots).add(turns).add(s.rotated);
    words.add(memory.bytes).add(kv).add(s.kv_heads).add(s.dim);
    const auto reset = [&] { q.numbers = q0.numbers, k.numbers = k0.numbers, memory.clear(); };
    if (!suite.run("rotary_store", words, reset, [&] {
            auto bytes = bytes_of(q.numbers), keys = bytes_of(k.numbers);
            bytes.insert(bytes.end(), keys.begin(), keys.end());
            bytes.insert(bytes.end(), memory.bytes.begin(), memory.bytes.end());
            return bytes;
        }))
        return false;
    if (!memory.keeps(k, v)) return suite.fail("rotary_store", "keeps other keys and values");
    const std::vector<double> threes(q.numbers.size() + k.numbers.size(), 3);
    return suite.close("rotary_store", q.numbers, turned(q0, positions, turns, s.rotated), threes, 1e-6) &&
           suite.close("rotary_store", k.numbers, turned(k0, positions, turns, s.rotated), threes, 1e-6);
}

}  // namespace

void kvcache(Suite& suite) {
    suite.op("rotary", [&](Random& random) {
        for (const Shape& shape : SHAPES)
            if (!rotary(suite, random, shape)) return false;
        return true;
    });
    suite.op("store_kv", [&](Random& random) {
        for (const Shape& shape : SHAPES)
            for (int64_t kv : {WIDE, BF16, INT8})
                for (int times = 0; times < 4; ++times)
                    if (!store_kv(suite, random, shape, kv)) return false;
        return true;
    });
    suite.op("rotary_store", [&](Random& random) {
        for (const Shape& shape : SHAPES)
            for (int64_t kv : {WIDE, BF16, INT8})
                if (!rotary_store(suite, random, shape, kv)) return false;
        return true;
    });
}

}  // namespace check

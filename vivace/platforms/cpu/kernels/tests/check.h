// What the conformance programs share: the C interface, random numbers, comparisons.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

extern "C" {
void* vv_open(const char* isa, int64_t threads, int64_t spin_us, int64_t pin);
void vv_close(void* context);
const char* vv_isa(void* context);
int64_t vv_find(void* context, const char* name);
int64_t vv_words(void* context, int64_t op);
const void* vv_address(void* context, int64_t op);
void vv_run(void* context, const int64_t* ops, int64_t count, const void* words);
void* vv_graph_new();
void vv_graph_free(void* graph);
void vv_graph_add(void* context, void* graph, int64_t op, const int64_t* args);
void vv_graph_replay(void* context, void* graph, int64_t rows);
}

inline void run_one(void* context, int64_t op, const void* words) { vv_run(context, &op, 1, words); }

namespace check {

// SplitMix64: the same numbers on every machine.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed) {}
    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    int64_t below(int64_t n) { return (int64_t)(next() % (uint64_t)n); }
    double uniform() { return (double)(next() >> 11) * (1.0 / 9007199254740992.0); }
    float signed_unit() { return (float)(2 * uniform() - 1); }
};

inline std::vector<float> floats(Random& random, int64_t count, float scale = 1) {
    std::vector<float> out((size_t)count);
    for (float& x : out) x = scale * random.signed_unit();
    return out;
}

inline float from_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
inline uint16_t to_bf16(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if (f != f) return (uint16_t)((bits | 0x400000) >> 16);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float float_of(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
inline double from_half(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return h & 0x8000 ? -size : size;
}

// The words of a call: pointers, integers and doubles, 8 bytes each.
struct Words {
    std::vector<int64_t> list;
    Words& add(int64_t x) { list.push_back(x); return *this; }
    Words& add(int x) { return add((int64_t)x); }
    Words& add(double x) { int64_t bits; std::memcpy(&bits, &x, 8); return add(bits); }
    Words& add(const void* p) { return add((int64_t)(intptr_t)p); }
    template <class T> Words& add(const std::vector<T>& v) { return add((const void*)v.data()); }
};

constexpr int THREADS[] = {1, 2, 3};

// One instruction set, opened with 1, 2 and 3 threads, and what was found of it.
struct Suite {
    explicit Suite(const char* isa) {
        for (int i = 0; i < 3; ++i) contexts[i] = vv_open(isa, THREADS[i], 30, 0);
    }
    ~Suite() {
        for (void* context : contexts)
            if (context) vv_close(context);
    }
    bool usable() const { return contexts[0] != nullptr; }
    int64_t words(const char* op) const {  // 0: the library has no such operation
        const int64_t number = vv_find(contexts[0], op);
        return number < 0 ? 0 : vv_words(contexts[0], number);
    }

    // Runs a call on every number of threads, eagerly and replayed, and hands out each result.
    // `reset` puts the outputs back, `result` reads their bytes.
    bool run(const char* op, const Words& words, const std::function<void()>& reset,
             const std::function<std::vector<uint8_t>()>& result) {
        const int64_t number = vv_find(contexts[0], op);
        if (vv_words(contexts[0], number) != (int64_t)words.list.size()) return fail(op, "takes other words");
        std::vector<uint8_t> first;
        for (int i = 0; i < 3; ++i)
            for (int replayed = 0; replayed < 2; ++replayed) {
                reset();
                if (replayed) replay(contexts[i], number, words);
                else run_one(contexts[i], number, words.list.data());
                const auto bytes = result();
                if (first.empty()) first = bytes;
                if (bytes != first) return fail(op, replayed ? "a replay differs" : "the number of threads matters");
            }
        return true;
    }

    // |got - wanted| <= relative * |scale| + tiny, for every number.
    bool close(const char* op, const std::vector<float>& got, const std::vector<double>& wanted,
               const std::vector<double>& scale, double relative) {
        for (size_t i = 0; i < got.size(); ++i) {
            const double error = std::fabs(got[i] - wanted[i]);
            if (!(error <= relative * std::fabs(scale[i]) + 1e-30)) {
                std::printf("    number %zu: %.9g, wanted %.9g\n", i, (double)got[i], wanted[i]);
                return fail(op, "is wrong");
            }
        }
        return true;
    }

    bool fail(const char* op, const char* why) {
        std::printf("FAIL %s %s\n", op, why);
        ++failures;
        return false;
    }

    // One line for each operation; `test` says false where it found a fault (which it printed).
    void op(const char* name, const std::function<bool(Random&)>& test) {
        ++ops;
        if (!words(name)) {
            fail(name, "is not in the library");
            return;
        }
        Random random(1234 + (uint64_t)ops);
        const int before = failures;
        if (!test(random) && failures == before) fail(name, "is wrong");
        if (failures == before) std::printf("pass %s\n", name);
    }

    void* contexts[3] = {};
    int failures = 0, ops = 0;

   private:
    static void replay(void* context, int64_t number, const Words& words) {
        void* graph = vv_graph_new();
        Words captured = words;  // captured for more rows than are replayed
        captured.list[0] += 5;
        vv_graph_add(context, graph, number, captured.list.data());
        vv_graph_replay(context, graph, words.list[0]);
        vv_graph_free(graph);
    }
};

template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& v) {
    const auto* p = (const uint8_t*)v.data();
    return {p, p + v.size() * sizeof(T)};
}

void elementwise(Suite& suite);
void linear(Suite& suite);
void linear_vnni(Suite& suite);
void kvcache(Suite& suite);
void attention(Suite& suite);
void latent_attention(Suite& suite);
void recurrent(Suite& suite);
void heads(Suite& suite);
void segments(Suite& suite);
void sampling(Suite& suite);
void moe(Suite& suite);
void collectives(Suite& suite);
int pool_stress(int64_t jobs);
int ngrams();

}  // namespace check

// The C interface that Python loads with ctypes: pools, operations by number, graphs.
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "cpu.h"
#include "op.h"
#include "pool.h"

namespace vivace {
// The families of operations; each is a source of its own (kernels.cpp, CMakeLists.txt).
#define VV_FAMILIES(declare) declare(elementwise) declare(linear) declare(linear_vnni) declare(linear_int8) \
    declare(attention) declare(recurrent) declare(heads) declare(sampling) declare(moe) declare(segments) \
    declare(collectives)
// What an instruction set that only adds to the one below it compiles anew.
#define VV_VNNI_FAMILIES(declare) declare(linear_vnni) declare(linear_int8)
#define VV_DECLARE(family) OpTable family();
#ifdef VV_HAVE_AVX512VNNI
namespace avx512vnni { VV_VNNI_FAMILIES(VV_DECLARE) }
#endif
#ifdef VV_HAVE_AVX512VNNI_EMULATED
namespace avx512vnni_emulated { VV_VNNI_FAMILIES(VV_DECLARE) }
#endif
#ifdef VV_HAVE_AVX512
namespace avx512 { VV_FAMILIES(VV_DECLARE) }
#endif
#ifdef VV_HAVE_AVX2
namespace avx2 { VV_FAMILIES(VV_DECLARE) }
#endif
#ifdef VV_HAVE_NEONDOT
namespace neondot { VV_VNNI_FAMILIES(VV_DECLARE) }
#endif
namespace portable { VV_FAMILIES(VV_DECLARE) }

namespace {

using Ops = std::vector<Op>;

struct Isa {
    const char* name;
    Ops (*table)();
    bool (*usable)(const Cpu& cpu);
    bool (*chosen)(const Cpu& cpu);  // by itself, where it is the first usable one
};

constexpr auto ALWAYS = [](const Cpu&) { return true; };

#ifdef __aarch64__
constexpr const char* PORTABLE = "neon";  // every such CPU has it, and simd.h uses it
#else
constexpr const char* PORTABLE = "portable";
#endif

// An operation that is there already is replaced by one of the same name. `only`: this one alone.
void append(Ops& ops, OpTable table, const char* only = nullptr) {
    for (; table->name; ++table) {
        if (only && std::strcmp(table->name, only)) continue;
        Op* old = nullptr;
        for (Op& op : ops)
            if (!std::strcmp(op.name, table->name)) old = &op;
        if (old) *old = *table;
        else ops.push_back(*table);
    }
}

#define VV_APPEND(family) append(ops, family());
#define VV_TABLE(isa) [] { using namespace isa; Ops ops; VV_FAMILIES(VV_APPEND) return ops; }
// The operations of `below`, with those of `isa` in place of some.
#define VV_TABLE_OVER(below, isa) [] {                                                     \
    Ops ops = [] { using namespace below; Ops ops; VV_FAMILIES(VV_APPEND) return ops; }(); \
    { using namespace isa; VV_VNNI_FAMILIES(VV_APPEND) }                                   \
    return ops; }

// The best first.
const Isa ISAS[] = {
#if defined(VV_HAVE_AVX512VNNI) && defined(VV_HAVE_AVX512)
    {"avx512bf16", VV_TABLE_OVER(avx512, avx512vnni), [](const Cpu& cpu) { return cpu.avx512_dot; },
     [](const Cpu& cpu) { return cpu.fast_bf16_dot; }},
    {"avx512vnni", [] {
         Ops ops = VV_TABLE_OVER(avx512, avx512vnni)();
         append(ops, avx512::linear(), "linear_bf16");
         return ops;
     }, [](const Cpu& cpu) { return cpu.avx512_dot; }, ALWAYS},
#endif
#ifdef VV_HAVE_AVX512
    {"avx512", VV_TABLE(avx512), [](const Cpu& cpu) { return cpu.avx512; }, ALWAYS},
#endif
#ifdef VV_HAVE_AVX2
    {"avx2", VV_TABLE(avx2), [](const Cpu& cpu) { return cpu.avx2; }, ALWAYS},
#endif
#ifdef VV_HAVE_NEONDOT
    {"neondot", VV_TABLE_OVER(portable, neondot), [](const Cpu& cpu) { return cpu.neon_dot; }, ALWAYS},
#endif
    {PORTABLE, VV_TABLE(portable), ALWAYS, ALWAYS},
#if defined(VV_HAVE_AVX512VNNI_EMULATED) && defined(VV_HAVE_AVX512)
    {"avx512vnni-emulated", VV_TABLE_OVER(avx512, avx512vnni_emulated), [](const Cpu& cpu) { return cpu.avx512; },
     [](const Cpu&) { return false; }},
#endif
};

const Cpu& this_cpu() {
    static const Cpu cpu;
    return cpu;
}

const Isa* isa_called(const char* wanted) {
    for (const Isa& isa : ISAS) {
        const bool meant = wanted && *wanted ? !std::strcmp(wanted, isa.name) : isa.chosen(this_cpu());
        if (meant && isa.usable(this_cpu())) return &isa;
    }
    return nullptr;
}

// The one after `isa` that may be chosen by itself; null after the last.
const Isa* isa_below(const Isa* isa) {
    for (++isa; isa != ISAS + sizeof ISAS / sizeof *ISAS; ++isa)
        if (isa->chosen(this_cpu()) && isa->usable(this_cpu())) return isa;
    return nullptr;
}

constexpr int64_t MOST_AT_ONCE = 8;  // operations of one vv_run

struct Context {
    const Isa* isa;
    Ops ops;
    Pool pool;
};

// Calls whose arguments are kept. The first word of each is its rows, replaced on replay: where it is a
// multiple of the least (pairs of tokens and experts, say), by that multiple.
struct Graph {
    struct Entry {
        const Op* op;
        size_t at;
        int64_t rows;
    };
    int64_t least = 0;
    std::vector<Entry> entries;
    std::vector<int64_t> words;
    std::vector<Call> calls;
};

}  // namespace
}  // namespace vivace

using namespace vivace;

#pragma GCC visibility push(default)
extern "C" {

// SHA-256 of the sources (CMakeLists.txt).
const char* vv_sources() { return VV_SOURCES; }

// The best instruction set this CPU has, or the one called `isa`; null when it has not that one.
void* vv_open(const char* isa, int64_t threads, int64_t spin_us, int64_t pin) {
    const Isa* chosen = isa_called(isa);
    if (!chosen) return nullptr;
    return new (std::nothrow) Context{chosen, chosen->table(), Pool((int)threads, spin_us, pin != 0)};
}

void vv_close(void* context) { delete static_cast<Context*>(context); }

const char* vv_isa(void* context) { return static_cast<Context*>(context)->isa->name; }

// The name of the next instruction set below, null when this one is the last.
const char* vv_isa_below(void* context) {
    const Isa* below = isa_below(static_cast<Context*>(context)->isa);
    return below ? below->name : nullptr;
}

int64_t vv_find(void* context, const char* name) {
    auto* self = static_cast<Context*>(context);
    for (size_t i = 0; i < self->ops.size(); ++i)
        if (!std::strcmp(self->ops[i].name, name)) return (int64_t)i;
    return -1;
}

int64_t vv_words(void* context, int64_t op) { return static_cast<Context*>(context)->ops[(size_t)op].words; }

// What an operation that runs another one gets as a word.
const void* vv_address(void* context, int64_t op) { return &static_cast<Context*>(context)->ops[(size_t)op]; }

// Operations one after the other; the words of each follow those of the one before.
void vv_run(void* context, const int64_t* numbers, int64_t count, const int64_t* words) {
    auto* self = static_cast<Context*>(context);
    Call calls[MOST_AT_ONCE];
    for (int64_t i = 0; i < count; ++i) {
        calls[i] = {&self->ops[(size_t)numbers[i]], words};
        words += calls[i].op->words;
    }
    self->pool.run(calls, count);
}

void* vv_graph_new() { return new (std::nothrow) Graph(); }

void vv_graph_free(void* graph) { delete static_cast<Graph*>(graph); }

void vv_graph_add(void* context, void* graph, int64_t op, const int64_t* args) {
    auto* self = static_cast<Context*>(context);
    auto* list = static_cast<Graph*>(graph);
    const Op* chosen = &self->ops[(size_t)op];
    if (list->entries.empty() || args[0] < list->least) list->least = args[0];
    list->entries.push_back({chosen, list->words.size(), args[0]});
    list->words.insert(list->words.end(), args, args + chosen->words);
}

int64_t vv_graph_calls(void* graph) { return (int64_t) static_cast<Graph*>(graph)->entries.size(); }

int64_t vv_graph_bytes(void* graph) {
    auto* list = static_cast<Graph*>(graph);
    return (int64_t)(list->words.size() * 8 + list->entries.size() * (sizeof(Graph::Entry) + sizeof(Call)));
}

void vv_graph_replay(void* context, void* graph, int64_t rows) {
    auto* self = static_cast<Context*>(context);
    auto* list = static_cast<Graph*>(graph);
    if (list->calls.size() != list->entries.size()) {
        list->calls.clear();
        for (const auto& entry : list->entries) list->calls.push_back({entry.op, list->words.data() + entry.at});
    }
    const int64_t least = list->least > 0 ? list->least : 1;
    for (const auto& entry : list->entries) list->words[entry.at] = entry.rows / least * rows;
    self->pool.run(list->calls.data(), (int64_t)list->calls.size());
}

}  // extern "C"
#pragma GCC visibility pop

// What a rank does with the memory that it shares with others, which are played here.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "check.h"

namespace check {

namespace {

constexpr int64_t RANKS = 3, SLOT = 4096;  // bytes

// Slots of both phases with random numbers; phase 1 is read after one collective.
struct Slots {
    explicit Slots(Random& random) : numbers(floats(random, 2 * RANKS * SLOT / 4)) {}
    const float* of(int64_t phase, int64_t rank) const { return &numbers[(phase * RANKS + rank) * SLOT / 4]; }
    std::vector<float> numbers;
};

bool share_rows(Suite& suite, Random& random, int64_t rows, int64_t n) {
    const int64_t stride = n + 3, rank = 1;
    const auto x = floats(random, rows * stride);
    Slots slots(random);
    const auto before = slots.numbers;
    const std::vector<int64_t> own = {0};
    const auto reset = [&] { slots.numbers = before; };
    Words words;
    words.add(rows).add(x).add(stride).add(n).add(slots.numbers).add(SLOT).add(rank).add(RANKS).add(own);
    if (!suite.run("share_rows", words, reset, [&] { return bytes_of(slots.numbers); })) return false;
    auto wanted = before;
    for (int64_t i = 0; i < rows * n; ++i)
        wanted[(RANKS + rank) * SLOT / 4 + i] = x[i / n * stride + i % n];
    return slots.numbers == wanted;
}

// The others have published as much already, so nobody waits.
bool meet(Suite& suite) {
    std::vector<int64_t> memory(8 * (RANKS + 2)), own = {6};
    auto* group = (int64_t*)(((intptr_t)memory.data() + 63) / 64 * 64);
    const int64_t rank = 1;
    const auto reset = [&] {
        std::fill(memory.begin(), memory.end(), 0);
        own[0] = 6, group[8] = 7, group[8 * 3] = 8;
    };
    reset();
    Words words;
    words.add((int64_t)5).add((const void*)group).add((const void*)(group + 8)).add(rank).add(RANKS).add(own);
    if (!suite.run("meet", words, reset, [&] { return bytes_of(memory); })) return false;
    return own[0] == 7 && group[8 * 2] == 7 && group[8] == 7 && group[8 * 3] == 8;
}

// This rank is alone on its node; the other node's two have sent what they have already.
bool meet_nodes(Suite& suite, Random& random, int64_t rows, int64_t n) {
    std::vector<int64_t> memory(8 * (RANKS + 2)), own = {6};
    auto* group = (int64_t*)(((intptr_t)memory.data() + 63) / 64 * 64);
    Slots slots(random);
    const auto before = slots.numbers;
    const std::vector<float> far = floats(random, 12);
    const int64_t head[] = {7, 12, 36};  // the number of the collective, bytes of ranks 1 and 2
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return false;
    const std::vector<int64_t> sockets = {ends[0], 1, 2};
    std::vector<char> sent(sizeof head + (size_t)(4 * rows * n));
    const auto reset = [&] {
        while (recv(ends[1], sent.data(), sent.size(), MSG_DONTWAIT) > 0) {}
        std::fill(memory.begin(), memory.end(), 0);
        slots.numbers = before, own[0] = 6;
        send(ends[1], head, sizeof head, 0);
        send(ends[1], far.data(), 48, 0);
    };
    reset();
    Words words;
    words.add(rows).add(n).add((const void*)group).add((const void*)(group + 8)).add((int64_t)0).add(RANKS).add(own);
    words.add(slots.numbers).add(SLOT).add(sockets).add((int64_t)1);
    const bool ran = suite.run("meet_nodes", words, reset, [&] { return bytes_of(slots.numbers); });
    const int64_t got = recv(ends[1], sent.data(), sent.size(), MSG_DONTWAIT);
    close(ends[0]), close(ends[1]);
    const int64_t mine[] = {7, 4 * rows * n};
    auto wanted = before;
    std::copy(far.begin(), far.begin() + 3, wanted.begin() + (RANKS + 1) * SLOT / 4);
    std::copy(far.begin() + 3, far.end(), wanted.begin() + (RANKS + 2) * SLOT / 4);
    const char* own_slot = (const char*)slots.of(1, 0);
    return ran && slots.numbers == wanted && group[0] == 0 && group[8] == 7 && group[16] == 7 && group[24] == 7 &&
           got == (int64_t)sizeof mine + mine[1] && !std::memcmp(sent.data(), mine, sizeof mine) &&
           !std::memcmp(sent.data() + sizeof mine, own_slot, (size_t)mine[1]);
}

// To another node and, from there, back.
bool pipe_to_node(Suite& suite, Random& random, const char* op, int64_t rows, int64_t n) {
    const bool sends = !std::strcmp(op, "send_to_node");
    std::vector<int64_t> memory(16);
    auto* group = (int64_t*)(((intptr_t)memory.data() + 63) / 64 * 64);
    const int64_t stride = n + 3, bytes = 4 * rows * n;
    const auto x = floats(random, rows * stride), far = floats(random, rows * n);
    std::vector<float> out((size_t)(rows * n)), wanted;
    for (int64_t i = 0; i < rows * n; ++i) wanted.push_back(x[i / n * stride + i % n]);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return false;
    const std::vector<int64_t> end = {ends[0], 0, 1};
    std::vector<char> got(8 + (size_t)bytes);
    const auto reset = [&] {
        while (recv(ends[sends ? 1 : 0], got.data(), got.size(), MSG_DONTWAIT) > 0) {}
        std::fill(out.begin(), out.end(), 0.0f);
        if (sends) return;
        send(ends[1], &bytes, 8, 0);
        send(ends[1], far.data(), (size_t)bytes, 0);
    };
    reset();
    Words words;
    words.add(rows);
    if (sends) words.add(x).add(stride).add(n);
    if (!sends) words.add(out).add(n);
    words.add((const void*)group).add(end);
    const bool ran = suite.run(op, words, reset, [&] { return bytes_of(out); });
    const int64_t came = sends ? recv(ends[1], got.data(), got.size(), MSG_DONTWAIT) : 0;
    close(ends[0]), close(ends[1]);
    if (!ran || group[0] != 0) return false;
    if (!sends) return out == far;
    return came == 8 + bytes && !std::memcmp(got.data(), &bytes, 8) &&
           !std::memcmp(got.data() + 8, wanted.data(), (size_t)bytes);
}

bool add_shares(Suite& suite, Random& random, int64_t rows, int64_t n, int64_t first = 0, int64_t place = 0) {
    const Slots slots(random);
    const std::vector<int64_t> own = {1};
    std::vector<float> out((size_t)(rows * n)), wanted(out.size());
    const auto reset = [&] { std::fill(out.begin(), out.end(), 0.0f); };
    Words words;
    words.add(rows).add(out).add(n).add(first).add(place).add(slots.numbers).add(SLOT).add(RANKS).add(own);
    if (!suite.run("add_shares", words, reset, [&] { return bytes_of(out); })) return false;
    for (int64_t i = 0; i < rows * n; ++i) {
        const int64_t at = (first + place * rows) * n + i;
        wanted[i] = slots.of(1, 0)[at] + slots.of(1, 1)[at] + slots.of(1, 2)[at];
    }
    return out == wanted;
}

bool gather_rows(Suite& suite, Random& random, const std::vector<int64_t>& counts, int64_t n, bool same = false) {
    const Slots slots(random);
    const std::vector<int64_t> own = {3};
    const int64_t rows = counts[0] + counts[1] + counts[2];
    std::vector<float> out((size_t)(rows * n)), wanted;
    const auto reset = [&] { std::fill(out.begin(), out.end(), 0.0f); };
    Words words;
    words.add(rows).add(out).add(n).add(same ? nullptr : (const void*)counts.data()).add(slots.numbers).add(SLOT).add(RANKS).add(own);
    if (!suite.run("gather_rows", words, reset, [&] { return bytes_of(out); })) return false;
    for (int64_t rank = 0; rank < RANKS; ++rank)
        wanted.insert(wanted.end(), slots.of(1, rank), slots.of(1, rank) + counts[rank] * n);
    return out == wanted;
}

bool gather_shares(Suite& suite, Random& random, int64_t rows) {
    const Slots slots(random);
    const std::vector<int64_t> own = {4}, widths = {5, 1, 9};
    std::vector<float> out((size_t)(rows * 15)), wanted;
    const auto reset = [&] { std::fill(out.begin(), out.end(), 0.0f); };
    Words words;
    words.add(rows).add(out).add(widths).add(slots.numbers).add(SLOT).add(RANKS).add(own);
    if (!suite.run("gather_shares", words, reset, [&] { return bytes_of(out); })) return false;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t rank = 0; rank < RANKS; ++rank)
            for (int64_t i = 0; i < widths[rank]; ++i) wanted.push_back(slots.of(0, rank)[row * widths[rank] + i]);
    return out == wanted;
}

// Lines and slots of a pipe, aligned as its memory is.
struct Pipe {
    static constexpr int64_t COUNT = 3, LINE = 8;  // words
    Pipe() : memory(LINE * 4 + COUNT * SLOT / 8) {
        group = (int64_t*)(((intptr_t)memory.data() + 63) / 64 * 64);
    }
    void reset(int64_t filled, int64_t emptied) {
        std::fill(memory.begin(), memory.end(), 0);
        group[LINE] = filled, group[2 * LINE] = emptied;
    }
    int64_t* slot(int64_t number) { return group + 3 * LINE + number * SLOT / 8; }
    void describe(Words& words, std::vector<int64_t>& own) {
        words.add((const void*)group).add((const void*)(group + LINE)).add((const void*)slot(0));
        words.add(SLOT).add(COUNT).add(own);
    }
    std::vector<int64_t> memory;
    int64_t* group;
};

// Two of three slots are full, so nobody waits; the next one is the third.
bool send_rows(Suite& suite, Random& random, int64_t rows, int64_t n) {
    const int64_t stride = n + 3;
    const auto x = floats(random, rows * stride);
    Pipe pipe;
    std::vector<int64_t> own = {5};
    const auto reset = [&] { pipe.reset(5, 3), own[0] = 5; };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(n);
    pipe.describe(words, own);
    if (!suite.run("send_rows", words, reset, [&] { return bytes_of(pipe.memory); })) return false;
    const auto* sent = (const float*)(pipe.slot(2) + Pipe::LINE);
    for (int64_t i = 0; i < rows * n; ++i)
        if (sent[i] != x[(size_t)(i / n * stride + i % n)]) return false;
    return own[0] == 6 && pipe.group[Pipe::LINE] == 6 && *pipe.slot(2) == 4 * rows * n && *pipe.slot(0) == 0;
}

// `wrong`: bytes more than are expected.
bool receive_rows(Suite& suite, Random& random, int64_t rows, int64_t n, int64_t wrong = 0) {
    const auto sent = floats(random, rows * n);
    Pipe pipe;
    std::vector<int64_t> own = {4};
    std::vector<float> out((size_t)(rows * n));
    const auto reset = [&] {
        pipe.reset(5, 4), own[0] = 4;
        std::fill(out.begin(), out.end(), 0.0f);
        std::copy(sent.begin(), sent.end(), (float*)(pipe.slot(1) + Pipe::LINE));
        *pipe.slot(1) = 4 * rows * n + wrong;
    };
    reset();
    Words words;
    words.add(rows).add(out).add(n);
    pipe.describe(words, own);
    if (!suite.run("receive_rows", words, reset, [&] { return bytes_of(out); })) return false;
    if (wrong) return out == std::vector<float>(out.size()) && pipe.group[0] == 1 && pipe.group[2 * Pipe::LINE] == 4;
    return out == sent && own[0] == 5 && pipe.group[2 * Pipe::LINE] == 5 && pipe.group[Pipe::LINE] == 5;
}

// Pairs of two tokens and three of their experts; one is another rank's.
bool share_pairs(Suite& suite, Random& random, int64_t n) {
    const int64_t rows = 2, top = 3, rank = 2, stride = n + 2;
    const std::vector<int64_t> places = {4, -1, 0, 1, 3, 2}, own = {1};
    const auto x = floats(random, 5 * stride);
    Slots slots(random);
    const auto before = slots.numbers;
    const auto reset = [&] { slots.numbers = before; };
    Words words;
    words.add(rows).add(x).add(stride).add(n).add(places).add(top).add(slots.numbers).add(SLOT).add(rank).add(RANKS);
    words.add(own);
    if (!suite.run("share_pairs", words, reset, [&] { return bytes_of(slots.numbers); })) return false;
    auto wanted = before;
    for (int64_t pair = 0; pair < rows * top; ++pair)
        for (int64_t i = 0; i < n && places[pair] >= 0; ++i)
            wanted[rank * SLOT / 4 + pair * n + i] = x[places[pair] * stride + i];
    return slots.numbers == wanted;
}

// Every rank has a third of the inside of all experts (`inside`), in one sum or two; or four experts, whole.
bool combine_pairs(Suite& suite, Random& random, int64_t n, bool inside, bool weighed, int64_t first = 0) {
    const Slots slots(random);
    const std::vector<int64_t> placed = {-4, 0, 7, 3, 4, -1, 0, 1, 2}, own = {3};
    const std::vector<int64_t> sums = inside ? std::vector<int64_t>{1, 2, 1} : std::vector<int64_t>{1};
    const std::vector<int64_t> merges = inside ? std::vector<int64_t>{0, 1, 0, 2} : std::vector<int64_t>{0};
    const int64_t all = 3, rows = all - first, top = 3, base = 4, each = inside ? 12 : 4;
    const auto weights = floats(random, all * top);
    std::vector<float> out, found((size_t)(rows * n));
    const auto reset = [&] { out.assign((size_t)(rows * n), 0.0f); };
    reset();
    Words words;
    words.add(rows).add(out).add(n).add(first).add(placed).add(top).add(base).add(each);
    words.add(weighed ? weights.data() : nullptr).add((int64_t)sums.size()).add(sums).add(merges);
    words.add(slots.numbers).add(SLOT).add(RANKS).add(own);
    if (!suite.run("combine_pairs", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted(out.size()), scale(out.size());
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t pair = (first + row) * top; pair < (first + row + 1) * top; ++pair)
            for (int64_t i = 0; i < n; ++i) {
                const auto part = [&](int64_t rank, int64_t s) {
                    return slots.of(1, rank)[(pair * (inside ? sums[rank] : 1) + s) * n + i];
                };
                const float sum = inside ? (part(0, 0) + part(1, 0)) + (part(1, 1) + part(2, 0))
                                         : part((placed[pair] + base) / each, 0);
                const double product = (weighed ? weights[pair] : 1.0) * sum;
                wanted[row * n + i] += product, scale[row * n + i] += std::fabs(product);
            }
    return suite.close("combine_pairs", out, wanted, scale, 1e-6);
}

// Tokens of engines whose ranks share them, and the slots of three experts of each, as rank `here` counts them.
struct Travel {
    Travel(Random& random, std::vector<int64_t> tokens, int64_t here) : counts(std::move(tokens)), here(here) {
        for (const int64_t count : counts) all += count;
        for (int64_t i = 0; i < 3 * all; ++i) placed.push_back(random.below(EACH * RANKS + 1) - 1 - here * EACH);
    }
    bool at(int64_t token, int64_t rank) const {
        for (int64_t i = 3 * token; i < 3 * token + 3; ++i) {
            const int64_t slot = placed[i] + here * EACH;
            if (slot >= 0 && slot / EACH == rank) return true;
        }
        return false;
    }
    static constexpr int64_t EACH = 2;
    std::vector<int64_t> counts, placed;
    int64_t here, all = 0;
};

bool offer_rows(Suite& suite, Random& random, int64_t rows, int64_t n, int64_t rank, int64_t engines) {
    const int64_t stride = n + 3, parts = RANKS / engines;
    const auto x = floats(random, rows * stride);
    Slots slots(random);
    const auto before = slots.numbers;
    const std::vector<int64_t> own = {0};
    const auto reset = [&] { slots.numbers = before; };
    Words words;
    words.add(rows).add(x).add(stride).add(n).add(slots.numbers).add(SLOT).add(rank).add(RANKS).add(own).add(engines);
    if (!suite.run("offer_rows", words, reset, [&] { return bytes_of(slots.numbers); })) return false;
    auto wanted = before;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < n; ++i)
            if (row >= rows * (rank % parts) / parts && row < rows * (rank % parts + 1) / parts)
                wanted[(RANKS + rank) * SLOT / 4 + row * n + i] = x[row * stride + i];
    return slots.numbers == wanted;
}

bool pull_rows(Suite& suite, Random& random, const std::vector<int64_t>& counts, int64_t n, bool same) {
    const Travel travel(random, counts, 1);
    const Slots slots(random);
    const std::vector<int64_t> own = {1};
    const int64_t engines = (int64_t)counts.size(), parts = RANKS / engines;
    std::vector<float> out((size_t)(travel.all * n)), wanted(out.size());
    const auto reset = [&] { std::fill(out.begin(), out.end(), 0.0f); };
    Words words;
    words.add(travel.all).add(out).add(n).add(same ? nullptr : (const void*)counts.data());
    words.add(travel.placed).add((int64_t)3).add(Travel::EACH).add(slots.numbers).add(SLOT).add(RANKS).add(own);
    words.add(engines);
    if (!suite.run("pull_rows", words, reset, [&] { return bytes_of(out); })) return false;
    int64_t token = 0;
    for (int64_t engine = 0; engine < engines; ++engine)
        for (int64_t row = 0; row < counts[engine]; ++row, ++token)
            for (int64_t part = 0; part < parts; ++part) {
                const bool sends = row >= counts[engine] * part / parts && row < counts[engine] * (part + 1) / parts;
                for (int64_t i = 0; i < n && sends && travel.at(token, 1); ++i)
                    wanted[token * n + i] = slots.of(1, engine * parts + part)[row * n + i];
            }
    return out == wanted;
}

bool return_rows(Suite& suite, Random& random, int64_t rows, int64_t n) {
    const Travel travel(random, {rows}, 2);
    const int64_t stride = n + 1, rank = 2;
    const auto y = floats(random, rows * stride);
    Slots slots(random);
    const auto before = slots.numbers;
    const std::vector<int64_t> own = {1};
    const auto reset = [&] { slots.numbers = before; };
    Words words;
    words.add(rows).add(y).add(stride).add(n).add(travel.placed).add((int64_t)3).add(Travel::EACH);
    words.add(slots.numbers).add(SLOT).add(rank).add(RANKS).add(own);
    if (!suite.run("return_rows", words, reset, [&] { return bytes_of(slots.numbers); })) return false;
    auto wanted = before;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < n && travel.at(row, rank); ++i) wanted[rank * SLOT / 4 + row * n + i] = y[row * stride + i];
    return slots.numbers == wanted;
}

bool collect_rows(Suite& suite, Random& random, const std::vector<int64_t>& counts, int64_t n, bool same) {
    const int64_t rank = 2, engines = (int64_t)counts.size(), engine = rank / (RANKS / engines);
    const Travel travel(random, counts, rank);
    const Slots slots(random);
    const std::vector<int64_t> own = {2};
    std::vector<float> out((size_t)(counts[engine] * n)), wanted(out.size());
    const auto reset = [&] { std::fill(out.begin(), out.end(), 0.0f); };
    Words words;
    words.add(counts[engine]).add(out).add(n).add(same ? nullptr : (const void*)counts.data());
    words.add(travel.placed).add((int64_t)3).add(Travel::EACH).add(slots.numbers).add(SLOT).add(rank).add(RANKS);
    words.add(own).add(engines);
    if (!suite.run("collect_rows", words, reset, [&] { return bytes_of(out); })) return false;
    int64_t first = 0;
    for (int64_t i = 0; i < engine; ++i) first += counts[i];
    for (int64_t i = 0; i < counts[engine] * n; ++i)
        for (int64_t one = 0; one < RANKS; ++one)
            if (travel.at(first + i / n, one)) wanted[i] += slots.of(0, one)[first * n + i];
    return out == wanted;
}

}  // namespace

void collectives(Suite& suite) {
    suite.op("share_pairs", [&](Random& random) {
        return share_pairs(suite, random, 1) && share_pairs(suite, random, 37);
    });
    suite.op("combine_pairs", [&](Random& random) {
        for (bool inside : {false, true})
            for (bool weighed : {false, true})
                if (!combine_pairs(suite, random, 16, inside, weighed) || !combine_pairs(suite, random, 37, inside, weighed) ||
                    !combine_pairs(suite, random, 21, inside, weighed, 1))
                    return false;
        return true;
    });
    suite.op("share_rows", [&](Random& random) {
        return share_rows(suite, random, 1, 1) && share_rows(suite, random, 9, 37);
    });
    suite.op("meet", [&](Random&) { return meet(suite); });
    suite.op("meet_nodes", [&](Random& random) {
        return meet_nodes(suite, random, 1, 1) && meet_nodes(suite, random, 9, 37);
    });
    for (const char* op : {"send_to_node", "receive_from_node"})
        suite.op(op, [&, op](Random& random) {
            return pipe_to_node(suite, random, op, 1, 1) && pipe_to_node(suite, random, op, 9, 37);
        });
    suite.op("add_shares", [&](Random& random) {
        return add_shares(suite, random, 1, 1) && add_shares(suite, random, 9, 37) && add_shares(suite, random, 4, 64) &&
               add_shares(suite, random, 5, 37, 3) && add_shares(suite, random, 5, 37, 0, 2);
    });
    suite.op("gather_rows", [&](Random& random) {
        return gather_rows(suite, random, {1, 1, 1}, 1) && gather_rows(suite, random, {9, 0, 3}, 37) &&
               gather_rows(suite, random, {2, 7, 11}, 64) && gather_rows(suite, random, {5, 5, 5}, 37, true);
    });
    suite.op("gather_shares", [&](Random& random) {
        return gather_shares(suite, random, 1) && gather_shares(suite, random, 9);
    });
    suite.op("send_rows", [&](Random& random) {
        return send_rows(suite, random, 1, 1) && send_rows(suite, random, 9, 37);
    });
    suite.op("receive_rows", [&](Random& random) {
        return receive_rows(suite, random, 1, 1) && receive_rows(suite, random, 9, 37) &&
               receive_rows(suite, random, 2, 5, 20) && receive_rows(suite, random, 2, 5, -4);
    });
    suite.op("offer_rows", [&](Random& random) {
        return offer_rows(suite, random, 1, 1, 0, 1) && offer_rows(suite, random, 9, 37, 1, 1) &&
               offer_rows(suite, random, 5, 16, 2, 3);
    });
    suite.op("pull_rows", [&](Random& random) {
        return pull_rows(suite, random, {1}, 1, false) && pull_rows(suite, random, {9}, 37, true) &&
               pull_rows(suite, random, {7, 0, 3}, 37, false) && pull_rows(suite, random, {4, 4, 4}, 64, true);
    });
    suite.op("return_rows", [&](Random& random) {
        return return_rows(suite, random, 1, 1) && return_rows(suite, random, 11, 37);
    });
    suite.op("collect_rows", [&](Random& random) {
        return collect_rows(suite, random, {1}, 1, false) && collect_rows(suite, random, {9}, 37, true) &&
               collect_rows(suite, random, {3, 0, 7}, 37, false) && collect_rows(suite, random, {4, 4, 4}, 64, true);
    });
}

}  // namespace check

// What texts said behind the same tokens: of one row (OwnText), of all requests (Trie), of texts that were
// given (Corpora). Plain host code without threads; ngram.cpp puts the three together. What each finds is the
// same as in platforms/ops/ngrams.py, whatever lies where in memory.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace vivace {
namespace ngram {

using Tokens = std::vector<int32_t>;

constexpr uint64_t ODD = 0x9e3779b97f4a7c15ull;

// Where a suffix occurred before: `length` tokens that end in front of `end`; 0: nowhere.
struct Match {
    int64_t length = 0, end = 0;
};

// One row's tokens, and where each of its last `longest` suffixes ended the last time.
class OwnText {
   public:
    OwnText(int64_t shortest, int64_t longest) : shortest(shortest), longest(longest) {}

    void reserve(int64_t more) {
        tokens.reserve(tokens.size() + (size_t)more);
        grow(used + (size_t)(more * (longest - shortest + 1)));
    }

    void push(int32_t token) {
        tokens.push_back(token);
        grow(used + (size_t)(longest - shortest + 1));
        const auto size = (int64_t)tokens.size();
        match = Match();
        uint64_t hash = 0;
        for (int64_t length = 1; length <= std::min(longest, size); ++length) {
            hash = extend(hash, tokens[(size_t)(size - length)]);
            if (length < shortest) continue;
            uint32_t& slot = table[find(hash, size, length)];
            if (slot) match = {length, end_in(slot)};
            else ++used;
            slot = pack(size, length);
        }
    }

    int64_t nbytes() const { return (int64_t)(tokens.capacity() * sizeof(int32_t) + table.capacity() * 4); }

    Tokens tokens;
    Match match;  // of the longest suffix that occurred before

   private:
    // A slot has the end and the length of an n-gram; 0 is empty.
    static uint32_t pack(int64_t end, int64_t length) { return (uint32_t)end << 6 | (uint32_t)(length - 1); }
    static int64_t end_in(uint32_t slot) { return slot >> 6; }
    static int64_t length_in(uint32_t slot) { return (slot & 63) + 1; }
    static uint64_t extend(uint64_t hash, int32_t token) {
        hash = (hash + (uint32_t)token + 1) * ODD;
        return hash ^ hash >> 29;
    }

    size_t find(uint64_t hash, int64_t end, int64_t length) const {
        const size_t mask = table.size() - 1;
        for (size_t place = (size_t)(hash * ODD >> 20) & mask;; place = (place + 1) & mask) {
            const uint32_t slot = table[place];
            if (!slot) return place;
            if (length_in(slot) == length &&
                !std::memcmp(&tokens[(size_t)(end_in(slot) - length)], &tokens[(size_t)(end - length)],
                             (size_t)length * sizeof(int32_t)))
                return place;
        }
    }

    // Room for so many entries, at most 5/8 of the table.
    void grow(size_t entries) {
        if (entries * 8 <= table.size() * 5) return;
        size_t size = 64;
        while (entries * 8 > size * 5) size *= 2;
        std::vector<uint32_t> before(size);
        before.swap(table);
        for (const uint32_t slot : before) {
            if (!slot) continue;
            const int64_t end = end_in(slot), length = length_in(slot);
            uint64_t hash = 0;
            for (int64_t i = 1; i <= length; ++i) hash = extend(hash, tokens[(size_t)(end - i)]);
            table[find(hash, end, length)] = slot;
        }
    }

    int64_t shortest, longest;
    std::vector<uint32_t> table;
    size_t used = 0;
};

// An array, of so many numbers each, that grows by parts and never moves.
template <class T>
class Parts {
   public:
    explicit Parts(int64_t unit = 1) : unit(unit) {}
    T* at(int64_t i) { return &parts[(size_t)(i >> BITS)][(size_t)((i & (SIZE - 1)) * unit)]; }
    const T* at(int64_t i) const { return &parts[(size_t)(i >> BITS)][(size_t)((i & (SIZE - 1)) * unit)]; }
    T& operator[](int64_t i) { return parts[(size_t)(i >> BITS)][(size_t)(i & (SIZE - 1))]; }
    const T& operator[](int64_t i) const { return parts[(size_t)(i >> BITS)][(size_t)(i & (SIZE - 1))]; }
    void reserve(int64_t count) {
        while ((int64_t)parts.size() * SIZE < count) parts.emplace_back(new T[(size_t)(SIZE * unit)]());
    }
    int64_t nbytes() const { return (int64_t)parts.size() * SIZE * unit * (int64_t)sizeof(T); }

   private:
    static constexpr int64_t BITS = 10, SIZE = 1 << BITS;
    int64_t unit;
    std::vector<std::unique_ptr<T[]>> parts;
};

constexpr int32_t NONE = -1, ROOT = 0;
constexpr int MOST_CHILDREN = 64;  // the latest, among which the most frequent one is looked for

// A place in a Trie: behind a node and so many tokens of its tail.
struct Place {
    int32_t node = ROOT, used = 0;
};

// Paths of at most `depth` tokens. A node has its visits and its children, the latest first; what only one
// path went through hangs on a leaf as its tail. Of more than `capacity` tokens, in nodes and tails, the leaf
// that was not visited for the longest time leaves first.
class Trie {
   public:
    Trie(int64_t capacity, int64_t depth) : capacity(capacity), tails(std::max<int64_t>(depth - 1, 1)) {
        nodes.reserve(1);
        nodes[ROOT] = Node();
        made = 1;
        buckets.reserve(1);
        buckets[0] = NONE;
    }

    // Moves `place` along these tokens; false: no path has them.
    bool find(Place& place, const int32_t* tokens, int64_t count) const {
        for (int64_t i = 0; i < count; ++i) {
            const Node& node = nodes[place.node];
            if (node.tail_count) {
                if (place.used >= node.tail_count || tail(node)[place.used] != tokens[i]) return false;
                ++place.used;
            } else {
                place.node = find(place.node, tokens[i]);
                if (place.node == NONE) return false;
            }
        }
        return true;
    }

    // Moves `place` to the latest or the most frequent token behind it, which is returned; -1: there is none.
    int32_t follow(Place& place, bool by_frequency) const {
        const Node& node = nodes[place.node];
        if (place.used < node.tail_count) return tail(node)[place.used++];
        int32_t best = node.child;
        if (best == NONE) return -1;
        int32_t at = best;
        for (int seen = 1; by_frequency && seen < MOST_CHILDREN && (at = nodes[at].next) != NONE; ++seen)
            if (nodes[at].count > nodes[best].count) best = at;
        place = {best, 0};
        return nodes[best].token;
    }

    // The latest tokens behind a place, or the most frequent ones of these first.
    Tokens children(Place place, bool by_frequency) const {
        const Node& node = nodes[place.node];
        if (place.used < node.tail_count) return {tail(node)[place.used]};
        std::vector<int32_t> found;
        for (int32_t at = node.child; at != NONE && (int)found.size() < MOST_CHILDREN; at = nodes[at].next)
            found.push_back(at);
        if (by_frequency)
            std::stable_sort(found.begin(), found.end(),
                             [&](int32_t a, int32_t b) { return nodes[a].count > nodes[b].count; });
        for (int32_t& each : found) each = nodes[each].token;
        return found;
    }

    bool goes_on(Place place) const {
        return place.used < nodes[place.node].tail_count || nodes[place.node].child != NONE;
    }

    // Visits a path; what there is no room for is left out.
    void insert(const int32_t* tokens, int64_t count) {
        int32_t at = ROOT;
        for (int64_t i = 0; i < count; ++i) {
            if (nodes[at].tail_count) unfold(at);
            const int32_t next = find(at, tokens[i]);
            if (next == NONE) return grow(at, tokens + i, count - i);
            visit(at = next);
        }
    }

    int64_t size() const { return live; }
    int64_t nbytes() const { return nodes.nbytes() + buckets.nbytes() + tails.nbytes(); }

   private:
    struct Node {
        int32_t token = 0, parent = NONE, child = NONE;
        int32_t next = NONE, prev = NONE;    // of the same parent
        int32_t bucket_next = NONE;          // or the next free node
        int32_t newer = NONE, older = NONE;  // among leaves
        uint32_t count = 0;
        int32_t tail_part = NONE;
        uint16_t tail_from = 0, tail_count = 0;
    };

    const int32_t* tail(const Node& node) const { return tails.at(node.tail_part) + node.tail_from; }

    int32_t find(int32_t parent, int32_t token) const {
        for (int32_t at = buckets[bucket(parent, token)]; at != NONE; at = nodes[at].bucket_next)
            if (nodes[at].parent == parent && nodes[at].token == token) return at;
        return NONE;
    }

    // Linear hashing: one bucket more for each node more, so no node waits until all have moved.
    int64_t bucket(int32_t parent, int32_t token) const {
        const uint64_t key = (uint64_t)(uint32_t)parent << 32 | (uint32_t)token;
        const auto hash = (int64_t)((key ^ key >> 31) * ODD >> 24);
        const int64_t place = hash & (2 * level - 1);
        return place < filled ? place : hash & (level - 1);
    }

    void add_bucket() {
        buckets.reserve(filled + 1);
        const int64_t source = filled - level;
        buckets[filled] = NONE;
        int32_t at = buckets[source];
        buckets[source] = NONE;
        if (++filled == 2 * level) level *= 2;
        while (at != NONE) {
            const int32_t next = nodes[at].bucket_next;
            enter(at);
            at = next;
        }
    }

    void enter(int32_t node) {
        int32_t& first = buckets[bucket(nodes[node].parent, nodes[node].token)];
        nodes[node].bucket_next = first;
        first = node;
    }

    void visit(int32_t node) {
        if (nodes[nodes[node].parent].child != node) {
            leave_siblings(node);
            join_siblings(node);
        }
        if (nodes[node].child == NONE && newest != node) {
            leave_leaves(node);
            join_leaves(node);
        }
        if (nodes[node].count != UINT32_MAX) ++nodes[node].count;
    }

    // The first token of a leaf's tail becomes a node with the rest.
    void unfold(int32_t leaf) {
        const int32_t node = add(leaf, *tail(nodes[leaf]));
        nodes[node].tail_part = nodes[leaf].tail_part;
        nodes[node].tail_from = (uint16_t)(nodes[leaf].tail_from + 1);
        nodes[node].tail_count = (uint16_t)(nodes[leaf].tail_count - 1);
        nodes[leaf].tail_count = 0;
        nodes[leaf].tail_part = NONE;
        if (!nodes[node].tail_count) free_tail(node);
    }

    // A new branch, as long as there is room for.
    void grow(int32_t parent, const int32_t* tokens, int64_t count) {
        while (live + count > capacity) {
            const int32_t leaf = oldest == parent ? nodes[oldest].newer : oldest;
            if (leaf == NONE) break;
            remove(leaf);
        }
        count = std::min(count, capacity - live);
        if (count < 1) return;
        live += count;
        const int32_t node = add(parent, tokens[0]);
        if (count == 1) return;
        int32_t part = free_part;
        if (part != NONE) free_part = *tails.at(part);
        else {
            part = (int32_t)parts++;
            tails.reserve(part + 1);
        }
        nodes[node].tail_part = part;
        nodes[node].tail_count = (uint16_t)(count - 1);
        std::copy(tokens + 1, tokens + count, tails.at(part));
    }

    // A node that was visited once, now the newest leaf.
    int32_t add(int32_t parent, int32_t token) {
        int32_t node = free_node;
        if (node != NONE) free_node = nodes[node].bucket_next;
        else {
            nodes.reserve(made + 1);
            add_bucket();
            node = (int32_t)made++;
        }
        if (nodes[parent].child == NONE && parent != ROOT) leave_leaves(parent);
        nodes[node] = Node();
        nodes[node].token = token;
        nodes[node].parent = parent;
        nodes[node].count = 1;
        enter(node);
        join_siblings(node);
        join_leaves(node);
        return node;
    }

    void remove(int32_t leaf) {
        int32_t* link = &buckets[bucket(nodes[leaf].parent, nodes[leaf].token)];
        while (*link != leaf) link = &nodes[*link].bucket_next;
        *link = nodes[leaf].bucket_next;
        leave_siblings(leaf);
        leave_leaves(leaf);
        const int32_t parent = nodes[leaf].parent;
        if (parent != ROOT && nodes[parent].child == NONE) {  // its last visits went through the leaf
            nodes[parent].older = NONE;
            nodes[parent].newer = oldest;
            (oldest == NONE ? newest : nodes[oldest].older) = parent;
            oldest = parent;
        }
        live -= 1 + nodes[leaf].tail_count;
        if (nodes[leaf].tail_count) free_tail(leaf);
        nodes[leaf].bucket_next = free_node;
        free_node = leaf;
    }

    void free_tail(int32_t node) {
        *tails.at(nodes[node].tail_part) = free_part;
        free_part = nodes[node].tail_part;
        nodes[node].tail_part = NONE;
    }

    void join_siblings(int32_t node) {
        int32_t& first = nodes[nodes[node].parent].child;
        nodes[node].prev = NONE;
        nodes[node].next = first;
        if (first != NONE) nodes[first].prev = node;
        first = node;
    }
    void leave_siblings(int32_t node) {
        const int32_t next = nodes[node].next, prev = nodes[node].prev;
        (prev == NONE ? nodes[nodes[node].parent].child : nodes[prev].next) = next;
        if (next != NONE) nodes[next].prev = prev;
    }
    void join_leaves(int32_t node) {
        nodes[node].newer = NONE;
        nodes[node].older = newest;
        (newest == NONE ? oldest : nodes[newest].newer) = node;
        newest = node;
    }
    void leave_leaves(int32_t node) {
        const int32_t newer = nodes[node].newer, older = nodes[node].older;
        (newer == NONE ? newest : nodes[newer].older) = older;
        (older == NONE ? oldest : nodes[older].newer) = newer;
    }

    const int64_t capacity;
    int64_t live = 0, made = 0, parts = 0;
    Parts<Node> nodes;
    Parts<int32_t> buckets, tails;  // each tail has room for the longest
    int64_t level = 1, filled = 1;
    int32_t free_node = NONE, free_part = NONE, newest = NONE, oldest = NONE;
};

// Texts that do not change, all in one; their positions in the order of the `depth` tokens that follow them,
// up to the end of a document (-1).
class Corpora {
   public:
    explicit Corpora(int64_t depth) : depth(depth) {}

    bool empty() const { return order.empty(); }

    void add(const int32_t* text, int64_t count) {
        const auto before = (int64_t)tokens.size();
        const bool open = !count || text[count - 1] >= 0;
        sizes.reserve(sizes.size() + 1);
        tokens.reserve((size_t)(before + count + 1));
        order.reserve(order.size() + (size_t)count);
        std::vector<int32_t> fresh;
        fresh.reserve((size_t)count);  // all memory is there before anything changes
        tokens.insert(tokens.end(), text, text + count);
        if (open) tokens.push_back(-1);
        sizes.push_back((int64_t)tokens.size() - before);
        for (auto at = before; at < (int64_t)tokens.size(); ++at)
            if (tokens[(size_t)at] >= 0) fresh.push_back((int32_t)at);
        std::stable_sort(fresh.begin(), fresh.end(), [&](int32_t a, int32_t b) { return is_before(a, b); });
        merge(fresh);
    }

    // The `place`-th of the texts that are there, in the order in which they came.
    void remove(int64_t place) {
        int64_t first = 0;
        for (int64_t i = 0; i < place; ++i) first += sizes[(size_t)i];
        const int64_t count = sizes[(size_t)place], end = first + count;
        size_t kept = 0;
        for (const int32_t at : order)
            if (at < first || at >= end) order[kept++] = at < first ? at : (int32_t)(at - count);
        order.resize(kept);
        tokens.erase(tokens.begin() + first, tokens.begin() + end);
        sizes.erase(sizes.begin() + place);
        if (order.capacity() > 2 * kept) order.shrink_to_fit(), tokens.shrink_to_fit();
    }

    // The longest suffix of so many tokens, of `least` to `most`, that stands in a document with something
    // behind it: of all its places that one in the middle of their order, so what follows most of them if
    // anything does. What ends a long suffix ends each shorter one, so lengths are halved.
    Match find(const int32_t* suffix_end, int64_t least, int64_t most) const {
        if (least > most) return Match();
        auto low = first_place(suffix_end - least, least);
        if (!begins(low, suffix_end - least, least)) return Match();
        while (least < most) {
            const int64_t length = (least + most + 1) / 2;
            const auto place = first_place(suffix_end - length, length);
            if (begins(place, suffix_end - length, length)) least = length, low = place;
            else most = length - 1;
        }
        const auto high = std::partition_point(
            low, order.end(), [&](int32_t at) { return compare(at, suffix_end - least, least) == 0; });
        return {least, low[(high - low - 1) / 2] + least};
    }

    int64_t nbytes() const { return (int64_t)(tokens.capacity() + order.capacity()) * (int64_t)sizeof(int32_t); }

    Tokens tokens;

   private:
    using Places = std::vector<int32_t>::const_iterator;

    // What stands at a place, and what is looked for; the end of a document comes before all tokens.
    int compare(int32_t at, const int32_t* gram, int64_t length) const {
        for (int64_t i = 0; i < length; ++i)
            if (const int32_t token = tokens[(size_t)(at + i)]; token != gram[i] || token < 0)
                return token < gram[i] ? -1 : 1;
        return 0;
    }

    // Where those begin that have the gram and something behind it.
    Places first_place(const int32_t* gram, int64_t length) const {
        return std::partition_point(order.begin(), order.end(), [&](int32_t at) {
            const int found = compare(at, gram, length);
            return found < 0 || (found == 0 && tokens[(size_t)(at + length)] < 0);
        });
    }

    bool begins(Places place, const int32_t* gram, int64_t length) const {
        return place != order.end() && compare(*place, gram, length) == 0;
    }

    bool is_before(int32_t a, int32_t b) const {
        for (int64_t i = 0; i < depth; ++i) {
            const int32_t one = tokens[(size_t)(a + i)], other = tokens[(size_t)(b + i)];
            if (one != other) return one < other;
            if (one < 0) break;
        }
        return false;
    }

    // Sorted places of a later text go between those that are there, behind those that are alike. Who adds a
    // little to much compares little.
    void merge(const std::vector<int32_t>& fresh) {
        auto high = (int64_t)order.size();
        order.resize(order.size() + fresh.size());
        for (auto left = (int64_t)fresh.size(); left > 0; --left) {
            const int32_t at = fresh[(size_t)(left - 1)];
            int64_t low = high, end = high;
            for (int64_t step = 1; low > 0 && is_before(at, order[(size_t)(low - 1)]); step *= 2) {
                end = low - 1;
                low = std::max<int64_t>(0, low - step);
            }
            const auto place = std::upper_bound(order.begin() + low, order.begin() + end, at,
                                                [&](int32_t a, int32_t b) { return is_before(a, b); });
            const int64_t keep = place - order.begin();
            std::move_backward(place, order.begin() + high, order.begin() + high + left);
            order[(size_t)(keep + left - 1)] = at;
            high = keep;
        }
    }

    int64_t depth;
    std::vector<int64_t> sizes;  // of the texts
    std::vector<int32_t> order;
};

}  // namespace ngram
}  // namespace vivace

// Many small jobs on pools of every size, with threads that come late, sleep or are forked away.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "../pool.h"
#include "check.h"

namespace check {
namespace {

// Adds 1 to each of `chunks` numbers, after seeing that the call before it was done completely.
struct CountArgs {
    int64_t chunks;
    int64_t* numbers;
    const int64_t* before;  // null, or the numbers of the call in front
    int64_t before_chunks;
    int64_t* faults;  // [chunks]
    int64_t nap_us;   // of chunk 0
};

int64_t count_chunks(const void* args, int) { return static_cast<const CountArgs*>(args)->chunks; }

void count_run(const void* args, int64_t chunk, int, vivace::Scratch& scratch) {
    const auto& a = *static_cast<const CountArgs*>(args);
    auto* mine = static_cast<int64_t*>(scratch.get(64 + 8 * (size_t)(chunk % 32)));
    mine[0] = chunk;
    if (a.nap_us && chunk == 0) std::this_thread::sleep_for(std::chrono::microseconds(a.nap_us));
    for (int64_t i = 0; i < a.before_chunks; ++i)
        if (a.before[i] != a.numbers[chunk] + 1) ++a.faults[chunk];
    a.numbers[chunk] += 1;
    if (mine[0] != chunk) ++a.faults[chunk];
}

const vivace::Op COUNT = {"count", sizeof(CountArgs) / 8, count_chunks, count_run};

struct Job {
    std::vector<CountArgs> args;
    std::vector<std::vector<int64_t>> numbers, faults;
    std::vector<vivace::Call> calls;

    Job(Random& random, int64_t length) : args((size_t)length), numbers((size_t)length), faults((size_t)length) {
        for (size_t i = 0; i < (size_t)length; ++i) {
            const int64_t chunks = random.below(3) ? random.below(9) : random.below(2);
            numbers[i].assign((size_t)chunks, 0);
            faults[i].assign((size_t)chunks, 0);
            const size_t front = i ? i - 1 : 0;
            args[i] = {chunks, numbers[i].data(), i ? numbers[front].data() : nullptr,
                       i ? (int64_t)numbers[front].size() : 0, faults[i].data(), 0};
            calls.push_back({&COUNT, &args[i]});
        }
    }
    bool right(int64_t times) const {
        for (size_t i = 0; i < numbers.size(); ++i)
            for (size_t c = 0; c < numbers[i].size(); ++c)
                if (numbers[i][c] != times || faults[i][c]) return false;
        return true;
    }
};

bool one_pool(Random& random, int threads, int64_t spin_us, int64_t jobs) {
    vivace::Pool pool(threads, spin_us, random.below(4) == 0);
    std::vector<Job> kinds;
    for (int64_t length : {1, 1, 2, 7, 64, 65, 200}) kinds.emplace_back(random, length);
    std::vector<int64_t> times(kinds.size(), 0);
    for (int64_t job = 0; job < jobs; ++job) {
        const auto kind = (size_t)random.below(random.below(8) ? 4 : (int64_t)kinds.size());
        kinds[kind].args[0].nap_us = random.below(200) ? 0 : 1 + random.below(150);
        pool.run(kinds[kind].calls.data(), (int64_t)kinds[kind].calls.size());
        if (!kinds[kind].right(++times[kind])) return false;
        const int64_t pause = random.below(40);  // mostly none; some long enough for sleepers
        if (pause == 1) std::this_thread::sleep_for(std::chrono::microseconds(2 * spin_us + 20));
        if (pause == 2) std::this_thread::sleep_for(std::chrono::microseconds(spin_us));
    }
    return true;
}

// Pools made and closed at once, with workers not started, spinning or just going to sleep.
bool short_lives(Random& random, int64_t pools) {
    for (int64_t i = 0; i < pools; ++i) {
        vivace::Pool pool(1 + (int)random.below(8), random.below(30), false);
        Job job(random, 3);
        const int64_t runs = random.below(3);
        for (int64_t run = 0; run < runs; ++run) pool.run(job.calls.data(), 3);
        if (random.below(2)) std::this_thread::sleep_for(std::chrono::microseconds(random.below(60)));
        if (!job.right(runs)) return false;
    }
    return true;
}

// Two threads that run on one pool take turns.
bool two_callers(Random& random, int64_t jobs) {
    vivace::Pool pool(3, 20, false);
    Job first(random, 9), second(random, 70);
    std::thread other([&] {
        for (int64_t i = 0; i < jobs; ++i) pool.run(second.calls.data(), 70);
    });
    for (int64_t i = 0; i < jobs; ++i) pool.run(first.calls.data(), 9);
    other.join();
    return first.right(jobs) && second.right(jobs);
}

// A forked child has no workers: it works alone, and closes the pool without waiting for them.
bool child_of_fork(Random& random) {
    Job job(random, 70);
    auto* pool = new vivace::Pool(4, 20, false);
    std::thread busy([&] {
        for (int i = 0; i < 200; ++i) pool->run(job.calls.data(), 70);
    });
    bool good = true;
    for (int i = 0; i < 20; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            Job own(random, 70);
            pool->run(own.calls.data(), 70);
            delete pool;
            vivace::Pool young(3, 20, false);
            young.run(own.calls.data(), 70);
            _exit(own.right(2) ? 0 : 1);
        }
        int status = 1;
        good = waitpid(child, &status, 0) == child && status == 0 && good;
    }
    busy.join();
    good = job.right(200) && good;
    delete pool;
    return good;
}

bool report(const char* name, bool good) {
    std::printf("%s %s\n", good ? "pass" : "FAIL", name);
    std::fflush(stdout);
    return good;
}

}  // namespace

int pool_stress(int64_t jobs) {
    Random random(99);
    bool good = true;
    for (int threads = 1; threads <= 8; ++threads)
        for (int64_t spin_us : {0, 5, 60}) {
            const std::string name = std::to_string(threads) + " threads, spin " + std::to_string(spin_us);
            good = report(name.c_str(), one_pool(random, threads, spin_us, jobs / 24 + 1)) && good;
        }
    good = report("short lives", short_lives(random, jobs / 100 + 1)) && good;
    good = report("two callers", two_callers(random, jobs / 100 + 1)) && good;
#if !defined(__SANITIZE_THREAD__)
    good = report("fork", child_of_fork(random)) && good;
#endif
    return good ? 0 : 1;
}

}  // namespace check

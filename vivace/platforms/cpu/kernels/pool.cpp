#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace vivace {

namespace {

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void pin_to(int index) {
#ifdef __linux__
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    int place = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &allowed) && place++ == index) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
#else
    (void)index;
#endif
}

// How often this process is a fork of one that used the library: its pools' workers are gone then.
std::atomic<uint32_t> forks{0};

uint32_t count_forks() {
    static const int watching = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
    (void)watching;
    return forks.load();
}

// A pause is 40 to 140 cycles on x86: some 10 microseconds, then the core is offered to others,
// because the thread waited for may be one that lost its own.
constexpr int PAUSES_BEFORE_YIELD = 200;
constexpr int PAUSES_PER_CLOCK = 32;
constexpr int64_t JOB_BLOCK = 64;

template <typename Condition>
void spin_until(Condition condition) {
    for (int pauses = 0; !condition(); ++pauses) {
        if (pauses < PAUSES_BEFORE_YIELD) relax();
        else sched_yield();
    }
}

}  // namespace

void* Scratch::get(size_t bytes) {
    if (bytes > size) {
        std::free(data);
        size = (bytes + 4095) / 4096 * 4096;
        data = std::aligned_alloc(64, size);
        if (!data) {  // half a step cannot be taken back, and operations have no exceptions
            std::fprintf(stderr, "vivace kernels: no memory for %zu bytes of scratch\n", size);
            std::abort();
        }
    }
    return data;
}

#ifdef VV_CONDITION
void Sleepers::wait_while(std::atomic<uint32_t>& word, uint32_t value) {
    std::unique_lock<std::mutex> held(lock_);
    changed_.wait(held, [&] { return word.load() != value; });
}
void Sleepers::wake_all(std::atomic<uint32_t>&) {
    std::lock_guard<std::mutex> held(lock_);
    changed_.notify_all();
}
#else
void Sleepers::wait_while(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void Sleepers::wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}
#endif

Pool::Pool(int threads, int64_t spin_us, bool pin)
    : threads_(1), spin_us_(spin_us), forks_(count_forks()), progress_(JOB_BLOCK) {
    for (int i = 0; i < threads || i < 1; ++i) scratch_.push_back(std::make_unique<Scratch>());
    try {
        for (int i = 1; i < threads; ++i) start(i, pin);
    } catch (const std::system_error&) {  // no more threads for this process
    }
}

// No job is open yet, so a worker reads threads_ only after the caller has opened one.
void Pool::start(int index, bool pin) {
    workers_.emplace_back([this, index, pin] { work(index, pin); });
    threads_ = index + 1;
}

bool Pool::forked() const { return forks.load(std::memory_order_relaxed) != forks_; }

Pool::~Pool() {
    if (forked()) {
        // the threads live on in the parent; joining or destroying their handles here would hang
        new std::vector<std::thread>(std::move(workers_));
    } else {
        closing_.store(true);
        generation_.fetch_add(2);
        sleepers_.wake_all(generation_);
        for (auto& worker : workers_) worker.join();
    }
    for (auto& scratch : scratch_)
        if (!forked()) std::free(scratch->data);
}

void Pool::run(const Call* calls, int64_t count) {
    if (forked()) return run_alone(calls, count);
    std::lock_guard<std::mutex> turn(turn_);
    for (int64_t first = 0; first < count; first += JOB_BLOCK) {
        prepare(calls + first, count - first < JOB_BLOCK ? count - first : JOB_BLOCK);
        if (worth_sharing()) share();
        else take_part(*scratch_[0]);
    }
}

// The fork may have happened in the middle of anybody's run: the turn may be copied taken, and the
// scratch half exchanged.
void Pool::run_alone(const Call* calls, int64_t count) {
    Scratch scratch;
    for (int64_t first = 0; first < count; first += JOB_BLOCK) {
        prepare(calls + first, count - first < JOB_BLOCK ? count - first : JOB_BLOCK);
        take_part(scratch);
    }
    std::free(scratch.data);
}

void Pool::prepare(const Call* calls, int64_t count) {
    calls_ = calls;
    count_ = count;
    for (int64_t i = 0; i < count; ++i) {
        Progress& progress = progress_[i];
        progress.chunks = calls[i].op->chunks(calls[i].args, threads_);
        progress.next.store(0, std::memory_order_relaxed);
        progress.done.store(0, std::memory_order_relaxed);
    }
}

bool Pool::worth_sharing() const {
    if (threads_ == 1) return false;
    for (int64_t i = 0; i < count_; ++i)
        if (progress_[i].chunks > 1) return true;
    return false;
}

// Open the job, do it together with whoever comes, and leave when nobody is inside any more.
//
// Both pairs below are "write mine, then read yours", sequentially consistent on both sides, so at
// least one side sees the other: opening and sleeping (a sleeper is woken or does not sleep),
// closing and entering (a late worker is waited for or finds the job closed).
void Pool::share() {
    generation_.fetch_add(1);  // odd: open
    if (asleep_.load() > 0) sleepers_.wake_all(generation_);
    take_part(*scratch_[0]);
    generation_.fetch_add(1);  // even: closed
    spin_until([this] { return inside_.load() == 0; });
}

void Pool::take_part(Scratch& scratch) {
    for (int64_t i = 0; i < count_; ++i) {
        Progress& progress = progress_[i];
        const Call& call = calls_[i];
        const int64_t chunks = progress.chunks;
        if (chunks <= 0) continue;
        int64_t finished = 0;
        scratch.kept = Scratch::NOTHING;
        for (int64_t chunk; (chunk = progress.next.fetch_add(1, std::memory_order_relaxed)) < chunks; ++finished)
            call.op->run(call.args, chunk, threads_, scratch);
        if (finished) progress.done.fetch_add(finished, std::memory_order_acq_rel);
        spin_until([&] { return progress.done.load(std::memory_order_acquire) >= chunks; });
    }
}

void Pool::work(int index, bool pin) {
    if (pin) pin_to(index);
    uint32_t seen = 0;
    while (await_job(seen)) {
        seen = generation_.load();
        if (!(seen & 1)) continue;
        inside_.fetch_add(1);
        if (generation_.load() == seen) take_part(*scratch_[index]);
        inside_.fetch_sub(1);
    }
}

// Until the generation differs from `seen`; false when the pool closes.
bool Pool::await_job(uint32_t seen) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
    while (!closing_.load()) {
        for (int i = 0; i < PAUSES_PER_CLOCK; ++i) {
            if (generation_.load(std::memory_order_acquire) != seen) return !closing_.load();
            relax();
        }
        if (std::chrono::steady_clock::now() < until) continue;
        asleep_.fetch_add(1);
        if (generation_.load() == seen) sleepers_.wait_while(generation_, seen);
        asleep_.fetch_sub(1);
    }
    return false;
}

}  // namespace vivace

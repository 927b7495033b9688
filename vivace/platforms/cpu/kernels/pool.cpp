#include "pool.h"

#include <chrono>
#include <cstdlib>
#include <new>

#ifdef __linux__
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
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

#ifdef __linux__
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}
void pin_to(int index) {
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
}
#else
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) { word.wait(value); }
void wake_all(std::atomic<uint32_t>& word) { word.notify_all(); }
void pin_to(int) {}
#endif

constexpr int PAUSES_BEFORE_YIELD = 2000;  // some microseconds
constexpr int64_t JOB_BLOCK = 64;

}  // namespace

void* Scratch::get(size_t bytes) {
    if (bytes > size) {
        std::free(data);
        size = (bytes + 4095) / 4096 * 4096;
        data = std::aligned_alloc(64, size);
        if (!data) throw std::bad_alloc();
    }
    return data;
}

Pool::Pool(int threads, int64_t spin_us, bool pin)
    : threads_(threads < 1 ? 1 : threads), spin_us_(spin_us), progress_(JOB_BLOCK) {
    for (int i = 0; i < threads_; ++i) scratch_.push_back(std::make_unique<Scratch>());
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i, pin] { work(i, pin); });
}

Pool::~Pool() {
    closing_ = true;
    generation_.fetch_add(2);
    wake_all(generation_);
    for (auto& worker : workers_) worker.join();
    for (auto& scratch : scratch_) std::free(scratch->data);
}

// The job's lists must stay as they are until run() returns: it waits for every worker to leave.
void Pool::run(const Call* calls, int64_t count) {
    for (int64_t first = 0; first < count; first += JOB_BLOCK) {
        const int64_t n = count - first < JOB_BLOCK ? count - first : JOB_BLOCK;
        int64_t most = 0;
        for (int64_t i = 0; i < n; ++i) {
            const Call& call = calls[first + i];
            Progress& progress = progress_[i];
            progress.chunks = call.op->chunks(call.args, threads_);
            progress.next.store(0, std::memory_order_relaxed);
            progress.done.store(0, std::memory_order_relaxed);
            if (progress.chunks > most) most = progress.chunks;
        }
        calls_ = calls + first;
        count_ = n;
        const bool shared = most > 1 && threads_ > 1;
        if (shared) {
            generation_.fetch_add(1);  // odd: open
            if (asleep_.load() > 0) wake();
        }
        take_part(*scratch_[0]);
        if (shared) {
            generation_.fetch_add(1);  // even: closed
            for (int pauses = 0; inside_.load() > 0; ++pauses)
                pauses < PAUSES_BEFORE_YIELD ? relax() : (void)sched_yield();
        }
    }
}

void Pool::wake() { wake_all(generation_); }

void Pool::take_part(Scratch& scratch) {
    for (int64_t i = 0; i < count_; ++i) {
        Progress& progress = progress_[i];
        const Call& call = calls_[i];
        const int64_t chunks = progress.chunks;
        if (!chunks) continue;
        int64_t finished = 0;
        for (int64_t chunk; (chunk = progress.next.fetch_add(1, std::memory_order_relaxed)) < chunks; ++finished)
            call.op->run(call.args, chunk, threads_, scratch);
        if (finished) progress.done.fetch_add(finished, std::memory_order_acq_rel);
        for (int pauses = 0; progress.done.load(std::memory_order_acquire) < chunks; ++pauses)
            pauses < PAUSES_BEFORE_YIELD ? relax() : (void)sched_yield();
    }
}

void Pool::work(int index, bool pin) {
    if (pin) pin_to(index);
    uint32_t seen = 0;
    while (await_job(seen)) {
        const uint32_t now = generation_.load();
        seen = now;
        if (!(now & 1)) continue;
        inside_.fetch_add(1);
        if (generation_.load() == now) take_part(*scratch_[index]);
        inside_.fetch_sub(1);
    }
}

// Until the generation differs from `seen`; false when the pool closes.
bool Pool::await_job(uint64_t seen) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
    while (!closing_.load(std::memory_order_relaxed)) {
        for (int i = 0; i < 64; ++i) {
            if (generation_.load(std::memory_order_acquire) != (uint32_t)seen) return !closing_.load();
            relax();
        }
        if (std::chrono::steady_clock::now() < until) continue;
        asleep_.fetch_add(1);
        if (generation_.load() == (uint32_t)seen && !closing_.load()) sleep_while(generation_, (uint32_t)seen);
        asleep_.fetch_sub(1);
    }
    return false;
}

}  // namespace vivace

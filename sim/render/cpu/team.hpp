// SPDX-License-Identifier: Apache-2.0
// Threads that live for one call and share the items of one phase after another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace r2s {

class Team {
public:
    explicit Team(int size) {
        try {
            for (int i = 1; i < size; ++i) threads_.emplace_back([this] { serve(); });
        } catch (const std::system_error&) {  // the system gives no more threads: work with those that there are
        }
    }

    ~Team() {
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (std::thread& t : threads_) t.join();
    }

    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Calls work(i) for every i in [0, count), each once, on whichever thread is free; rethrows an exception. A thread
    // that the system does not run meanwhile is not waited for.
    void for_each(std::int64_t count, const std::function<void(std::int64_t)>& work) {
        {
            std::lock_guard lock(mutex_);
            work_ = &work;
            count_ = count;
            next_ = 0;
            ++phase_;
        }
        if (count > 1) wake_.notify_all();
        take_items(work);
        std::unique_lock lock(mutex_);
        work_ = nullptr;
        idle_.wait(lock, [this] { return active_ == 0; });
        if (error_) {
            std::exception_ptr error = error_;
            error_ = nullptr;
            std::rethrow_exception(error);
        }
    }

private:
    // The work is handed over, not read from work_: the opener clears that while others still finish their items.
    void take_items(const std::function<void(std::int64_t)>& work) {
        try {
            for (std::int64_t i; (i = next_.fetch_add(1)) < count_;) work(i);
        } catch (...) {
            std::lock_guard lock(mutex_);
            error_ = std::current_exception();
            next_ = count_;
        }
    }

    void serve() {
        std::unique_lock lock(mutex_);
        for (unsigned seen = 0;;) {
            wake_.wait(lock, [&] { return stop_ || (work_ && phase_ != seen); });
            if (stop_) return;
            seen = phase_;
            ++active_;
            const std::function<void(std::int64_t)>& work = *work_;
            lock.unlock();
            take_items(work);
            lock.lock();
            if (--active_ == 0) idle_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    const std::function<void(std::int64_t)>* work_ = nullptr;  // of the phase that is open
    std::atomic<std::int64_t> next_{0};
    std::int64_t count_ = 0;
    unsigned phase_ = 0;
    int active_ = 0;
    bool stop_ = false;
    std::exception_ptr error_;
    std::vector<std::thread> threads_;
};

}  // namespace r2s

// SPDX-License-Identifier: Apache-2.0
// Threads that live for one call and run phases together.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace r2s {

class Team {
public:
    explicit Team(int size) : size_(size < 1 ? 1 : size), errors_(static_cast<std::size_t>(size_)) {
        threads_.reserve(static_cast<std::size_t>(size_ - 1));
        try {
            for (int i = 1; i < size_; ++i) threads_.emplace_back([this, i] { serve(i); });
        } catch (...) {  // the system gives no more threads: work with those that there are
            size_ = static_cast<int>(threads_.size()) + 1;
        }
    }

    ~Team() {
        stop_ = true;
        phase_.fetch_add(1);
        phase_.notify_all();
        for (std::thread& t : threads_) t.join();
    }

    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }

    // Runs work(member) on every member and waits; rethrows the first member's exception.
    void run(const std::function<void(int)>& work) {
        work_ = &work;
        waiting_ = size_ - 1;
        phase_.fetch_add(1);
        phase_.notify_all();
        attempt(0);
        for (int left; (left = waiting_.load()) != 0;) waiting_.wait(left);
        for (std::exception_ptr& error : errors_)
            if (error) std::rethrow_exception(std::exchange(error, nullptr));
    }

    // Calls work(i) for every i in [0, count), each once, on whichever member is free.
    void for_each(std::int64_t count, const std::function<void(std::int64_t)>& work) {
        std::atomic<std::int64_t> next{0};
        run([&](int) {
            for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
        });
    }

private:
    void attempt(int member) {
        try {
            (*work_)(member);
        } catch (...) {
            errors_[static_cast<std::size_t>(member)] = std::current_exception();
        }
    }

    void serve(int member) {
        for (unsigned seen = 0;;) {
            phase_.wait(seen);
            seen = phase_.load();
            if (stop_) return;
            attempt(member);
            if (waiting_.fetch_sub(1) == 1) waiting_.notify_one();
        }
    }

    int size_;
    std::vector<std::exception_ptr> errors_;
    std::vector<std::thread> threads_;
    std::atomic<unsigned> phase_{0};
    std::atomic<int> waiting_{0};
    std::atomic<bool> stop_{false};
    const std::function<void(int)>* work_ = nullptr;
};

}  // namespace r2s

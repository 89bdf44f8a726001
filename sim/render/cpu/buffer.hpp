// SPDX-License-Identifier: Apache-2.0
// Memory that is neither cleared nor given back between images.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

namespace r2s {

// An array of plain values, aligned to cache lines. `reserve` keeps the contents, `resize` does not.
template <typename T>
class Buffer {
public:
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    T& operator[](std::size_t i) { return data_[i]; }
    const T& operator[](std::size_t i) const { return data_[i]; }
    std::size_t capacity() const { return capacity_; }

    void resize(std::size_t n) {
        if (n > capacity_) {
            data_.reset();
            allocate(n + n / 4);
        }
    }

    void reserve(std::size_t n) {
        if (n <= capacity_) return;
        std::unique_ptr<T[], Free> old = std::move(data_);
        const std::size_t used = capacity_;
        allocate(n + n / 2);
        if (used) std::memcpy(data_.get(), old.get(), used * sizeof(T));
    }

private:
    static constexpr std::align_val_t kLine{64};
    struct Free {
        void operator()(T* p) const { ::operator delete(p, kLine); }
    };

    void allocate(std::size_t n) {
        capacity_ = 0;
        data_.reset(static_cast<T*>(::operator new(n * sizeof(T), kLine)));
        capacity_ = n;
    }

    std::unique_ptr<T[], Free> data_;
    std::size_t capacity_ = 0;
};

}  // namespace r2s

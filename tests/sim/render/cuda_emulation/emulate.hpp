// SPDX-License-Identifier: Apache-2.0
// Enough of CUDA to run the renderer's kernels on the host: blocks one after another, each thread a fibre that runs
// until it meets a barrier or a warp operation. A block whose threads wait for different things aborts with a message,
// and the order in which threads run can be reversed, so that a missing barrier shows as a changed result.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define REAL2SIM_EMULATED
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct Index { unsigned x, y = 0, z = 0; };

namespace emulation {

struct Fibre {
    ucontext_t context;  // for the first entry; afterwards jumps, which leave the signal mask alone
    jmp_buf place;
    std::vector<char> stack;
    bool started = false, done = false;
    unsigned warp_arrivals = 0, block_arrivals = 0;  // barriers that this thread has reached
};

struct Block {
    std::vector<Fibre> fibres;
    std::vector<unsigned> warp_reached, warp_phase;  // threads at the warp's barrier, barriers passed
    std::vector<unsigned long long> slots;           // [2][threads]: values offered to the warp
    unsigned block_reached = 0, block_phase = 0, block_or[2] = {0, 0};
    int current = 0;
    bool moved = false;
    jmp_buf scheduler;
    std::function<void()> body;
};

inline Block* block = nullptr;
inline bool reversed = false;
inline Index block_index, block_size, grid_size;

inline void yield() {
    if (_setjmp(block->fibres[block->current].place) == 0) _longjmp(block->scheduler, 1);
}

inline void resume(Fibre& f) {
    if (_setjmp(block->scheduler) != 0) return;
    if (f.started) _longjmp(f.place, 1);
    f.started = true;
    setcontext(&f.context);
}

inline void warp_barrier() {
    Block& b = *block;
    int warp = b.current / 32;
    unsigned phase = b.warp_phase[warp];
    if (++b.warp_reached[warp] == 32) b.warp_reached[warp] = 0, b.warp_phase[warp]++;
    b.moved = true;
    while (b.warp_phase[warp] == phase) yield();
}

inline void block_barrier() {
    Block& b = *block;
    unsigned phase = b.block_phase;
    if (++b.block_reached == b.fibres.size()) b.block_reached = 0, b.block_phase++;
    b.moved = true;
    while (b.block_phase == phase) yield();
}

// Every lane offers a value and gets the place of the warp's 32 values; two buffers, since a lane can be one ahead.
inline const unsigned long long* offer(unsigned long long value) {
    Block& b = *block;
    int warp = b.current / 32;
    unsigned long long* slots = b.slots.data() + (b.warp_phase[warp] & 1) * b.fibres.size();
    slots[b.current] = value;
    warp_barrier();
    return slots + warp * 32;
}

inline void entry() {
    block->body();
    block->fibres[block->current].done = true;
    block->moved = true;
    yield();
}

inline void run_block(int threads, std::function<void()> body) {
    static Block b;
    block = &b;
    b.fibres.resize(threads);
    b.warp_reached.assign(threads / 32, 0), b.warp_phase.assign(threads / 32, 0);
    b.slots.assign(2 * threads, 0), b.block_reached = b.block_phase = b.block_or[0] = b.block_or[1] = 0;
    b.body = std::move(body);
    for (Fibre& f : b.fibres) {
        f.stack.resize(64 * 1024), f.started = f.done = false;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size(), f.context.uc_link = nullptr;
        makecontext(&f.context, entry, 0);
    }
    for (;;) {
        int live = 0;
        b.moved = false;
        for (int i = 0; i < threads; i++) {
            b.current = reversed ? threads - 1 - i : i;
            if (b.fibres[b.current].done) continue;
            live++;
            resume(b.fibres[b.current]);
        }
        if (live == 0) return;
        if (!b.moved) {
            std::fprintf(stderr, "emulation: block %u waits for threads that wait elsewhere or have returned\n", block_index.x);
            std::abort();
        }
    }
}

template <class T>
T value_of(unsigned long long bits) {
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class T>
unsigned long long bits_of(T value) {
    unsigned long long bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}

template <class... A>
void launch(void (*kernel)(A...), unsigned blocks, unsigned threads, void** arguments) {
    grid_size = {blocks}, block_size = {threads};
    for (unsigned i = 0; i < blocks; i++) {
        block_index = {i};
        run_block(threads, [&] { call(kernel, arguments, std::index_sequence_for<A...>{}); });
    }
}

struct ThreadIndex {
    struct X {
        operator unsigned() const { return block->current; }
    } x;
};

}  // namespace emulation

inline emulation::ThreadIndex threadIdx;
#define blockIdx emulation::block_index
#define blockDim emulation::block_size
#define gridDim emulation::grid_size

inline void __syncthreads() { emulation::block_barrier(); }
inline void __syncwarp() { emulation::warp_barrier(); }
inline int __syncthreads_or(int value) {
    emulation::Block& b = *emulation::block;
    unsigned& sum = b.block_or[b.block_phase & 1];
    sum |= value != 0;
    emulation::block_barrier();
    int result = sum != 0;
    emulation::block_barrier();
    sum = 0;
    return result;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
    return emulation::value_of<T>(emulation::offer(emulation::bits_of(value))[lane & 31]);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    int lane = threadIdx.x & 31;
    return emulation::value_of<T>(emulation::offer(emulation::bits_of(value))[lane ^ mask]);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int delta) {
    int lane = threadIdx.x & 31;
    return emulation::value_of<T>(emulation::offer(emulation::bits_of(value))[lane >= delta ? lane - delta : lane]);
}
inline unsigned __ballot_sync(unsigned, bool value) {
    const unsigned long long* all = emulation::offer(value);
    unsigned mask = 0;
    for (int i = 0; i < 32; i++) mask |= (unsigned)(all[i] != 0) << i;
    return mask;
}
inline int __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) == 0xffffffffu; }
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
    const unsigned long long* all = emulation::offer(value);
    return (unsigned)*std::min_element(all, all + 32);
}
inline unsigned atomicAdd(unsigned* at, unsigned value) { return std::exchange(*at, *at + value); }
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline unsigned __float_as_uint(float x) { return (unsigned)emulation::bits_of(x); }
inline float __uint_as_float(unsigned x) { return emulation::value_of<float>(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline float __fdividef(float a, float b) { return a / b; }

inline float ex2(float x) { return std::exp2(x); }
namespace emulation {
struct Halves { _Float16 low, high; };
inline Halves halves(unsigned a) { return value_of<Halves>(a); }
inline unsigned word(float low, float high) { return (unsigned)bits_of(Halves{(_Float16)low, (_Float16)high}); }
template <class F>
unsigned each(unsigned a, unsigned b, F f) {
    Halves x = halves(a), y = halves(b);
    return word(f((float)x.low, (float)y.low), f((float)x.high, (float)y.high));
}
template <class F>
unsigned mask(unsigned a, unsigned b, F f) {
    Halves x = halves(a), y = halves(b);
    return (f((float)x.low, (float)y.low) ? 0xffffu : 0u) | (f((float)x.high, (float)y.high) ? 0xffff0000u : 0u);
}
}  // namespace emulation
inline unsigned h2_pack(float low, float high) { return emulation::word(low, high); }
inline float h2_low(unsigned a) { return emulation::halves(a).low; }
inline float h2_high(unsigned a) { return emulation::halves(a).high; }
inline unsigned h2_lows(unsigned a) { return (a & 0xffffu) | a << 16; }
inline unsigned h2_highs(unsigned a) { return a >> 16 | (a & 0xffff0000u); }
// A product of two halves is exact in double, and so nearly is its sum with a third: one rounding in effect.
inline unsigned h2_fma(unsigned a, unsigned b, unsigned c) {
    emulation::Halves x = emulation::halves(a), y = emulation::halves(b), z = emulation::halves(c);
    emulation::Halves r{(_Float16)((double)x.low * (double)y.low + (double)z.low),
                        (_Float16)((double)x.high * (double)y.high + (double)z.high)};
    return (unsigned)emulation::bits_of(r);
}
inline unsigned h2_fnma(unsigned a, unsigned b, unsigned c) { return h2_fma(a ^ 0x80008000u, b, c); }
inline unsigned h2_mul(unsigned a, unsigned b) { return emulation::each(a, b, [](float x, float y) { return x * y; }); }
inline unsigned h2_add(unsigned a, unsigned b) { return emulation::each(a, b, [](float x, float y) { return x + y; }); }
inline unsigned h2_sub(unsigned a, unsigned b) { return emulation::each(a, b, [](float x, float y) { return x - y; }); }
inline unsigned h2_min(unsigned a, unsigned b) { return emulation::each(a, b, [](float x, float y) { return std::fmin(x, y); }); }
inline unsigned h2_max(unsigned a, unsigned b) { return emulation::each(a, b, [](float x, float y) { return std::fmax(x, y); }); }
inline unsigned h2_ex2(unsigned a) { return emulation::word(std::exp2(h2_low(a)), std::exp2(h2_high(a))); }
inline unsigned h2_ge(unsigned a, unsigned b) { return emulation::mask(a, b, [](float x, float y) { return x >= y; }); }
inline unsigned h2_gt(unsigned a, unsigned b) { return emulation::mask(a, b, [](float x, float y) { return x > y; }); }

using std::ceil;
using std::fabs;

// SPDX-License-Identifier: Apache-2.0
// Tiles whose list is longer than what the raster sorts in shared memory: their pairs are gathered from bin and spill
// into one buffer and sorted there. None of these kernels needs the host to know how many there are.
#include "intrinsics.cuh"

constexpr int SORT_THREADS = 256;
constexpr int SEGMENT = 2048;  // pairs sorted in shared memory at once

// totals: [0] pairs in long lists, counted on beyond long_capacity; [1] number of long lists; [2] spilled pairs.
// static_counts: pairs of the cached layer in each of the cameras' tiles, or null.
extern "C" __global__ void find_long(const u32* __restrict__ counts, const u32* __restrict__ static_counts, int bins,
                                     int static_bins, u32 longest_short, u32 capacity, u32 long_capacity, u32 spill_capacity,
                                     u32* totals,
                                     u32* __restrict__ long_list, u32* __restrict__ offsets, u32* __restrict__ cursors) {
    int bin = blockIdx.x * blockDim.x + threadIdx.x;
    if (bin >= bins) return;
    u32 moving = counts[bin], n = moving + (static_counts ? static_counts[bin % static_bins] : 0u);
    if (moving == 0 && static_counts) return;  // the cached pixels are copied
    if (n <= longest_short && moving <= capacity) return;
    u32 offset = atomicAdd(totals, n), at = atomicAdd(totals + 1, 1u);
    bool fits = totals[2] <= spill_capacity && offset + n <= long_capacity && offset + n >= offset;
    offsets[bin] = fits ? offset : NO_PLACE;
    cursors[bin] = 0;
    long_list[at] = fits ? bin : NO_PLACE;
}

// Long lists = [bin's pairs][spilled pairs][pairs of the cached layer], in any order.
extern "C" __global__ void fill_long(const u32* __restrict__ counts, const u64* __restrict__ pairs, u32 capacity,
                                     const ulonglong2* __restrict__ spill, u32 spill_capacity,
                                     const u32* __restrict__ static_counts,
                                     const u64* __restrict__ static_pairs, u32 static_capacity,
                                     const u32* __restrict__ static_offsets, const u64* __restrict__ static_long,
                                     int static_bins, const u32* __restrict__ totals,
                                     const u32* __restrict__ long_list, const u32* __restrict__ offsets, u32* cursors,
                                     u64* __restrict__ long_pairs) {
    u32 lists = totals[1];
    for (u32 i = blockIdx.x; i < lists; i += gridDim.x) {
        u32 bin = long_list[i];
        if (bin == NO_PLACE) continue;
        u64* to = long_pairs + offsets[bin];
        u32 moving = counts[bin], binned = moving < capacity ? moving : capacity;
        for (u32 k = threadIdx.x; k < binned; k += blockDim.x) to[k] = pairs[(size_t)bin * capacity + k];
        if (!static_counts) continue;
        u32 from = bin % static_bins, fixed = static_counts[from];
        bool was_long = fixed > static_capacity;
        const u64* source = was_long ? static_long + static_offsets[from] : static_pairs + (size_t)from * static_capacity;
        for (u32 k = threadIdx.x; k < fixed; k += blockDim.x) to[moving + k] = source[k];
    }
    u32 spilled = totals[2] < spill_capacity ? totals[2] : spill_capacity;
    for (u32 k = blockIdx.x * blockDim.x + threadIdx.x; k < spilled; k += gridDim.x * blockDim.x) {
        ulonglong2 entry = spill[k];
        u32 bin = (u32)entry.y;
        if (offsets[bin] != NO_PLACE) long_pairs[offsets[bin] + capacity + atomicAdd(cursors + bin, 1u)] = entry.x;
    }
}

__device__ __forceinline__ void order(u64* a, u64* b) {
    u64 x = *a, y = *b;
    if (x > y) *a = y, *b = x;
}

// Merge steps of a bitonic network in which every comparison ascends (the first step of a size mirrors), so that places
// beyond n, which would hold infinity, never take part. A block is one list at a time.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) sort_long(const u32* __restrict__ totals,
                                                                    const u32* __restrict__ long_list,
                                                                    const u32* __restrict__ counts,
                                                                    const u32* __restrict__ static_counts, int static_bins,
                                                                    const u32* __restrict__ offsets, u64* long_pairs) {
    __shared__ u64 segment[SEGMENT];
    u32 lists = totals[1];
    for (u32 i = blockIdx.x; i < lists; i += gridDim.x) {
        u32 bin = long_list[i];
        if (bin == NO_PLACE) continue;
        u64* list = long_pairs + offsets[bin];
        u32 n = counts[bin] + (static_counts ? static_counts[bin % static_bins] : 0u);
        for (u32 size = SEGMENT;; size *= 2) {
            if (size > SEGMENT) {
                for (u32 k = threadIdx.x; k < (n + 1) / 2 + size; k += SORT_THREADS) {
                    u32 a = k / (size / 2) * size + k % (size / 2), b = a ^ (size - 1);
                    if (b < n && a < b) order(list + a, list + b);
                }
                __syncthreads();
                for (u32 stride = size / 4; stride >= SEGMENT; stride /= 2) {
                    for (u32 k = threadIdx.x; k < (n + 1) / 2 + stride; k += SORT_THREADS) {
                        u32 a = k / stride * stride * 2 + k % stride, b = a + stride;
                        if (b < n) order(list + a, list + b);
                    }
                    __syncthreads();
                }
            }
            for (u32 from = 0; from < n; from += SEGMENT) {
                u32 here = n - from < SEGMENT ? n - from : SEGMENT;
                for (u32 k = threadIdx.x; k < SEGMENT; k += SORT_THREADS) segment[k] = k < here ? list[from + k] : ~0ull;
                __syncthreads();
                for (u32 inner = size == SEGMENT ? 2 : SEGMENT; inner <= SEGMENT; inner *= 2) {
                    for (u32 stride = inner / 2; stride > 0; stride /= 2) {
                        bool mirror = size == SEGMENT && stride == inner / 2;
                        for (u32 k = threadIdx.x; k < SEGMENT / 2; k += SORT_THREADS) {
                            u32 a = k / stride * stride * 2 + k % stride, b = mirror ? (a ^ (inner - 1)) : a + stride;
                            order(segment + a, segment + b);
                        }
                        __syncthreads();
                    }
                }
                for (u32 k = threadIdx.x; k < here; k += SORT_THREADS) list[from + k] = segment[k];
                __syncthreads();
            }
            if (size >= n) break;
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
// Which tables of hot loops this processor and operating system can run.
#include <cstring>

#include "frame.hpp"

#if defined(R2S_X86) && defined(_MSC_VER)
#include <intrin.h>
#endif

namespace r2s {

extern const Kernels kernels_baseline;
#if defined(R2S_X86)
extern const Kernels kernels_avx2, kernels_avx512;

namespace {
#if defined(_MSC_VER)
bool has(int leaf, int reg, int bit) {
    int r[4];
    __cpuidex(r, leaf, 0);
    return (r[reg] >> bit & 1) != 0;
}
bool system_saves(unsigned long long state) {
    return has(1, 2, 27) && (_xgetbv(0) & state) == state;
}
bool has_avx2() { return system_saves(0x6) && has(7, 1, 5) && has(1, 2, 12); }
bool has_avx512() {
    return has_avx2() && system_saves(0xE6) && has(7, 1, 16) && has(7, 1, 17) && has(7, 1, 30) && has(7, 1, 31);
}
#else
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
}
#endif
}  // namespace
#endif

std::vector<const Kernels*> usable_kernels() {
    std::vector<const Kernels*> tables;
#if defined(R2S_X86)
    if (has_avx512()) tables.push_back(&kernels_avx512);
    if (has_avx2()) tables.push_back(&kernels_avx2);
#endif
    tables.push_back(&kernels_baseline);
    return tables;
}

const Kernels* find_kernels(const char* name) {
    static const std::vector<const Kernels*> tables = usable_kernels();
    if (!*name) return tables.front();
    for (const Kernels* table : tables)
        if (!std::strcmp(table->name, name)) return table;
    return nullptr;
}

}  // namespace r2s

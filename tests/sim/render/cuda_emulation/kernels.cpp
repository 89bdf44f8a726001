// SPDX-License-Identifier: Apache-2.0
// One source of kernels for the host: -DSOURCE="project.cu" with its macros, and PROJECT, LISTS or RASTER.
#include "emulate.hpp"
#include SOURCE

#define KERNEL(name) \
    if (std::strcmp(kernel, #name) == 0) return emulation::launch(name, blocks, threads, arguments), 0

extern "C" int launch(const char* kernel, unsigned blocks, unsigned threads, void** arguments, int reversed) {
    emulation::reversed = reversed;
#if defined(PROJECT)
    KERNEL(pose);
    KERNEL(project);
#elif defined(LISTS)
    KERNEL(find_long);
    KERNEL(fill_long);
    KERNEL(sort_long);
#else
    KERNEL(raster);
#endif
    return 1;
}

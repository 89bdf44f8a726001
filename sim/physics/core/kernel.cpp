// SPDX-License-Identifier: Apache-2.0
// The engine compiled for one instruction set (R2S_ISA names its namespace) and one lane count: R2S_LANES 0 is plain scalar
// code for few worlds, 1 is worlds in SIMD lanes. R2S_MAKE names the factory. One factory a file, so that files compile side
// by side.
#include "engine.hpp"

namespace r2s {

std::unique_ptr<Engine> R2S_MAKE(const ModelArrays& a, const EngineOptions& o, int nworld, bool single) {
  using namespace R2S_ISA;
#if R2S_LANES
  if (single) return std::make_unique<EngineOf<Pack<float, 16>>>(a, o, nworld);
  return std::make_unique<EngineOf<Pack<double, 8>>>(a, o, nworld);
#else
  if (single) return std::make_unique<EngineOf<Pack<float, 1>>>(a, o, nworld);
  return std::make_unique<EngineOf<Pack<double, 1>>>(a, o, nworld);
#endif
}

}  // namespace r2s

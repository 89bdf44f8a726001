// SPDX-License-Identifier: Apache-2.0
// The engine compiled for one instruction set: R2S_ISA names its namespace, R2S_MAKE its factory.
#include "engine.hpp"

namespace r2s {

std::unique_ptr<Engine> R2S_MAKE(const ModelArrays& a, const EngineOptions& o, int nworld, bool single) {
  using namespace R2S_ISA;
  constexpr int few = 2;  // so few worlds are faster one by one
  if (single) {
    if (nworld <= few) return std::make_unique<EngineOf<Pack<float, 1>>>(a, o, nworld);
    return std::make_unique<EngineOf<Pack<float, 16>>>(a, o, nworld);
  }
  if (nworld <= few) return std::make_unique<EngineOf<Pack<double, 1>>>(a, o, nworld);
  return std::make_unique<EngineOf<Pack<double, 8>>>(a, o, nworld);
}

}  // namespace r2s

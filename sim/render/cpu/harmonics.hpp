// SPDX-License-Identifier: Apache-2.0
// Real spherical harmonics to degree 3 of W unit directions, and their gradient; basis as in harmonics.py.
#pragma once

#include "simd.hpp"

namespace {

// out[k * W .. ] = k-th basis function; k < (degree + 1)^2.
R2S_INLINE void harmonics_basis(F x, F y, F z, int degree, float* out) {
    auto put = [&](int k, F value) { store(out + k * W, value); };
    put(0, set1(0.28209479177387814f));
    if (degree < 1) return;
    const F c1 = set1(0.4886025119029199f);
    put(1, negate(c1 * y));
    put(2, c1 * z);
    put(3, negate(c1 * x));
    if (degree < 2) return;
    const F xx = x * x, yy = y * y, zz = z * z, xy = x * y, one = set1(1.0f), three = set1(3.0f);
    const F c2 = set1(1.0925484305920792f);
    put(4, c2 * xy);
    put(5, negate(c2 * y * z));
    put(6, set1(0.31539156525252005f) * fma(three, zz, set1(-1.0f)));
    put(7, negate(c2 * x * z));
    put(8, set1(0.5462742152960396f) * (xx - yy));
    if (degree < 3) return;
    const F c3 = set1(-0.5900435899266435f), c4 = set1(-0.4570457994644658f), z5 = fma(set1(5.0f), zz, negate(one));
    put(9, c3 * y * fma(three, xx, negate(yy)));
    put(10, set1(2.890611442640554f) * xy * z);
    put(11, c4 * y * z5);
    put(12, set1(0.3731763325901154f) * z * fma(set1(5.0f), zz, set1(-3.0f)));
    put(13, c4 * x * z5);
    put(14, set1(1.445305721320277f) * z * (xx - yy));
    put(15, c3 * x * fnma(three, yy, xx));
}

// v = sum_k h[k * W ..] * d(basis_k) / d(x, y, z).
R2S_INLINE void harmonics_basis_vjp(F x, F y, F z, int degree, const float* h, F (&v)[3]) {
    v[0] = v[1] = v[2] = set1(0.0f);
    auto get = [&](int k) { return load(h + k * W); };
    auto add = [](F& sum, F a, F b) { sum = fma(a, b, sum); };
    if (degree < 1) return;
    const F c1 = set1(0.4886025119029199f);
    v[1] = negate(c1 * get(1));
    v[2] = c1 * get(2);
    v[0] = negate(c1 * get(3));
    if (degree < 2) return;
    const F two = set1(2.0f);
    F g = get(4) * set1(1.0925484305920792f);
    add(v[0], g, y), add(v[1], g, x);
    g = get(5) * set1(-1.0925484305920792f);
    add(v[1], g, z), add(v[2], g, y);
    add(v[2], get(6) * set1(6 * 0.31539156525252005f), z);
    g = get(7) * set1(-1.0925484305920792f);
    add(v[0], g, z), add(v[2], g, x);
    g = get(8) * set1(2 * 0.5462742152960396f);
    add(v[0], g, x), add(v[1], negate(g), y);
    if (degree < 3) return;
    const F xx = x * x, yy = y * y, zz = z * z, xy = x * y, xz = x * z, yz = y * z, six = set1(6.0f);
    const F d = set1(3.0f) * (xx - yy), z5 = fma(set1(5.0f), zz, set1(-1.0f)), ten = set1(10.0f);
    g = get(9) * set1(-0.5900435899266435f);
    add(v[0], g, six * xy), add(v[1], g, d);
    g = get(10) * set1(2.890611442640554f);
    add(v[0], g, yz), add(v[1], g, xz), add(v[2], g, xy);
    g = get(11) * set1(-0.4570457994644658f);
    add(v[1], g, z5), add(v[2], g, ten * yz);
    add(v[2], get(12) * set1(0.3731763325901154f), fma(set1(15.0f), zz, set1(-3.0f)));
    g = get(13) * set1(-0.4570457994644658f);
    add(v[0], g, z5), add(v[2], g, ten * xz);
    g = get(14) * set1(1.445305721320277f);
    add(v[0], g, two * xz), add(v[1], g, negate(two * yz)), add(v[2], g, xx - yy);
    g = get(15) * set1(-0.5900435899266435f);
    add(v[0], g, d), add(v[1], g, negate(six * xy));
}

}  // namespace

# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: UP018
"""The ray caster's Warp kernels. (Warp reads this file in its own typed language: float(0.0) declares a variable.)"""

from real2sim.errors import BackendError

try:
    import warp as wp
except ImportError as error:
    raise BackendError("Known-truth captures are drawn with Warp: pip install 'real2sim[synth]'.") from error

wp.config.log_level = wp.LOG_ERROR
wp.set_module_options({"enable_backward": False})

FAR = wp.constant(30.0)  # m, beyond every wall
LIFT = wp.constant(3e-4)  # m, start of secondary rays above the surface: over float32 noise, under a sheet of paper
FLAT = wp.constant(0.20)  # relative difference between a pixel's samples below which half of them are enough
DARK = wp.constant(0.1)  # radiance that is added to this comparison: noise hides what is darker
REFLECTANCE = wp.constant(0.04)  # of glaze or varnish at normal incidence, refractive index 1.5


@wp.struct
class Tables:
    mesh: wp.uint64
    face_patch: wp.array(dtype=wp.int32)
    corners: wp.array(dtype=wp.int32)
    uvs: wp.array(dtype=wp.vec2)
    normals: wp.array(dtype=wp.vec3)
    texels: wp.array(dtype=wp.vec3)
    offset: wp.array(dtype=wp.int32)
    width: wp.array(dtype=wp.int32)
    height: wp.array(dtype=wp.int32)
    levels: wp.array(dtype=wp.int32)
    texel_size: wp.array(dtype=wp.float32)
    gloss: wp.array(dtype=wp.float32)
    id: wp.array(dtype=wp.int32)


@wp.struct
class Lens:
    """Pinhole with radial distortion x_d = x (1 + k1 r^2 + k2 r^4)."""

    fx: wp.float32
    fy: wp.float32
    cx: wp.float32
    cy: wp.float32
    k1: wp.float32
    k2: wp.float32


@wp.func
def ray_through(lens: Lens, x: float, y: float) -> wp.vec3:
    """Direction (x, y, 1) in the camera's frame of pixel (x, y), centres at half-integers; Newton on the radius."""
    dx = (x - lens.cx) / lens.fx
    dy = (y - lens.cy) / lens.fy
    rd = wp.sqrt(dx * dx + dy * dy)
    r = float(rd)
    for _ in range(5):
        r2 = r * r
        slope = 1.0 + 3.0 * lens.k1 * r2 + 5.0 * lens.k2 * r2 * r2
        r = r - (r * (1.0 + lens.k1 * r2 + lens.k2 * r2 * r2) - rd) / slope
    scale = float(1.0)
    if rd > 1e-9:
        scale = r / rd
    return wp.vec3(dx * scale, dy * scale, 1.0)


@wp.func
def fetch(t: Tables, offset: int, w: int, h: int, u: float, v: float) -> wp.vec3:
    """Bilinear, texel centres at half-integers, clamped at the edge."""
    fx = wp.clamp(u * float(w) - 0.5, 0.0, float(w - 1))
    fy = wp.clamp(v * float(h) - 0.5, 0.0, float(h - 1))
    x0 = int(fx)
    y0 = int(fy)
    x1 = wp.min(x0 + 1, w - 1)
    y1 = wp.min(y0 + 1, h - 1)
    ax = fx - float(x0)
    ay = fy - float(y0)
    top = t.texels[offset + y0 * w + x0] * (1.0 - ax) + t.texels[offset + y0 * w + x1] * ax
    low = t.texels[offset + y1 * w + x0] * (1.0 - ax) + t.texels[offset + y1 * w + x1] * ax
    return top * (1.0 - ay) + low * ay


@wp.func
def radiance(t: Tables, patch: int, uv: wp.vec2, footprint: float) -> wp.vec3:
    """Filtered radiance of a patch at uv, for a sample that covers `footprint` [m]; trilinear over mip levels."""
    lod = wp.clamp(wp.log2(wp.max(footprint / t.texel_size[patch], 1.0)), 0.0, float(t.levels[patch] - 1))
    offset = t.offset[patch]
    w = t.width[patch]
    h = t.height[patch]
    for _ in range(int(lod)):
        offset += w * h
        w = wp.max(w / 2, 1)
        h = wp.max(h / 2, 1)
    colour = fetch(t, offset, w, h, uv[0], uv[1])
    part = lod - wp.floor(lod)
    if part > 0.0:
        offset += w * h
        w = wp.max(w / 2, 1)
        h = wp.max(h / 2, 1)
        colour = colour * (1.0 - part) + fetch(t, offset, w, h, uv[0], uv[1]) * part
    return colour


@wp.func
def uv_at(t: Tables, face: int, u: float, v: float) -> wp.vec2:
    return (
        t.uvs[t.corners[3 * face]] * u
        + t.uvs[t.corners[3 * face + 1]] * v
        + t.uvs[t.corners[3 * face + 2]] * (1.0 - u - v)
    )


@wp.func
def normal_at(t: Tables, face: int, u: float, v: float) -> wp.vec3:
    return wp.normalize(
        t.normals[t.corners[3 * face]] * u
        + t.normals[t.corners[3 * face + 1]] * v
        + t.normals[t.corners[3 * face + 2]] * (1.0 - u - v)
    )


@wp.func
def shade(t: Tables, start: wp.vec3, direction: wp.vec3, angle: float) -> wp.vec3:
    """Radiance along a ray that widens by `angle` [rad] per metre."""
    hit = wp.mesh_query_ray(t.mesh, start, direction, FAR)
    if not hit.result:
        return wp.vec3(0.0, 0.0, 0.0)
    patch = t.face_patch[hit.face]
    uv = uv_at(t, hit.face, hit.u, hit.v)
    cosine = wp.max(wp.abs(wp.dot(hit.normal, direction)), 0.02)
    colour = radiance(t, patch, uv, angle * hit.t / wp.sqrt(cosine))
    gloss = t.gloss[patch]
    if gloss > 0.0:
        normal = normal_at(t, hit.face, hit.u, hit.v)
        cosine = wp.clamp(-wp.dot(normal, direction), 0.0, 1.0)
        mirror = gloss * (REFLECTANCE + (1.0 - REFLECTANCE) * wp.pow(1.0 - cosine, 5.0))
        bounced = direction + normal * (2.0 * cosine)
        above = start + direction * hit.t + normal * LIFT
        second = wp.mesh_query_ray(t.mesh, above, bounced, FAR)
        if second.result:
            uv2 = uv_at(t, second.face, second.u, second.v)
            seen = radiance(t, t.face_patch[second.face], uv2, 4.0 * angle * (hit.t + second.t))
            colour = colour * (1.0 - mirror) + seen * mirror
    return colour


@wp.func
def sample(t: Tables, lens: Lens, pose: wp.mat44, x: float, y: float, angle: float) -> wp.vec3:
    """Radiance that arrives at image point (x, y) [px]."""
    direction = wp.normalize(wp.transform_vector(pose, ray_through(lens, x, y)))
    return shade(t, wp.transform_point(pose, wp.vec3(0.0, 0.0, 0.0)), direction, angle)


@wp.kernel
def photo_kernel(
    t: Tables, lens: Lens, poses: wp.array(dtype=wp.mat44), width: int, side: int, out: wp.array(dtype=wp.vec3)
):
    """One thread a pixel; side x side samples, sample k through pose k (poses differ where the camera moves).

    Samples form a checkerboard: its second half is drawn only where those of the first half differ.
    """
    pixel = wp.tid()
    x = float(pixel % width)
    y = float(pixel / width)
    angle = 1.0 / (lens.fx * float(side))
    total = wp.vec3(0.0, 0.0, 0.0)
    low = wp.vec3(1.0e6, 1.0e6, 1.0e6)
    high = wp.vec3(0.0, 0.0, 0.0)
    taken = float(0.0)
    for parity in range(2):
        if parity == 0 or wp.length(high - low) > FLAT * (DARK + wp.length(total) / taken):
            for k in range(side * side):
                if (k % side + k / side) % 2 == parity:
                    sx = x + (float(k % side) + 0.5) / float(side)
                    sy = y + (float(k / side) + 0.5) / float(side)
                    colour = sample(t, lens, poses[k], sx, sy, angle)
                    total += colour
                    low = wp.min(low, colour)
                    high = wp.max(high, colour)
                    taken += 1.0
    out[pixel] = total / taken


@wp.kernel
def geometry_kernel(
    t: Tables,
    lens: Lens,
    pose: wp.mat44,
    width: int,
    depth: wp.array(dtype=wp.float32),
    ids: wp.array(dtype=wp.int32),
):
    """Depth along the optical axis [m] and id at each pixel's centre; both 0 where nothing is hit."""
    pixel = wp.tid()
    ray = ray_through(lens, float(pixel % width) + 0.5, float(pixel / width) + 0.5)
    start = wp.transform_point(pose, wp.vec3(0.0, 0.0, 0.0))
    hit = wp.mesh_query_ray(t.mesh, start, wp.normalize(wp.transform_vector(pose, ray)), FAR)
    if hit.result:
        depth[pixel] = hit.t / wp.length(ray)
        ids[pixel] = t.id[t.face_patch[hit.face]]


@wp.kernel
def light_kernel(
    mesh: wp.uint64,
    points: wp.array(dtype=wp.vec3),
    normals: wp.array(dtype=wp.vec3),
    corner: wp.vec3,
    edge_u: wp.vec3,
    edge_v: wp.vec3,
    side: int,
    seed: int,
    out: wp.array(dtype=wp.float32),
):
    """Irradiance / pi of unit radiance from a rectangle: side x side stratified shadow rays."""
    k = wp.tid()
    state = wp.rand_init(seed, k)
    normal = normals[k]
    start = points[k] + normal * LIFT
    across = wp.cross(edge_v, edge_u)
    area = wp.length(across)
    total = float(0.0)
    for i in range(side * side):
        a = (float(i % side) + wp.randf(state)) / float(side)
        b = (float(i / side) + wp.randf(state)) / float(side)
        towards = corner + edge_u * a + edge_v * b - start
        distance = wp.length(towards)
        direction = towards / distance
        weight = wp.max(wp.dot(normal, direction), 0.0) * wp.max(-wp.dot(across / area, direction), 0.0)
        if weight > 0.0:
            hit = wp.mesh_query_ray(mesh, start, direction, distance - 4.0 * LIFT)
            if not hit.result:
                total += weight / (distance * distance)
    out[k] = total * area / (float(side * side) * wp.pi)


@wp.kernel
def ambient_kernel(
    mesh: wp.uint64,
    points: wp.array(dtype=wp.vec3),
    normals: wp.array(dtype=wp.vec3),
    reach: float,
    samples: int,
    seed: int,
    out: wp.array(dtype=wp.float32),
):
    """Cosine-weighted fraction of the hemisphere that is open, a hit counting less the farther it is."""
    k = wp.tid()
    state = wp.rand_init(seed, k)
    normal = normals[k]
    start = points[k] + normal * LIFT
    total = float(0.0)
    for _ in range(samples):
        direction = wp.normalize(normal * 1.0001 + wp.sample_unit_sphere_surface(state))
        hit = wp.mesh_query_ray(mesh, start, direction, reach)
        total += wp.where(hit.result, hit.t / reach, 1.0)
    out[k] = total / float(samples)

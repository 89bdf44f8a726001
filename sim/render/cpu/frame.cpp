// SPDX-License-Identifier: Apache-2.0
#include "frame.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace r2s {

namespace {

constexpr std::int64_t kChunk = 256;              // rows projected, or footprints differentiated, at a time
constexpr std::size_t kMaxPairs = 1u << 28;       // 4 GB of lists, 17 GB more with gradients
constexpr std::size_t kMaxTilePairs = 1u << 24;   // places in a tile's list are stored as floats
constexpr int kPartsPerThread = 4;                // of the Gaussians when they are paired with tiles
constexpr int kRadixBits = 11;
constexpr int kAhead = 8;                         // footprints between a prefetch and its use
constexpr char kTooManyPairs[] =
    "The Gaussians reach more than 2^28 tiles together: render a smaller image, or drop those that fill it.";

// Workspaces that no frame uses. Never destroyed: a frame may outlive the module's other statics.
struct Idle {
    std::mutex mutex;
    std::vector<std::unique_ptr<Workspace>> workspaces;
};
constexpr std::size_t kMaxIdle = 4;

Idle& idle() {
    static Idle& instance = *new Idle;
    return instance;
}

std::unique_ptr<Workspace> take_workspace() {
    std::lock_guard lock(idle().mutex);
    if (idle().workspaces.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> w = std::move(idle().workspaces.back());
    idle().workspaces.pop_back();
    return w;
}

void return_workspace(std::unique_ptr<Workspace> w) {
    std::lock_guard lock(idle().mutex);
    if (idle().workspaces.size() < kMaxIdle) idle().workspaces.push_back(std::move(w));
}

void prefetch(const void* p) {
#if defined(_MSC_VER)
    (void)p;
#else
    __builtin_prefetch(p);
#endif
}

std::int64_t share(std::int64_t count, std::int64_t part, std::int64_t parts) { return count * part / parts; }

// Pixels [left, right] that the ellipse alpha >= kAlphaMin reaches within the rows of pixel centres [low, high].
struct Span {
    int left, right;
};
Span span_in_rows(const Footprint& f, float low, float high, float reach, int width) {
    // Along the ellipse x is largest at dy = rise and least at dy = -rise.
    const float rise = f.ridge_x * f.ry * (f.ry / f.rx);
    const float y0 = std::max(low - f.y, -f.ry), y1 = std::min(high - f.y, f.ry);
    auto half_width = [&](float dy) {
        const float s = f.u3 * dy;
        return std::sqrt(std::max(reach - s * s, 0.0f)) / f.u1 + 1e-3f;
    };
    const float dy_right = std::clamp(rise, y0, y1), dy_left = std::clamp(-rise, y0, y1);
    const float left = f.x + f.ridge_x * dy_left - half_width(dy_left);
    const float right = f.x + f.ridge_x * dy_right + half_width(dy_right);
    return {left > 0.5f ? static_cast<int>(std::ceil(left - 0.5f)) : 0,
            right < width - 0.5f ? static_cast<int>(std::floor(right - 0.5f)) : width - 1};
}

// Calls emit(row, first column, last column) for the tiles that a footprint reaches.
template <typename Emit>
void tiles_reached(const Footprint& f, int width, int height, const Emit& emit) {
    const float reach = (f.log2_opacity - kLog2AlphaMin) * 1.0001f + 1e-5f;
    const float top = f.y - f.ry, bottom = f.y + f.ry, left = f.x - f.rx, right = f.x + f.rx;
    const int x0 = left > 0 ? static_cast<int>(left) / kTile : 0;
    const int x1 = (right < width ? static_cast<int>(right) : width - 1) / kTile;
    const int y0 = top > 0 ? static_cast<int>(top) / kTile : 0;
    const int y1 = (bottom < height ? static_cast<int>(bottom) : height - 1) / kTile;
    for (int y = y0; y <= y1; ++y) {
        if (x0 == x1) {
            emit(y, x0, x1);
            continue;
        }
        const float low = y * kTile + 0.5f, high = low + kTile - 1;
        if (high < top || low > bottom) continue;
        const Span span = span_in_rows(f, low, high, reach, width);
        if (span.left <= span.right && span.left < width) emit(y, span.left / kTile, span.right / kTile);
    }
}

}  // namespace

Frame::Frame(const Gaussians& gaussians, const View& view, int threads, const Kernels& kernels)
    : Frame(gaussians, std::vector<Carried>{{0, gaussians.n, view}}, threads, kernels) {}

Frame::Frame(const Gaussians& gaussians, const std::vector<Carried>& bodies, int threads, const Kernels& kernels)
    : gaussians_(gaussians),
      bodies_(bodies),
      view_(bodies.front().view),
      threads_(threads),
      kernels_(kernels),
      work_(take_workspace()),
      tiles_x_((view_.width + kTile - 1) / kTile),
      tiles_y_((view_.height + kTile - 1) / kTile) {
    for (std::size_t b = 0; b < bodies_.size(); ++b)
        for (std::int64_t row = bodies_[b].begin; row < bodies_[b].end; row += kChunk)
            chunks_.push_back({row, std::min(bodies_[b].end, row + kChunk), 0, b});
}

Frame::~Frame() { return_workspace(std::move(work_)); }

void Frame::forward(const Images& images, const Contributions* contributions) {
    Team team(threads_);
    project(team);
    sort_by_depth();
    pair_with_tiles(team);
    work_->touched.resize(pairs_);
    if (contributions) work_->weights.resize(2 * pairs_ + 2);
    rasterize(team, images, contributions != nullptr);
    if (contributions) gather_weights(team, *contributions);
    if (!images.normals) return;
    colour_by_normals(team);
    std::fill_n(view_.background, 3, 0.0f);
    rasterize(team, {images.normals, images.depth, images.alpha, images.limit, nullptr, nullptr, nullptr}, false);
}

void Frame::project(Team& team) {
    Workspace& w = *work_;
    w.footprints.resize(gaussians_.n);
    w.keys.resize(gaussians_.n);
    team.for_each(static_cast<std::int64_t>(chunks_.size()), [&](std::int64_t c) {
        Chunk& chunk = chunks_[c];
        Footprint* out = w.footprints.data() + chunk.begin;
        chunk.visible = kernels_.project(gaussians_, bodies_[chunk.body].view, chunk.begin, chunk.end, out);
        for (std::int64_t i = 0; i < chunk.visible; ++i) {
            const std::uint64_t depth = std::bit_cast<std::uint32_t>(out[i].z);  // positive, so its bits are in order
            w.keys[chunk.begin + i] = depth << 32 | static_cast<std::uint64_t>(chunk.begin + i);
        }
    });
    visible_ = 0;
    for (const Chunk& chunk : chunks_) {
        std::memmove(w.keys.data() + visible_, w.keys.data() + chunk.begin, chunk.visible * sizeof(std::uint64_t));
        visible_ += chunk.visible;
    }
}

// Stable radix sort of the keys by depth; ties keep the order of the rows.
void Frame::sort_by_depth() {
    work_->keys_out.resize(visible_);
    std::uint64_t *from = work_->keys.data(), *to = work_->keys_out.data();
    std::vector<std::uint32_t> place(3u << kRadixBits, 0);
    const std::uint32_t digits = 1u << kRadixBits, digit_mask = digits - 1;
    for (std::int64_t i = 0; i < visible_; ++i)
        for (int pass = 0; pass < 3; ++pass)
            ++place[pass * digits + (from[i] >> (32 + pass * kRadixBits) & digit_mask)];
    for (int pass = 0; pass < 3; ++pass) {
        std::uint32_t* next = place.data() + pass * digits;
        std::uint32_t total = 0;
        for (std::uint32_t d = 0; d < digits; ++d) total += std::exchange(next[d], total);
        for (std::int64_t i = 0; i < visible_; ++i)
            to[next[from[i] >> (32 + pass * kRadixBits) & digit_mask]++] = from[i];
        std::swap(from, to);
    }
    std::swap(work_->keys, work_->keys_out);
}

// Lists, for every tile, the Gaussians that reach it, nearest first: a counting sort of the pairs by tile. It is
// stable, so the number of parts changes nothing.
void Frame::pair_with_tiles(Team& team) {
    Workspace& w = *work_;
    const std::int64_t parts = threads_ == 1 ? 1 : kPartsPerThread * threads_;
    w.pair_begin.resize(gaussians_.n);
    w.pair_count.resize(gaussians_.n);
    w.parts.resize(parts);
    found_ = 0;
    team.for_each(parts, [&](std::int64_t p) {
        find_pairs(share(visible_, p, parts), share(visible_, p + 1, parts), w.parts[p]);
    });
    number_pairs();
    w.entries.resize(pairs_);
    team.for_each(parts, [&](std::int64_t p) {
        place_pairs(share(visible_, p, parts), share(visible_, p + 1, parts), w.parts[p]);
    });
}

void Frame::number_pairs() {
    Workspace& w = *work_;
    pairs_ = 0;
    for (Workspace::Part& part : w.parts) {
        part.first_pair = pairs_;
        pairs_ += part.pairs;
    }
    const std::size_t tiles = static_cast<std::size_t>(tiles_x_) * tiles_y_;
    w.tile_begin.resize(tiles + 1);
    std::size_t at = 0;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        w.tile_begin[tile] = at;
        for (Workspace::Part& part : w.parts) {
            const std::uint32_t count = part.histogram[tile];
            part.histogram[tile] = static_cast<std::uint32_t>(at);
            at += count;
        }
        if (at - w.tile_begin[tile] >= kMaxTilePairs)
            throw std::length_error("More than 2^24 Gaussians reach one tile: render fewer Gaussians.");
    }
    w.tile_begin[tiles] = at;
}

void Frame::find_pairs(std::int64_t begin, std::int64_t end, Workspace::Part& part) {
    part.histogram.assign(static_cast<std::size_t>(tiles_x_) * tiles_y_, 0);
    part.pairs = 0;
    for (std::int64_t i = begin; i < end; ++i) {
        const std::uint32_t row = static_cast<std::uint32_t>(work_->keys[i]);
        if (i + kAhead < end) prefetch(&work_->footprints[static_cast<std::uint32_t>(work_->keys[i + kAhead])]);
        const std::size_t before = part.pairs;
        tiles_reached(work_->footprints[row], view_.width, view_.height, [&](int y, int first, int last) {
            part.tiles.reserve(part.pairs + (last - first + 1));
            for (int x = first; x <= last; ++x) {
                const std::uint32_t tile = static_cast<std::uint32_t>(y) * tiles_x_ + x;
                part.tiles[part.pairs++] = tile;
                ++part.histogram[tile];
            }
        });
        const std::size_t added = part.pairs - before;
        work_->pair_count[row] = static_cast<std::uint32_t>(added);
        if (found_.fetch_add(added, std::memory_order_relaxed) + added > kMaxPairs)
            throw std::length_error(kTooManyPairs);
    }
}

void Frame::place_pairs(std::int64_t begin, std::int64_t end, Workspace::Part& part) {
    const std::uint32_t* tile = part.tiles.data();
    std::uint32_t pair = static_cast<std::uint32_t>(part.first_pair);
    for (std::int64_t i = begin; i < end; ++i) {
        const std::uint32_t row = static_cast<std::uint32_t>(work_->keys[i]);
        work_->pair_begin[row] = pair;
        for (std::uint32_t k = 0; k < work_->pair_count[row]; ++k)
            work_->entries[part.histogram[*tile++]++] = {row, pair++};
    }
}

void Frame::rasterize(Team& team, const Images& images, bool weights) {
    Workspace& w = *work_;
    const std::int64_t tiles = static_cast<std::int64_t>(tiles_x_) * tiles_y_;
    w.transmittance.resize(tiles * kTilePixels);
    w.last.resize(tiles * kTilePixels);
    team.for_each(tiles, [&](std::int64_t tile) {
        TileJob job{};
        job.footprints = w.footprints.data();
        job.entries = w.entries.data() + w.tile_begin[tile];
        job.count = static_cast<int>(w.tile_begin[tile + 1] - w.tile_begin[tile]);
        job.x0 = static_cast<int>(tile % tiles_x_) * kTile;
        job.y0 = static_cast<int>(tile / tiles_x_) * kTile;
        job.width = view_.width;
        job.height = view_.height;
        std::copy_n(view_.background, 3, job.background);
        job.rgb = images.rgb;
        job.depth = images.depth;
        job.alpha = images.alpha;
        job.limit = images.limit;
        job.top = images.top;
        job.top_weight = images.top_weight;
        job.transmittance = w.transmittance.data() + tile * kTilePixels;
        job.last = w.last.data() + tile * kTilePixels;
        job.touched = w.touched.data();
        job.weights = weights ? w.weights.data() : nullptr;
        kernels_.rasterize_tile(job);
    });
}

// Replaces the footprints' colours by unit normals: the axis of the least scale, in the camera's axes, towards it.
void Frame::colour_by_normals(Team& team) {
    team.for_each(static_cast<std::int64_t>(chunks_.size()), [&](std::int64_t c) {
        const View& view = bodies_[chunks_[c].body].view;
        Footprint* footprints = work_->footprints.data() + chunks_[c].begin;
        for (std::int64_t i = 0; i < chunks_[c].visible; ++i) {
            Footprint& f = footprints[i];
            const float* s = gaussians_.scales + 3 * static_cast<std::int64_t>(f.id);
            const float* q = gaussians_.quats + 4 * static_cast<std::int64_t>(f.id);
            const float* mean = gaussians_.means + 3 * static_cast<std::int64_t>(f.id);
            const float inv = 1.0f / std::sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
            const float w = q[0] * inv, x = q[1] * inv, y = q[2] * inv, z = q[3] * inv;
            const float axes[3][3] = {{1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)},
                                      {2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)},
                                      {2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)}};
            const float* axis = axes[s[0] <= s[1] ? (s[0] <= s[2] ? 0 : 2) : (s[1] <= s[2] ? 1 : 2)];
            float n[3], towards = 0;
            for (int r = 0; r < 3; ++r) {
                const float* R = view.R + 3 * r;
                n[r] = R[0] * axis[0] + R[1] * axis[1] + R[2] * axis[2];
                towards += n[r] * (R[0] * mean[0] + R[1] * mean[1] + R[2] * mean[2] + view.t[r]);
            }
            const float sign = towards > 0 ? -1.0f : 1.0f;
            f.r = sign * n[0], f.g = sign * n[1], f.b = sign * n[2];
        }
    });
}

void Frame::gather_weights(Team& team, const Contributions& contributions) {
    const Workspace& w = *work_;
    std::fill_n(contributions.sum, gaussians_.n, 0.0f);
    std::fill_n(contributions.largest, gaussians_.n, 0.0f);
    team.for_each(static_cast<std::int64_t>(chunks_.size()), [&](std::int64_t c) {
        for (std::int64_t i = chunks_[c].begin; i < chunks_[c].begin + chunks_[c].visible; ++i) {
            float sum = 0, largest = 0;
            for (std::size_t k = 0, pair = w.pair_begin[i]; k < w.pair_count[i]; ++k, ++pair) {
                if (!w.touched[pair]) continue;
                sum += w.weights[2 * pair];
                largest = std::max(largest, w.weights[2 * pair + 1]);
            }
            contributions.sum[w.footprints[i].id] = sum;
            contributions.largest[w.footprints[i].id] = largest;
        }
    });
}

void Frame::backward(const Gaussians& gaussians, const float* depth, const float* v_rgb, const float* v_depth,
                     const float* v_alpha, const Gradients& gradients) {
    Workspace& w = *work_;
    Team team(threads_);
    w.pair_sums.resize(pairs_ * kPairSums);
    team.for_each(static_cast<std::int64_t>(tiles_x_) * tiles_y_, [&](std::int64_t tile) {
        TileGradientJob job{};
        job.footprints = w.footprints.data();
        job.entries = w.entries.data() + w.tile_begin[tile];
        job.count = static_cast<int>(w.tile_begin[tile + 1] - w.tile_begin[tile]);
        job.x0 = static_cast<int>(tile % tiles_x_) * kTile;
        job.y0 = static_cast<int>(tile / tiles_x_) * kTile;
        job.width = view_.width;
        job.height = view_.height;
        std::copy_n(view_.background, 3, job.background);
        job.transmittance = w.transmittance.data() + tile * kTilePixels;
        job.last = w.last.data() + tile * kTilePixels;
        job.touched = w.touched.data();
        job.depth = depth;
        job.v_rgb = v_rgb;
        job.v_depth = v_depth;
        job.v_alpha = v_alpha;
        job.pair_sums = w.pair_sums.data();
        kernels_.rasterize_tile_gradient(job);
    });
    team.for_each(static_cast<std::int64_t>(chunks_.size()), [&](std::int64_t c) {
        const auto [begin, end, visible, body] = chunks_[c];
        const GaussianGradientJob job{w.footprints.data() + begin, w.pair_begin.data() + begin,
                                      w.pair_count.data() + begin, w.touched.data(), w.pair_sums.data()};
        kernels_.gaussian_gradient(gaussians, bodies_[body].view, begin, end, visible, job, gradients);
    });
}

}  // namespace r2s

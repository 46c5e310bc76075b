#include "sm90/native/load/im2col.cuh"

namespace cutwheel::conv2d {
namespace {

bool is_encodable_axis(Im2colAxis const& axis, bool is_volume) {
  int const most = is_volume ? 15 : 127, most_offset = is_volume ? 31 : 254;
  auto const is_corner = [&](int x) { return x >= -most - 1 && x <= most; };
  return is_corner(axis.corner) && is_corner(axis.upper_corner()) && axis.stride >= 1 && axis.stride <= 8 &&
         axis.last_offset >= 0 && axis.last_offset <= most_offset;
}

Im2colAxis im2col_axis(int extent, int positions, int taps, int pad, int stride, int dilation) {
  return {extent, -pad, positions, stride, (taps - 1) * dilation};
}

}  // namespace

bool Im2colAxes::is_encodable() const {
  return is_encodable_axis(h, is_volume) && is_encodable_axis(w, is_volume) &&
         (!is_volume || is_encodable_axis(d, is_volume));
}

Im2colAxes im2col_axes(ConvProblem const& x) {
  return {im2col_axis(x.h, x.p, x.r, x.pad_h, x.stride_h, x.dilation_h),
          im2col_axis(x.w, x.q, x.s, x.pad_w, x.stride_w, x.dilation_w),
          im2col_axis(x.d, x.o, x.t, x.pad_d, x.stride_d, x.dilation_d), x.is_volume()};
}

Im2colGrid im2col_grid(Im2colAxes const& axes) {
  auto const& [h, w, d, is_volume] = axes;
  return {cutlass::FastDivmod(h.positions),
          cutlass::FastDivmod(w.positions),
          h.corner,
          w.corner,
          h.stride,
          w.stride,
          cutlass::FastDivmod(d.positions),
          d.corner,
          d.stride};
}

void encode_im2col_map(CUtensorMap& map, DType type, void const* data, std::int64_t const (&strides)[3],
                       std::int64_t depth_stride, int images, int channels, Im2colAxes const& axes, int channel_box,
                       int pixels, int swizzle_bytes) {
  auto const bytes = static_cast<cuuint64_t>(element_bytes(type));
  auto const extent = [](int x) { return static_cast<cuuint64_t>(x); };
  auto const stride = [&](std::int64_t x) { return static_cast<cuuint64_t>(x) * bytes; };
  auto const step = [](Im2colAxis const& axis) { return static_cast<cuuint32_t>(axis.stride); };
  auto const& [h, w, d, is_volume] = axes;
  // Width comes first, as everywhere in a tensor map, and images come last.
  cuuint64_t extents[5] = {extent(channels), extent(w.extent), extent(h.extent), extent(images)};
  cuuint64_t byte_strides[4] = {stride(strides[2]), stride(strides[1]), stride(strides[0])};
  cuuint32_t steps[5] = {1, step(w), step(h), 1};
  int const lower[] = {w.corner, h.corner, d.corner}, upper[] = {w.upper_corner(), h.upper_corner(), d.upper_corner()};
  if (is_volume) {
    extents[3] = extent(d.extent), extents[4] = extent(images);
    byte_strides[2] = stride(depth_stride), byte_strides[3] = stride(strides[0]);
    steps[3] = step(d), steps[4] = 1;
  }
  cuTensorMapEncodeIm2col(&map, gemm::tensor_map_type(type), is_volume ? 5 : 4, const_cast<void*>(data), extents,
                          byte_strides, lower, upper, static_cast<cuuint32_t>(channel_box), static_cast<cuuint32_t>(pixels),
                          steps, CU_TENSOR_MAP_INTERLEAVE_NONE, gemm::swizzle_of(swizzle_bytes),
                          gemm::l2_promotion(strides[2] * element_bytes(type)), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

bool is_tma_aligned(void const* data, std::int64_t const (&strides)[3], DType type) {
  bool result = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  for (std::int64_t const stride : strides) result = result && stride * element_bytes(type) % 16 == 0;
  return result;
}

}  // namespace cutwheel::conv2d

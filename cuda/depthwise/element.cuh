// Building blocks of the depthwise kernels: vectors of elements and floats, and copies to shared memory. Plain C++ on the
// host, where tests run the kernels by threads.
#pragma once

#include <cstdint>
#include <cstring>

#include "depthwise/plan.h"

#ifdef __CUDACC__
#include <cutlass/bfloat16.h>
#include <cutlass/half.h>
#define DEPTHWISE_DEVICE __device__ __forceinline__
#endif

namespace cutwheel::conv2d::depthwise {

constexpr int kMaxScalars = 8;

#ifdef __CUDACC__

DEPTHWISE_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
DEPTHWISE_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
DEPTHWISE_DEVICE unsigned multiply_high(unsigned a, unsigned b) { return __umulhi(a, b); }
DEPTHWISE_DEVICE void synchronize() { __syncthreads(); }
DEPTHWISE_DEVICE bool synchronize_or(bool any) { return __syncthreads_or(any); }

DEPTHWISE_DEVICE char* shared_memory() {
  extern __shared__ __align__(16) char depthwise_memory[];
  return depthwise_memory;
}

// 16 bytes from global to shared memory, or zeros.
DEPTHWISE_DEVICE void copy_async_16(void* to, void const* from, bool valid) {
  unsigned const address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
DEPTHWISE_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending = 0>
DEPTHWISE_DEVICE void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
DEPTHWISE_DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Two 16-bit elements of a word. A bfloat16 is the upper half of a float.
DEPTHWISE_DEVICE void unpack(std::uint32_t word, float* to, cutlass::bfloat16_t) {
  to[0] = __uint_as_float(word << 16);
  to[1] = __uint_as_float(word & 0xffff0000u);
}
DEPTHWISE_DEVICE void unpack(std::uint32_t word, float* to, cutlass::half_t) {
  __half2 halves;
  memcpy(&halves, &word, 4);
  float2 const both = __half22float2(halves);
  to[0] = both.x, to[1] = both.y;
}
DEPTHWISE_DEVICE std::uint32_t pack(float a, float b, cutlass::bfloat16_t) {
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(b), "f"(a));
  return word;
}
DEPTHWISE_DEVICE std::uint32_t pack(float a, float b, cutlass::half_t) {
  std::uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(b), "f"(a));
  return word;
}
DEPTHWISE_DEVICE float to_float(cutlass::bfloat16_t x) { return static_cast<float>(x); }
DEPTHWISE_DEVICE float to_float(cutlass::half_t x) { return static_cast<float>(x); }
template <class E>
DEPTHWISE_DEVICE E from_float(float x) {
  return static_cast<E>(x);
}
#endif

DEPTHWISE_DEVICE float to_float(float x) { return x; }
DEPTHWISE_DEVICE int min_of(int a, int b) { return a < b ? a : b; }

struct Divided {
  int quotient, rest;
};
// `a` is not negative.
DEPTHWISE_DEVICE Divided divide(int a, Divisor const& by) {
  int const quotient =
      by.divisor == 1 ? a : static_cast<int>(multiply_high(static_cast<unsigned>(a), by.multiplier) >> by.shift);
  return {quotient, a - quotient * by.divisor};
}

template <int bytes>
struct alignas(bytes) Words {
  std::uint32_t word[bytes / 4];
};
template <class E, int count>
using Raw = Words<count* static_cast<int>(sizeof(E)) < 16 ? count * static_cast<int>(sizeof(E)) : 16>;

// `count` floats from memory that begins on as many bytes, or on 16.
template <int count>
DEPTHWISE_DEVICE void load_floats(float const* from, float* to) {
  constexpr int kEach = count < 4 ? count : 4;
#pragma unroll
  for (int i = 0; i < count; i += kEach) {
    Words<4 * kEach> const words = *reinterpret_cast<Words<4 * kEach> const*>(from + i);
    memcpy(to + i, &words, sizeof(words));
  }
}
template <int count>
DEPTHWISE_DEVICE void store_floats(float* to, float const* from) {
  constexpr int kEach = count < 4 ? count : 4;
#pragma unroll
  for (int i = 0; i < count; i += kEach) {
    Words<4 * kEach> words;
    memcpy(&words, from + i, sizeof(words));
    *reinterpret_cast<Words<4 * kEach>*>(to + i) = words;
  }
}

template <class E, int count>
DEPTHWISE_DEVICE void load_vector(E const* from, float* to) {
  if constexpr (sizeof(E) == 4) {
    load_floats<count>(from, to);
  } else {
    Raw<E, count> const raw = *reinterpret_cast<Raw<E, count> const*>(from);
#pragma unroll
    for (int i = 0; i < count / 2; ++i) unpack(raw.word[i], to + 2 * i, E{});
  }
}

template <class E, int count>
DEPTHWISE_DEVICE void store_vector(E* to, float const* from) {
  if constexpr (sizeof(E) == 4) {
    store_floats<count>(to, from);
  } else {
    Raw<E, count> raw;
#pragma unroll
    for (int i = 0; i < count / 2; ++i) raw.word[i] = pack(from[2 * i], from[2 * i + 1], E{});
    *reinterpret_cast<Raw<E, count>*>(to) = raw;
  }
}

// `count` elements on 16 bytes, of which `left` are there.
template <class E, int count>
DEPTHWISE_DEVICE void load_filter_piece(E const* from, int left, float* to) {
  if (left >= count) {
    load_vector<E, count>(from, to);
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) to[i] = i < left ? to_float(from[i]) : 0.f;
  }
}

}  // namespace cutwheel::conv2d::depthwise

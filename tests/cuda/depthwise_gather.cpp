// The program of test_depthwise.py.
#include <pthread.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define DEPTHWISE_DEVICE inline

namespace cutwheel::conv2d::depthwise {
thread_local int own_thread;
int current_block;
// As std::barrier, which GCC 10 lacks.
class Barrier {
 public:
  explicit Barrier(unsigned threads) { pthread_barrier_init(&barrier_, nullptr, threads); }
  ~Barrier() { pthread_barrier_destroy(&barrier_); }
  void arrive_and_wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_;
};
Barrier* all_threads;
alignas(16) char memory[1 << 20];
inline int thread_index() { return own_thread; }
inline int block_index() { return current_block; }
inline void synchronize() { all_threads->arrive_and_wait(); }
inline char* shared_memory() { return memory; }
inline void copy_async_16(void* to, void const* from, bool valid) {
  if (valid)
    std::memcpy(to, from, 16);
  else
    std::memset(to, 0, 16);
}
inline void wait_for_copies() {}
inline unsigned multiply_high(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
template <class E>
E from_float(float x) {
  return x;
}
}  // namespace cutwheel::conv2d::depthwise

#include "depthwise/any.cuh"

using namespace cutwheel::conv2d::depthwise;

// The sums and the bias; the same; relu, behind a residual.
struct Epilogues {
  static constexpr int kSums = 2, kCount = 3;
  template <int count>
  static void apply(int which, float const*, float const* sums, float const* bias, float const* residual, float* to) {
    for (int i = 0; i < count; ++i) {
      float const z = sums[i] + bias[i] + residual[i];
      to[i] = which == 2 && z < 0 ? 0 : z;
    }
  }
};

template <class Kernel>
void run(long blocks, int threads, Kernel kernel) {
  std::memset(memory, 0x7f, sizeof(memory));  // 3e38
  Barrier within(threads);
  all_threads = &within;
  current_block = 0;
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      own_thread = t;
      for (long b = 0; b < blocks; ++b) {
        kernel();
        within.arrive_and_wait();
        if (t == 0) ++current_block;
        within.arrive_and_wait();
      }
    });
  }
  for (std::thread& each : all) each.join();
}

int drawn(int least, int most) { return least + std::rand() % (most - least + 1); }

struct Values {
  std::vector<float> values;
  explicit Values(long count) : values(static_cast<std::size_t>(count) + 8) {
    for (float& x : values) x = static_cast<float>(drawn(-1000, 1000)) / 1000;
  }
  float* data() {  // on 32 bytes
    return reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(values.data()) + 31) / 32 * 32);
  }
};

int extent(int in, int before, int after, int taps, int stride, int dilation) {
  int const room = in + before + after - (taps - 1) * dilation - 1;
  return room < 0 ? 0 : room / stride + 1;
}

// With kAny, for anything; else as Gather.
template <class Gather, bool kAny>
void check(int seed) {
  std::srand(static_cast<unsigned>(seed));
  constexpr bool kTransposed = Gather::kTransposed && !kAny;
  GatherParams p{};
  GatherShape& s = p.shape;
  bool const backwards = kAny ? drawn(0, 1) : kTransposed;
  s.images = drawn(1, 2), s.channels = kAny ? drawn(1, 13) : 8 * drawn(1, 5);
  s.taps_h = Gather::kUnrolled && !kAny ? Gather::kTaps : drawn(1, kTransposed ? 6 : 9);
  s.taps_w = Gather::kUnrolled && !kAny ? Gather::kTaps : drawn(1, kTransposed ? Gather::kTaps : 11);
  s.stride_h = kAny ? drawn(1, 3) : Gather::kStride, s.stride_w = kAny ? drawn(1, 3) : Gather::kStride;
  s.dilation_h = kAny ? drawn(1, 3) : 1, s.dilation_w = kAny ? drawn(1, 3) : 1;
  s.flipped = !backwards && drawn(0, 1);
  s.transposed = kAny && backwards;
  int h, w, out_h, out_w;
  do {
    h = drawn(1, 24), w = drawn(1, 30);
    s.pad_h = drawn(backwards ? 0 : -2, s.taps_h), s.pad_w = drawn(backwards ? 0 : -2, s.taps_w);
    out_h = extent(h, s.pad_h, drawn(0, 3), s.taps_h, s.stride_h, s.dilation_h);
    out_w = extent(w, s.pad_w, drawn(0, 3), s.taps_w, s.stride_w, s.dilation_w);
  } while (out_h < 1 || out_w < 1);
  s.in_h = backwards ? out_h : h, s.in_w = backwards ? out_w : w;
  s.out_h = backwards ? h : out_h, s.out_w = backwards ? w : out_w;
  long const pixels = static_cast<long>(s.images) * s.out_h * s.out_w;
  int const all = s.taps_h * s.taps_w;
  Values x(static_cast<long>(s.images) * s.in_h * s.in_w * s.channels), filter(static_cast<long>(s.channels) * all),
      bias(s.channels), residual(pixels * s.channels), y(pixels * s.channels);
  for (float& one : y.values) one = NAN;
  p.epilogue = drawn(0, 2);
  p.x = x.data(), p.filter = filter.data(), p.y = y.data();
  p.bias = drawn(0, 1) ? bias.data() : nullptr;
  p.residual = p.epilogue == 2 && drawn(0, 1) ? residual.data() : nullptr;
  p.x_column = s.channels, p.x_row = static_cast<long>(s.in_w) * s.channels, p.x_image = p.x_row * s.in_h;
  if constexpr (kAny) {
    p.tile.vectors = up(s.channels, kAnyVector), p.tile.channels = s.channels % kAnyVector == 0, p.tile.threads = 64;
    run((pixels * p.tile.vectors + 63) / 64, 64, [&] { gather_any<float, Epilogues>(p); });
  } else {
    GatherKernel const kernel{Gather::kTaps, Gather::kStride,  Gather::kTransposed, Gather::kUnrolled,
                              Gather::kRows, Gather::kColumns, Gather::kVector,     4};
    GatherPlan plan;
    Limits const limits{256, drawn(8, 96) * 1024, 132};
    if (!plan_gather(plan, kernel, s, limits, 8)) return;
    p.tile = plan.tile;
    run(plan.blocks, plan.tile.threads, [&] { Gather::template run<Epilogues>(p); });
  }
  for (long place = 0; place < pixels; ++place) {
    int const at_w = place % s.out_w, at_h = place / s.out_w % s.out_h;
    long const image = place / s.out_w / s.out_h;
    for (int c = 0; c < s.channels; ++c) {
      double sum = p.bias ? bias.data()[c] : 0;
      for (int tap = 0; tap < all; ++tap) {
        int const r = tap / s.taps_w, q = tap % s.taps_w;
        int row, column;
        if (backwards) {
          row = at_h + s.pad_h - r * s.dilation_h, column = at_w + s.pad_w - q * s.dilation_w;
          if (row < 0 || column < 0 || row % s.stride_h || column % s.stride_w) continue;
          row /= s.stride_h, column /= s.stride_w;
        } else {
          row = at_h * s.stride_h - s.pad_h + r * s.dilation_h, column = at_w * s.stride_w - s.pad_w + q * s.dilation_w;
        }
        if (row < 0 || column < 0 || row >= s.in_h || column >= s.in_w) continue;
        sum += static_cast<double>(x.data()[((image * s.in_h + row) * s.in_w + column) * s.channels + c]) *
               filter.data()[static_cast<long>(c) * all + (s.flipped ? all - 1 - tap : tap)];
      }
      long const at = place * s.channels + c;
      if (p.residual) sum += residual.data()[at];
      if (p.epilogue == 2 && sum < 0) sum = 0;
      if (!(std::fabs(sum - y.data()[at]) < 1e-4)) {
        std::printf("seed %d: taps %d stride %d backwards %d any %d: %g at %ld, not %g\n", seed, Gather::kTaps,
                    Gather::kStride, backwards, kAny, static_cast<double>(y.data()[at]), at, sum);
        std::exit(1);
      }
    }
  }
}

void check_divisors() {
  for (int i = 0; i < 1000000; ++i) {
    int const by = drawn(1, 1 << drawn(1, 30)), a = i % 7 ? drawn(0, 1 << drawn(0, 30)) : 0x7fffffff - drawn(0, 3);
    Divided const found = divide(a, Divisor(by));
    if (found.quotient == a / by && found.rest == a % by) continue;
    std::printf("%d / %d\n", a, by);
    std::exit(1);
  }
}

int main() {
  check_divisors();
  for (int seed = 0; seed < 12; ++seed) {
    check<Gather<float, 3, 1, false, 1, 7, 4, true>, false>(seed);
    check<Gather<float, 3, 2, false, 1, 7, 4, true>, false>(seed);
    check<Gather<float, 5, 1, false, 2, 7, 2, true>, false>(seed);
    check<Gather<float, 5, 2, false, 1, 7, 4, false>, false>(seed);
    check<Gather<float, 7, 1, false, 2, 7, 2, true>, false>(seed);
    check<Gather<float, 7, 1, false, 1, 7, 4, false>, false>(seed);
    check<Gather<float, 7, 2, false, 1, 7, 4, false>, false>(seed);
    check<Gather<float, 3, 2, true, 2, 8, 4, true>, false>(seed);
    check<Gather<float, 5, 2, true, 2, 8, 4, true>, false>(seed);
    check<Gather<float, 7, 2, true, 2, 8, 4, false>, false>(seed);
    check<Gather<float, 3, 1, false, 1, 7, 4, true>, true>(seed);
  }
}

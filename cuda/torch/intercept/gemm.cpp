// mm and bmm; addmm for Python's kernel.
#include "torch/gemm.h"

#include "torch/intercept/operands.h"
#include "torch/intercept/ops.h"
#include "torch/intercept/torch_kernel.h"

namespace cutwheel {
namespace {

constexpr bool has_out(Taken op) { return op == Taken::mm_out || op == Taken::bmm_out || op == Taken::addmm_out; }

OpNames const& names_of(Taken op) {
  if (op == Taken::addmm || op == Taken::addmm_out) return kAddmm;
  return op == Taken::mm || op == Taken::mm_out ? kMm : kBmm;
}

Problem problem_of(Taken op, Tensor const& a, Tensor const& b, Tensor const* out) {
  Problem p = begin_problem(op, a);
  std::int64_t const dims = names_of(op).dims;
  if (a.dim() != dims || b.dim() != dims) return p.with(Verdict::shape);
  std::int64_t const rows = dims - 2, cols = dims - 1;
  p.batch = dims == 3 ? a.size(0) : 1;
  p.m = a.size(rows), p.n = b.size(cols), p.k = a.size(cols);
  if (b.size(rows) != p.k || (dims == 3 && b.size(0) != p.batch)) return p.with(Verdict::shape);
  if (!are_on_device_of(a, {&b}) || (out && !is_cuda(*out))) return p.with(Verdict::not_cuda);
  p.device = static_cast<std::int32_t>(a.get_device_index());
  if (!is_16_bit(p.type) || type_of(b) != p.type) return p.with(Verdict::dtype);
  if (is_narrowed(p.type)) return p.with(Verdict::narrowed);
  if (p.batch == 0 || p.m == 0 || p.n == 0 || p.k == 0) return p.with(Verdict::empty);
  constexpr int kBytes = 2;
  p.a = letter_of(matrix_of(a), kBytes), p.b = letter_of(matrix_of(b), kBytes);
  if (p.a == '?' || p.b == '?' || p.n % (16 / kBytes) != 0) return p.with(Verdict::layout);
  if (out && !is_contiguous_result(*out, p, p.type, static_cast<int>(dims), {&a, &b})) return p.with(Verdict::out);
  return p;
}

struct Operands {
  Tensor const& a;
  Tensor const& b;
  Tensor const* c = nullptr;
  Tensor const* out = nullptr;
};

GemmCall call_of(Taken op, Operands const& given) {
  GemmCall call = make_call(names_of(op), given.a, given.b, std::nullopt, false);
  call.c = given.c, call.out = given.out;
  return call;
}

Verdict plan(Taken op, Operands const& given) {
  GemmCall call = call_of(op, given);
  check(call);
  DeviceScope const scope(call.device);
  PreparedGemm prepared;
  if (start(prepared, call) != Work::gemm) return Verdict::empty;
  GemmPlan const found = plan_gemm(prepared, call);
  if (!prepared.keep.empty() || prepared.d.temporary) return Verdict::copies;
  return is_native(found, device_info(call.device)) ? Verdict::taken : Verdict::no_kernel;
}

Tensor run(Taken op, Operands const& given) {
  GemmCall call = call_of(op, given);
  PreparedGemm prepared;
  run_call(prepared, call);
  return given.out ? *given.out : *std::move(prepared.d.tensor);
}

// at::cuda::mm(self, mat2) and its like; mm_out(out, self, mat2) returns a reference to out.
Tensor pass_on(Taken op, Tensor const& a, Tensor const& b) {
  Tensor result;
  adopt(result, torch_kernel<TorchTensor(void const*, void const*)>(op)(a.get(), b.get()));
  return result;
}

Tensor pass_on(Taken op, Tensor const& a, Tensor const& b, Tensor const& out) {
  torch_kernel<void*(void*, void const*, void const*)>(op)(out.get(), a.get(), b.get());
  return out;
}

template <Taken op>
Tensor multiply(Tensor const& a, Tensor const& b) {
  if (!a.defined() || !b.defined()) return pass_on(op, a, b);
  Operands const given{a, b};
  return run_either<Tensor>(
      problem_of(op, a, b, nullptr), [&] { return plan(op, given); }, [&] { return run(op, given); },
      [&] { return pass_on(op, a, b); });
}

template <Taken op>
Tensor multiply_out(Tensor const& a, Tensor const& b, Tensor const& out) {
  if (!a.defined() || !b.defined() || !out.defined()) return pass_on(op, a, b, out);
  Operands const given{a, b, nullptr, &out};
  return run_either<Tensor>(
      problem_of(op, a, b, &out), [&] { return plan(op, given); }, [&] { return run(op, given); },
      [&] { return pass_on(op, a, b, out); });
}

// A row for all rows of the result, as the bias of a linear layer is: no other C was measured.
bool is_row(Tensor const& c, Problem const& p) {
  std::int64_t const dims = c.dim();
  if (dims < 1 || dims > 2 || c.size(dims - 1) != p.n || c.stride(dims - 1) != 1) return false;
  return dims == 1 || c.size(0) == 1 || (c.size(0) == p.m && c.stride(0) == 0);
}

std::optional<Tensor> try_addmm(Taken op, Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha,
                                Tensor const* out) {
  if (!a.defined() || !b.defined() || !c.defined() || (out && !out->defined())) return std::nullopt;
  Problem p = problem_of(op, a, b, out);
  if (p.first == Verdict::taken) {
    if (!are_on_device_of(a, {&c})) {
      p.first = Verdict::not_cuda;
    } else if (beta != 1 || alpha != 1 || type_of(c) != p.type || !is_row(c, p)) {
      p.first = Verdict::arguments;
    } else if (out && overlaps(matrix_of(*out), 2, matrix_of(c), 2)) {
      p.first = Verdict::out;
    }
  }
  Operands const given{a, b, &c, out};
  return run_either<std::optional<Tensor>>(
      p, [&] { return plan(op, given); }, [&] { return run(op, given); }, [] { return std::nullopt; });
}

}  // namespace

std::optional<Tensor> take_addmm(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha) {
  return try_addmm(Taken::addmm, c, a, b, beta, alpha, nullptr);
}

bool take_addmm_out(Tensor const& c, Tensor const& a, Tensor const& b, double beta, double alpha, Tensor const& out) {
  return try_addmm(Taken::addmm_out, c, a, b, beta, alpha, &out).has_value();
}

std::vector<Overload> gemm_overloads() {
  return {
      {Taken::mm, TORCH_BOX(&multiply<Taken::mm>), "2mmERKNS_6TensorES3_"},
      {Taken::mm_out, TORCH_BOX(&multiply_out<Taken::mm_out>), "6mm_outERNS_6TensorERKS1_S4_"},
      {Taken::bmm, TORCH_BOX(&multiply<Taken::bmm>), "3bmmERKNS_6TensorES3_"},
      {Taken::bmm_out, TORCH_BOX(&multiply_out<Taken::bmm_out>), "7bmm_outERNS_6TensorERKS1_S4_"},
  };
}

}  // namespace cutwheel

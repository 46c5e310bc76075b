#include "torch/autograd/node.h"

#include <torch/csrc/stable/library.h>

#include "torch/conv/conv.h"
#include "torch/conv/image.h"
#include "torch/elementwise.h"
#include "torch/gemm.h"
#include "torch/tensor/allocator.h"
#include "torch/tensor/numbers.h"
#include "torch/tensor/shim_errors.h"

namespace cutwheel {
namespace {

// The arguments of both ops behind their tensors.
struct Form {
  Numbers stride, padding, dilation, output_padding;
  bool transposed;
  std::int64_t groups;

  bool is_product() const { return stride.size() == 0; }
  ConvGeometry geometry() const {
    return {{stride.h(), stride.w()}, {padding.h(), padding.h(), padding.w(), padding.w()}, {dilation.h(), dilation.w()}};
  }
};

// An image has its stride, padding and dilation in pairs. Their values are run_conv2d's to check: it names the argument.
void check_form(Form const& form) {
  bool const has_pairs = form.stride.size() == 2 && form.padding.size() == 2 && form.dilation.size() == 2;
  bool const is_image = !form.transposed && has_pairs && form.output_padding.is_zero() && form.groups >= 1;
  if (form.is_product() || is_image) return;
  fail(ErrorKind::not_implemented,
       "convolution_overrideable: cutwheel calls it for its own convolutions of images and linear layers; "
       "call torch.convolution");
}

Tensor forward(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias, StableListHandle stride,
               StableListHandle padding, StableListHandle dilation, bool transposed, StableListHandle output_padding,
               std::int64_t groups) {
  Form const form{Numbers(stride), Numbers(padding), Numbers(dilation), Numbers(output_padding), transposed, groups};
  check_form(form);
  Tensor const* const row = bias && bias->defined() ? &*bias : nullptr;
  if (!form.is_product()) return run_conv2d({Direction::fprop, input, weight, row, {}, form.geometry(), groups});
  GemmCall call = make_call(!transposed ? kLinear : row ? kAddmm : kMm, input, weight, std::nullopt, /*allow_tf32=*/false);
  call.linear = !transposed;
  call.c = row;
  return run_call(call);
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

// Where each gradient would make a copy of its own.
Tensor in_order(Tensor const& image) {
  bool const is_in_order = image.stride(1) == 1 || image.size(1) == 1;
  return is_in_order ? image : torch::stable::contiguous(image, torch::headeronly::MemoryFormat::ChannelsLast);
}

Gradients gradients_of_conv(Tensor const& grad, Tensor const& input, Tensor const& weight, Form const& form,
                            Numbers const& wanted) {
  Tensor const dz = in_order(grad);
  Gradients results;
  auto& [of_input, of_weight, of_bias] = results;
  if (wanted.flag(0)) {
    Extents2d const size{input.size(2), input.size(3)};
    of_input = run_conv2d({Direction::dgrad, dz, weight, nullptr, size, form.geometry(), form.groups});
  }
  if (wanted.flag(1)) {
    Extents2d const size{weight.size(2), weight.size(3)};
    of_weight = run_conv2d({Direction::wgrad, dz, input, nullptr, size, form.geometry(), form.groups});
  }
  if (wanted.flag(2)) of_bias = sum_rows(view_of(dz, image_of(dz)));
  return results;
}

bool is_column_major(Matrix const& x) { return x.row_stride == 1 && x.col_stride != 1; }

Gradients gradients_of_product(Tensor const& grad, Tensor const& input, Tensor const& weight, bool transposed,
                               Numbers const& wanted) {
  Matrix const as_given = matrix_of(weight);
  Gradients results;
  auto& [of_input, of_weight, of_bias] = results;
  if (wanted.flag(0) || wanted.flag(1)) {
    LayerGradients const asked{wanted.flag(0), wanted.flag(1), is_column_major(as_given) != transposed};
    Tensor const of_layer = transposed ? matrix_view(weight, as_given.transposed()) : weight;
    LinearGradients both = linear_gradients(grad, input, of_layer, asked, /*allow_tf32=*/false);
    of_input = std::move(both.of_input), of_weight = std::move(both.of_weight);
    if (transposed && of_weight.defined()) of_weight = matrix_view(of_weight, matrix_of(of_weight).transposed());
  }
  if (wanted.flag(2)) of_bias = sum_rows(grad);
  return results;
}

// No Python stands above a node's backward that would name the class of an error.
template <class Compute>
Gradients with_torchs_memory_error(Compute const& compute) {
  try {
    return compute();
  } catch (Error const& error) {
    if (error.kind() != ErrorKind::out_of_memory) throw;
    ask_allocator_again();
  }
  return compute();
}

Gradients backward(Tensor const& grad, Tensor const& input, Tensor const& weight, StableListHandle stride,
                   StableListHandle padding, StableListHandle dilation, bool transposed, StableListHandle output_padding,
                   std::int64_t groups, StableListHandle mask) {
  Form const form{Numbers(stride), Numbers(padding), Numbers(dilation), Numbers(output_padding), transposed, groups};
  Numbers const wanted(mask);
  check_form(form);
  return with_torchs_memory_error([&] {
    return form.is_product() ? gradients_of_product(grad, input, weight, transposed, wanted)
                             : gradients_of_conv(grad, input, weight, form, wanted);
  });
}

constexpr char const* kForward = "convolution_overrideable";
constexpr char const* kBackward = "convolution_backward_overrideable";

// Whether it has no memory: in a trace (compiled autograd), or as it has no elements.
bool has_no_memory(StableIValue tensor) {
  void* data = nullptr;
  return aoti_torch_get_data_ptr(torch::stable::detail::to<AtenTensorHandle>(tensor), &data) != 0 || !data;
}

// In place of torch's autograd of backward, which knows no product: what is to be differentiated again, or traced, is made
// of functions in Python (python/cutwheel/ops/_node_gradients.py).
void differentiable_backward(StableIValue* stack, std::uint64_t inputs, std::uint64_t outputs) {
  if (!aoti_torch_grad_mode_is_enabled() && !has_no_memory(stack[0])) return TORCH_BOX(&backward)(stack, inputs, outputs);
  if (torch_call_dispatcher("cutwheel::_node_gradients", "", stack, TORCH_ABI_VERSION) != 0) {
    fail_shim("compute the gradients of a product or convolution in a way that can be differentiated");
  }
}

bool implement(char const* key, char const* op, void (*kernel)(StableIValue*, std::uint64_t, std::uint64_t)) {
  // Kept: deleting it would take the kernel back.
  TorchLibraryHandle library = nullptr;
  return aoti_torch_library_init_impl("aten", key, __FILE__, __LINE__, &library) == 0 &&
         torch_library_impl(library, op, kernel, TORCH_ABI_VERSION) == 0;
}

}  // namespace

bool take_node() {
  static bool const is_taken = implement("CUDA", kForward, TORCH_BOX(&forward)) &&
                               implement("CUDA", kBackward, TORCH_BOX(&backward)) &&
                               implement("AutogradCUDA", kBackward, &differentiable_backward);
  return is_taken;
}

}  // namespace cutwheel

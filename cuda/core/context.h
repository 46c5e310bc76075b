// The CUDA context that is current on this thread, for which the driver is asked: a program may have made one current that
// is not the device's primary context, as a green context. The runtime then works in that one, and cudaSetDevice would put
// the primary context in its place.
#pragma once

namespace cutwheel {

// Whether there is one, and it belongs to the device. Costs a few nanoseconds.
bool has_context_of(int device);

// Puts back what is current now, if anything is. Where nothing is, what was made current stays, as after any call of the
// runtime.
class ContextScope {
 public:
  ContextScope();
  ~ContextScope();
  ContextScope(ContextScope const&) = delete;
  ContextScope& operator=(ContextScope const&) = delete;

  // Makes the device's primary context current. Throws RuntimeError.
  static void set_primary(int device);

 private:
  void* previous_ = nullptr;
};

}  // namespace cutwheel

// torch's allocator, by its own functions.
#pragma once

namespace cutwheel {

// Asks torch's allocator once more for what it last refused this thread, so that its own exception, torch.OutOfMemoryError
// in Python, takes the way through whoever calls. Returns if there is memory by now, or while a graph is captured, which
// would keep it.
void ask_allocator_again();

}  // namespace cutwheel

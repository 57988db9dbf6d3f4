// Hooks of leaves: the gradient of a leaf, as soon as the backward pass has summed it. Errors are those
// of guarded.h.

#include <ATen/ATen.h>

#include <memory>
#include <stdexcept>

#include "guarded.h"

extern "C" {

// Receives the gradient of a leaf, which it does not own. It states whether the pass may go on.
using OnGradient = bool (*)(void* context, size_t leaf, const at::Tensor* gradient);

// Calls a function with each gradient of a leaf. `context` must outlive every backward pass of the leaf.
char* florin_on_gradient(
    const at::Tensor* leaf, size_t number, OnGradient on_gradient, void* context) {
  return guarded([&] {
    leaf->register_hook([=](const at::Tensor& gradient) {
      if (!on_gradient(context, number, &gradient)) {
        throw std::runtime_error("a gradient was refused");
      }
    });
  });
}
}

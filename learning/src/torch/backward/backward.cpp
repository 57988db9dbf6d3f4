// A backward pass from several tensors with given gradients, which returns those of some tensors. Errors
// are those of guarded.h.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <vector>

#include "guarded.h"

extern "C" {

// `outputs` has room for `inputs_length` pointers. One of them is null if the input has no gradient;
// the caller frees the others. The graph ends with the pass.
char* florin_backward(
    const at::Tensor* const* roots,
    const at::Tensor* const* seeds,
    size_t roots_length,
    const at::Tensor* const* inputs,
    size_t inputs_length,
    at::Tensor** outputs) {
  return guarded([&] {
    torch::autograd::edge_list root_edges;
    torch::autograd::edge_list input_edges;
    torch::autograd::variable_list gradients;
    for (size_t root = 0; root < roots_length; ++root) {
      root_edges.push_back(torch::autograd::impl::gradient_edge(*roots[root]));
      gradients.push_back(*seeds[root]);
    }
    for (size_t input = 0; input < inputs_length; ++input) {
      input_edges.push_back(torch::autograd::impl::gradient_edge(*inputs[input]));
    }
    const auto found = torch::autograd::Engine::get_default_engine().execute(
        root_edges, gradients, false, false, false, input_edges);
    for (size_t input = 0; input < inputs_length; ++input) {
      outputs[input] = found[input].defined() ? new at::Tensor(found[input]) : nullptr;
    }
  });
}
}

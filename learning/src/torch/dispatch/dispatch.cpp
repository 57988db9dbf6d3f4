// Calls an operator of libtorch by its name, with arguments that are converted as its schema asks.
// Errors are those of guarded.h.

#if defined(__linux__)
#include <malloc.h>
#endif

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "guarded.h"

extern "C" {

enum Tag : int32_t {
  kNone = 0,
  kTensor = 1,
  kInt = 2,
  kFloat = 3,
  kBool = 4,
  kText = 5,
  kTensors = 6,
  kInts = 7,
  kFloats = 8,
  kBools = 9,
};

// One argument. `name` is null for a positional one. Lists are `length` elements from `items`:
// tensors (a null pointer is no tensor), 64-bit integers, doubles or bytes.
struct FlorinArgument {
  const char* name;
  int32_t tag;
  int64_t integer;
  double number;
  const void* items;
  size_t length;
};

// One result. The caller owns each tensor, and frees the list of `tensors`.
struct FlorinResult {
  int32_t tag;
  int64_t integer;
  double number;
  at::Tensor** tensors;
  size_t length;
};
}

namespace {

[[noreturn]] void mismatch(const c10::Argument& wanted) {
  throw std::invalid_argument(
      "argument " + wanted.name() + " must be of type " + wanted.type()->str());
}

// A number where a tensor is wanted, as Python passes it: it takes part in type promotion as a
// number, not as a tensor.
at::Tensor wrapped(const at::Scalar& number) {
  at::Tensor tensor = at::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

int64_t integer_of(const c10::Argument& wanted, const FlorinArgument& given) {
  if (given.tag == kInt || given.tag == kBool) return given.integer;
  mismatch(wanted);
}

double number_of(const c10::Argument& wanted, const FlorinArgument& given) {
  if (given.tag == kFloat) return given.number;
  if (given.tag == kInt || given.tag == kBool) return static_cast<double>(given.integer);
  mismatch(wanted);
}

at::Scalar scalar_of(const c10::Argument& wanted, const FlorinArgument& given) {
  switch (given.tag) {
    case kInt: return at::Scalar(given.integer);
    case kFloat: return at::Scalar(given.number);
    case kBool: return at::Scalar(given.integer != 0);
    default: mismatch(wanted);
  }
}

at::Tensor tensor_of(const c10::Argument& wanted, const FlorinArgument& given) {
  if (given.tag == kTensor) return *static_cast<const at::Tensor*>(given.items);
  return wrapped(scalar_of(wanted, given));
}

// The number of elements of a list like `int[2]`, for which one number may be given.
size_t repeated(const c10::Argument& wanted) {
  if (wanted.N().has_value() && *wanted.N() > 0) return static_cast<size_t>(*wanted.N());
  return 1;
}

c10::IValue list_of(
    const c10::Argument& wanted, const c10::TypePtr& element, const FlorinArgument& given) {
  switch (element->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: {
      c10::List<int64_t> list;
      if (given.tag == kInts) {
        const auto* items = static_cast<const int64_t*>(given.items);
        for (size_t i = 0; i < given.length; ++i) list.push_back(items[i]);
      } else {
        for (size_t i = 0; i < repeated(wanted); ++i) list.push_back(integer_of(wanted, given));
      }
      return list;
    }
    case c10::TypeKind::FloatType: {
      c10::List<double> list;
      if (given.tag == kFloats) {
        const auto* items = static_cast<const double*>(given.items);
        for (size_t i = 0; i < given.length; ++i) list.push_back(items[i]);
      } else if (given.tag == kInts) {
        const auto* items = static_cast<const int64_t*>(given.items);
        for (size_t i = 0; i < given.length; ++i) list.push_back(static_cast<double>(items[i]));
      } else {
        for (size_t i = 0; i < repeated(wanted); ++i) list.push_back(number_of(wanted, given));
      }
      return list;
    }
    case c10::TypeKind::BoolType: {
      if (given.tag != kBools) mismatch(wanted);
      c10::List<bool> list;
      const auto* items = static_cast<const uint8_t*>(given.items);
      for (size_t i = 0; i < given.length; ++i) list.push_back(items[i] != 0);
      return list;
    }
    case c10::TypeKind::TensorType: {
      if (given.tag != kTensors) mismatch(wanted);
      c10::List<at::Tensor> list;
      auto* const* items = static_cast<at::Tensor* const*>(given.items);
      for (size_t i = 0; i < given.length; ++i) {
        if (items[i] == nullptr) mismatch(wanted);
        list.push_back(*items[i]);
      }
      return list;
    }
    case c10::TypeKind::OptionalType: {
      if (given.tag != kTensors) mismatch(wanted);
      c10::List<std::optional<at::Tensor>> list;
      auto* const* items = static_cast<at::Tensor* const*>(given.items);
      for (size_t i = 0; i < given.length; ++i) {
        list.push_back(items[i] == nullptr ? std::nullopt : std::optional<at::Tensor>(*items[i]));
      }
      return list;
    }
    default: mismatch(wanted);
  }
}

c10::IValue value_of(const c10::Argument& wanted, const FlorinArgument& given) {
  c10::TypePtr type = wanted.type();
  if (type->kind() == c10::TypeKind::OptionalType) {
    if (given.tag == kNone) return c10::IValue();
    type = type->expectRef<c10::OptionalType>().getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return tensor_of(wanted, given);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return integer_of(wanted, given);
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType: return number_of(wanted, given);
    case c10::TypeKind::NumberType: return c10::IValue(scalar_of(wanted, given));
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType: return integer_of(wanted, given) != 0;
    case c10::TypeKind::StringType:
    case c10::TypeKind::DeviceObjType: {
      if (given.tag != kText) mismatch(wanted);
      const std::string text(static_cast<const char*>(given.items), given.length);
      if (type->kind() == c10::TypeKind::DeviceObjType) return c10::Device(text);
      return text;
    }
    case c10::TypeKind::ListType:
      return list_of(wanted, type->expectRef<c10::ListType>().getElementType(), given);
    default: mismatch(wanted);
  }
}

// The arguments in the order of the schema; what is not given has its default.
torch::jit::Stack stack_of(
    const c10::FunctionSchema& schema, const FlorinArgument* given, size_t length) {
  const auto& wanted = schema.arguments();
  std::vector<const FlorinArgument*> placed(wanted.size(), nullptr);
  for (size_t i = 0; i < length; ++i) {
    size_t at = i;
    if (given[i].name != nullptr) {
      const auto found = schema.argumentIndexWithName(given[i].name);
      if (!found) throw std::invalid_argument(std::string("no argument ") + given[i].name);
      at = static_cast<size_t>(*found);
    }
    if (at >= wanted.size()) throw std::invalid_argument("too many arguments");
    if (placed[at] != nullptr) {
      throw std::invalid_argument("argument " + wanted[at].name() + " is given twice");
    }
    placed[at] = &given[i];
  }
  torch::jit::Stack stack;
  stack.reserve(wanted.size());
  for (size_t at = 0; at < wanted.size(); ++at) {
    if (placed[at] != nullptr) {
      stack.push_back(value_of(wanted[at], *placed[at]));
    } else if (wanted[at].default_value()) {
      stack.push_back(*wanted[at].default_value());
    } else {
      throw std::invalid_argument("argument " + wanted[at].name() + " is missing");
    }
  }
  return stack;
}

FlorinResult result_of(const c10::IValue& value) {
  FlorinResult result{kNone, 0, 0.0, nullptr, 0};
  if (value.isTensor()) {
    result.tag = kTensor;
    result.length = 1;
    result.tensors = new at::Tensor*[1]{new at::Tensor(value.toTensor())};
  } else if (value.isTensorList()) {
    const auto tensors = value.toTensorVector();
    result.tag = kTensors;
    result.length = tensors.size();
    result.tensors = new at::Tensor*[tensors.size()];
    for (size_t i = 0; i < tensors.size(); ++i) result.tensors[i] = new at::Tensor(tensors[i]);
  } else if (value.isInt()) {
    result.tag = kInt;
    result.integer = value.toInt();
  } else if (value.isDouble()) {
    result.tag = kFloat;
    result.number = value.toDouble();
  } else if (value.isBool()) {
    result.tag = kBool;
    result.integer = value.toBool() ? 1 : 0;
  } else if (!value.isNone()) {
    throw std::invalid_argument("a result of type " + value.tagKind() + " is not supported");
  }
  return result;
}

}  // namespace

extern "C" {

// Finds the operator `name.overload`; its handle lives as long as the process.
char* florin_aten_find(const char* name, const char* overload, const void** found) {
  return guarded([&] {
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    *found = new c10::OperatorHandle(handle);
  });
}

// Calls an operator. `results` receives `count` results, which the caller frees with
// `florin_aten_free_results` after it has taken the tensors.
// Advice to callers of PyTorch, such as how to store the weights of a recurrent layer: the caller of
// a model that another person exported can do nothing about it.
struct SilentHandler : c10::WarningHandler {
  void process(const c10::Warning&) override {}
} kSilent;

char* florin_aten_call(
    const void* operation,
    const FlorinArgument* arguments,
    size_t length,
    FlorinResult** results,
    size_t* count) {
  return guarded([&] {
    c10::WarningUtils::WarningHandlerGuard quiet(&kSilent);
    const auto& handle = *static_cast<const c10::OperatorHandle*>(operation);
    auto stack = stack_of(handle.schema(), arguments, length);
    handle.callBoxed(stack);
    std::vector<FlorinResult> converted;
    converted.reserve(stack.size());
    for (const auto& value : stack) converted.push_back(result_of(value));
    *count = converted.size();
    *results = new FlorinResult[converted.size()];
    std::copy(converted.begin(), converted.end(), *results);
  });
}

void florin_aten_free_results(FlorinResult* results, size_t count) {
  for (size_t i = 0; i < count; ++i) delete[] results[i].tensors;
  delete[] results;
}

void florin_aten_free_text(char* text) { std::free(text); }
}

// The C library returns freed memory to the system at once if it is at the end of the heap; the next
// step of a training then takes it page by page. With these settings it retains up to `bytes`, and blocks
// of less than `mapped` bytes come from the heap; larger ones are returned at once.
extern "C" void florin_retain_memory(int bytes, int mapped) {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, mapped);
  mallopt(M_TRIM_THRESHOLD, bytes);
#else
  (void)bytes;
  (void)mapped;
#endif
}

// Turns PyTorch's autocast of this thread on or off. `type` is the number of a type in C++.
extern "C" void florin_autocast(bool enabled, bool gpu, int type) {
  const auto device = gpu ? at::kCUDA : at::kCPU;
  at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(type));
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::clear_cache();
}

"""The parameters of a task's model: which tensors it has, and their canonical safetensors bytes."""

from __future__ import annotations

import json
import math

import numpy as np
from numpy.typing import NDArray

from florin.errors import FlorinError
from florin.fields import Fields

# Limits of the protocol: numbers and tensors of a model, dimensions of a tensor, units of a layer, hidden layers.
PARAMETERS_MAX, TENSORS_MAX, DIMENSIONS_MAX, UNITS_MAX, LAYERS_MAX = 1_000_000_000, 4_096, 8, 65_536, 16
# Longest header of a file, in bytes: names of 192 KiB, and numbers.
HEADER_BYTES_MAX = 1 << 20

Shape = tuple[int, ...]


def tensors_of(spec: Fields) -> dict[str, Shape]:
    """Names and shapes of the tensors of a task's model, in their order."""
    model = spec.object("model")
    kind = model.text("kind")
    if kind == "graph":
        tensors = _listed(model)
    elif kind == "softmax":
        tensors = _dense([_units(model, "inputs"), _units(model, "classes")])
    elif kind == "mlp":
        hidden = [_unit(model, "hidden", size) for size in model.items("hidden")]
        tensors = _dense([_units(model, "inputs"), *hidden, _units(model, "classes")])
    elif kind == "cnn":
        tensors = _convolutional(model)
    else:
        raise model.wrong("kind", "graph, softmax, mlp or cnn")
    if sum(math.prod(shape) for shape in tensors.values()) > PARAMETERS_MAX:
        raise model.wrong("kind", f"a model of at most {PARAMETERS_MAX} numbers")
    return tensors


def _listed(model: Fields) -> dict[str, Shape]:
    listed = model.objects("tensors")
    if len(listed) > TENSORS_MAX:
        raise model.wrong("tensors", f"a list of at most {TENSORS_MAX}")
    tensors = {}
    for tensor in listed:
        shape = tuple(_unit(tensor, "shape", size, PARAMETERS_MAX) for size in tensor.items("shape"))
        if len(shape) > DIMENSIONS_MAX:
            raise tensor.wrong("shape", f"at most {DIMENSIONS_MAX} dimensions")
        tensors[tensor.text("name")] = shape
    if len(tensors) != len(listed):
        raise model.wrong("tensors", "a list of distinct names")
    return tensors


def _dense(sizes: list[int], first: int = 0) -> dict[str, Shape]:
    tensors: dict[str, Shape] = {}
    for at, (inputs, outputs) in enumerate(zip(sizes, sizes[1:]), first):
        tensors |= {f"layer{at}.weight": (outputs, inputs), f"layer{at}.bias": (outputs,)}
    return tensors


def _convolutional(model: Fields) -> dict[str, Shape]:
    """Two convolutions of 3 × 3, each with pooling of 2 × 2, a dense hidden layer, and the logits."""
    filters = [_unit(model, "filters", size) for size in model.items("filters")]
    if len(filters) != 2:
        raise model.wrong("filters", "two numbers")
    tensors: dict[str, Shape] = {}
    for at, (inputs, outputs) in enumerate(zip([_units(model, "channels"), filters[0]], filters)):
        tensors |= {f"layer{at}.weight": (outputs, inputs, 3, 3), f"layer{at}.bias": (outputs,)}
    pixels = (_units(model, "height") // 4) * (_units(model, "width") // 4)
    return tensors | _dense([filters[1] * pixels, _units(model, "hidden"), _units(model, "classes")], 2)


def _units(model: Fields, key: str) -> int:
    return _unit(model, key, model.raw(key))


def _unit(model: Fields, key: str, size: object, most: int = UNITS_MAX * LAYERS_MAX) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most:
        raise model.wrong(key, f"whole numbers from 1 to {most}")
    return size


def model_bytes_max(tensors: dict[str, Shape]) -> int:
    """The most bytes of a file with these tensors."""
    return 8 + HEADER_BYTES_MAX + 4 * sum(math.prod(shape) for shape in tensors.values())


def decode(data: bytearray, tensors: dict[str, Shape]) -> dict[str, NDArray[np.float32]]:
    """The arrays of a safetensors file that has exactly these tensors, one after another, as little-endian f32."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(HEADER_BYTES_MAX, len(data) - 8):
        raise _wrong(f"its header of {size} bytes does not fit")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError) as cause:
        raise _wrong(f"its header is no JSON: {cause}") from None
    expected, at = {}, 0
    for name, shape in tensors.items():
        end = at + 4 * math.prod(shape)
        expected[name], at = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}, end
    if header != expected:
        raise _wrong("its tensors are not those of the task")
    if len(data) != 8 + size + at:
        raise _wrong(f"it has {len(data)} bytes, where {8 + size + at} were expected")
    numbers = np.frombuffer(data, dtype="<f4", offset=8 + size).astype(np.float32, copy=False)
    arrays, at = {}, 0
    for name, shape in tensors.items():
        arrays[name] = numbers[at : at + math.prod(shape)].reshape(shape)
        at += math.prod(shape)
    return arrays


def _wrong(why: str) -> FlorinError:
    return FlorinError("INVALID_MODEL", f"the bytes have the right digest, but are no model of this task: {why}")

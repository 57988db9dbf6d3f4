"""Models of PyTorch for tasks of a Florin market.

    import florin
    florin.export(model, example, "net.pt2")      # then: florin task new --model net.pt2 --data …
    model.load_state_dict(florin.load("3fa9c1"), strict=False)

`export` needs PyTorch 2.8 to 2.11, `load` safetensors, and both the program `florin` on the path, or its
path in the variable FLORIN.
"""

from florin.models import FlorinError, export, load, strip_paths

__all__ = ["FlorinError", "export", "load", "strip_paths"]

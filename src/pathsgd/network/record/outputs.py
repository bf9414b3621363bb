"""The results of a model that are measured: its first tensor, or what `output` chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

Output = int | str | Callable[[Any], Any] | Sequence[int | str] | None
"""What to measure: an index, a key, the name of a submodule, or a function; a list of those;
"all" for every tensor it returns; None for the first."""


def tensors_of(result: Any) -> list[Tensor]:
    """All tensors in what a model returned."""
    return [leaf for leaf in tree_leaves(_opened(result)) if isinstance(leaf, Tensor)]


def _opened(result: Any) -> Any:
    return [_opened(v) for v in result.values()] if isinstance(result, Mapping) else result


def choose(result: Any, output: Output, submodules: Mapping[str, Any]) -> list[Tensor]:
    """The tensors to measure. submodules: what those that `output` names returned."""
    if isinstance(output, (list, tuple)):
        return [tensor for one in output for tensor in choose(result, one, submodules)]
    if output == "all" and not (isinstance(result, Mapping) and "all" in result):
        found = [t for t in tensors_of(result) if t.is_floating_point()]
    else:
        found = tensors_of(_chosen(result, output, submodules))[:1]
    if not found:
        raise ValueError(
            f"there is no tensor in the output ({_describe(result)}); choose one with output="
        )
    return found


def _chosen(result: Any, output: Any, submodules: Mapping[str, Any]) -> Any:
    if output is None:
        return result
    if callable(output):
        return output(result)
    if isinstance(output, str) and not (isinstance(result, Mapping) and output in result):
        if output in submodules:
            return submodules[output]
        if hasattr(result, output) and not isinstance(result, Tensor):
            return getattr(result, output)
    try:
        return result[output]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"output={output!r} does not fit what the model returned ({_describe(result)}), and no "
            f"submodule of that "
            "name was called"
        ) from error


class Watched(dict[str, Any]):
    """What the submodules that `output` names returned, by name; of several calls the last."""

    def __init__(self, model: nn.Module, output: Output) -> None:
        super().__init__()
        self._wanted = output if isinstance(output, (list, tuple)) else [output]
        modules = dict(model.named_modules())
        self.modules = {
            n: modules[n] for n in self._wanted if isinstance(n, str) and n and n in modules
        }

    def keep(self, name: str) -> Callable[..., None]:
        return lambda module, args, result: self.update({name: result})

    @property
    def complete(self) -> bool:
        """Whether all that is wanted has been seen, whatever the model returns."""
        return all(name in self for name in self._wanted)


@contextmanager
def watched(
    model: nn.Module, output: Output, enter: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[Watched]:
    """What the submodules named by `output` return in the block. enter: maps their inputs."""
    results = Watched(model, output)

    def entered(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map(lambda a: enter(a) if isinstance(a, Tensor) else a, (args, kwargs))

    handles = []
    for name, module in results.modules.items():
        handles.append(module.register_forward_pre_hook(entered, with_kwargs=True))
        handles.append(module.register_forward_hook(results.keep(name)))
    try:
        yield results
    finally:
        for handle in handles:
            handle.remove()


def _describe(result: Any) -> str:
    if isinstance(result, Mapping):
        return f"a dict with keys {sorted(map(str, result))}"
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of length {len(result)}"
    return f"a {type(result).__name__}"

"""Global state of torch that changes what a program computes, as text: read at capture, compared at every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from stax.artifact.guards import StateGuard


@dataclass(frozen=True)
class State:
    """``read`` gives the raw value, cheaply; ``text`` its text in a StateGuard."""

    read: Callable[[], object]
    text: Callable[[object], str]


def _autocast(device: str) -> object:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


# Whether autocast is on for some device. Cheap.
any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


def _dtype_text(value: object) -> str:
    return "off" if value is None else str(value).removeprefix("torch.")


def _tf32() -> bool:
    # NOTE: torch.get_float32_matmul_precision raises when the old and the new way of setting it were mixed; this does not.
    return torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32"


STATES: Mapping[str, State] = {
    "grad_enabled": State(torch.is_grad_enabled, str),
    "inference_mode": State(torch.is_inference_mode_enabled, str),
    "autocast_cpu": State(partial(_autocast, "cpu"), _dtype_text),
    "autocast_cuda": State(partial(_autocast, "cuda"), _dtype_text),
    "default_dtype": State(torch.get_default_dtype, _dtype_text),
    "deterministic": State(torch.are_deterministic_algorithms_enabled, str),
    "matmul_tf32": State(_tf32, str),
}


AUTOCAST = ("autocast_cpu", "autocast_cuda")


def current_state(name: str) -> str:
    """The text of one state now, as a StateGuard holds it: "True", "off", "bfloat16". Raises KeyError."""
    state = STATES[name]
    return state.text(state.read())


def state_guards(names: tuple[str, ...] = tuple(STATES)) -> tuple[StateGuard, ...]:
    """Guards that hold as long as these states stay as they are now."""
    return tuple(StateGuard(name, current_state(name)) for name in names)


def raw_value(guard: StateGuard) -> object:
    """The raw value whose text a guard holds, to compare with ``read()``; a fresh object, equal to nothing, when this
    torch knows no such value."""
    text = guard.value
    if guard.name in ("grad_enabled", "inference_mode", "deterministic", "matmul_tf32"):
        return {"True": True, "False": False}.get(text, object())
    if text == "off" and guard.name != "default_dtype":
        return None
    found = getattr(torch, text, None)
    return found if isinstance(found, torch.dtype) else object()


def is_plain() -> bool:
    """No functorch transform and no dispatch mode is active: an artifact would bypass either. Python function modes see
    the call of the compiled function itself, as they should."""
    return _dispatch_modes() == 0 and _functorch_level() is None


def is_watched() -> bool:
    """A dispatch mode is active, such as another trace: it wants to see the operators of the program."""
    return _dispatch_modes() != 0


_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]

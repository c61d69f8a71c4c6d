"""The tensors a graph takes: parameters, buffers, arguments, and the constants that the program turns out to touch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stax.base.errors import CaptureError
from stax.capture.sizes import Environment, concrete, make_fake, symbolic
from stax.capture.storage import Handle, Memory
from stax.capture.value import Geometry, Value

SOURCES = ("parameter", "buffer", "arg", "constant")


@dataclass(frozen=True, eq=False)
class Entry:
    """One input: where it comes from (see signature.Input), the user's tensor, its fake and the value it starts as.
    ``text`` is how the user would write it. ``literal``: made anew by the program at every call, never written back."""

    source: str
    key: str
    leaf: int
    text: str
    real: Tensor
    fake: Tensor
    value: Value
    literal: bool = False

    @property
    def name(self) -> str:
        """As signature.Input has it: a constant's is its name among the graph's inputs."""
        return self.value.name if self.source == "constant" else self.key

    @property
    def geometry(self) -> Geometry:
        """The layout at the start of the call."""
        assert isinstance(self.value.geometry, Geometry)
        return self.value.geometry


class Inputs:
    """Grows while tracing: a real tensor that the program touches becomes a constant."""

    def __init__(
        self, fake_mode: FakeTensorMode, memory: Memory, device: str, env: Environment | None
    ) -> None:
        self.memory = memory
        self.entries: list[Entry] = []
        self._fake_mode = fake_mode
        self._device = device
        self._env = env
        self._by_id: dict[int, Entry] = {}
        self._names: set[str] = set()

    def parameter(self, key: str, real: Tensor, source: str) -> Tensor:
        """The fake of a parameter or buffer of the traced module; a tied one keeps its first name."""
        found = self._by_id.get(id(real))
        if found is not None:
            return found.fake
        entry = self._enter(source, key, -1, key, real)
        self._by_id[id(real)] = entry
        return entry.fake

    def argument(self, leaf: int, real: Tensor, text: str) -> Tensor:
        """The fake of a tensor among the call's leaves."""
        return self._enter("arg", f"arg{leaf}", leaf, text, real).fake

    def constant(self, real: Tensor) -> Handle:
        """A real tensor that the program reached by itself: a closure's, a global's, another module's."""
        entry = self._by_id.get(id(real))
        if entry is None:
            entry = self._enter("constant", self._constant_key(), -1, "a captured tensor", real)
            self._by_id[id(real)] = entry
        handle = self.memory.find(entry.fake)
        assert handle is not None
        return handle

    def literal(self, real: Tensor, fake: Tensor) -> Value:
        """The value of torch.tensor([...]) inside the program, whose fake exists already."""
        key = self._constant_key()
        value = Value(None, (), {}, Geometry.of(fake), "", name=self._unique(key))
        self.entries.append(Entry("constant", key, -1, key, real, fake, value, literal=True))
        return value

    def ordered(self) -> Iterator[Entry]:
        """Parameters, buffers, arguments, constants; each group in the order it was met."""
        for source in SOURCES:
            yield from (e for e in self.entries if e.source == source)

    def _constant_key(self) -> str:
        return f"c{sum(e.source == 'constant' for e in self.entries)}"

    def _enter(self, source: str, key: str, leaf: int, text: str, real: Tensor) -> Entry:
        check_plain(real, text)
        device = torch.device(self._device)
        with self._fake_mode:
            if self._env is not None and source == "arg":
                shape, strides = symbolic(real, self._env, text)
            else:
                shape, strides = concrete(real)
            fake = make_fake(shape, strides, int(real.storage_offset()), real.dtype, device)
            fake.requires_grad_(real.requires_grad)
        if isinstance(real, torch.nn.Parameter):
            fake._is_param = True  # type: ignore[attr-defined]
        name = self._unique({"parameter": "p_", "buffer": "b_"}.get(source, "") + key)
        value = Value(None, (), {}, Geometry.of(fake), "", name=name)
        self.memory.root(fake, value, owner=name)
        entry = Entry(source, key, leaf, text, real, fake, value)
        self.entries.append(entry)
        return entry

    def _unique(self, text: str) -> str:
        name = base = re.sub(r"\W", "_", text)
        count = 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name


def check_plain(tensor: Tensor, text: str) -> None:
    """Raises CaptureError for a tensor that is not dense strided memory."""
    found = ""
    if tensor.layout is not torch.strided:
        found = str(tensor.layout)
    elif tensor.is_quantized:
        found = "a quantized tensor"
    elif tensor.is_conj() or tensor.is_neg():
        found = "a lazily conjugated or negated tensor"
    elif is_functorch_wrapped_tensor(tensor):
        found = "a tensor of another transform"
    elif type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        found = f"the subclass {type(tensor).__name__}"
    if found:
        raise CaptureError(
            f"{text} can not be traced",
            expected="a dense torch.Tensor",
            found=found,
            hint="convert it before the call (to_dense, dequantize, resolve_conj, as_subclass)",
        )


def overlap(a: Tensor, b: Tensor) -> bool:
    """The storages of two tensors overlap, as the runtime's guard sees it."""
    left, right = a.untyped_storage(), b.untyped_storage()
    if left._cdata == right._cdata:
        return True
    if a.device != b.device or a.device.type == "meta":
        return False
    start, other = left.data_ptr(), right.data_ptr()
    return start < other + right.nbytes() and other < start + left.nbytes()

"""Runs Triton text on CPU arrays, in a child process where Triton interprets instead of compiling.

with Interpreter() as interpreter:
    after = interpreter.run(source, {"in_ptr0": x, "out_ptr0": out}, {"ks0": 13})

Buffers are flat numpy arrays by parameter name; bfloat16 ones are float32 arrays of rounded values. The child replaces
what Triton's interpreter lacks (libdevice) or does otherwise than the compiler (rounding to bfloat16, assertions), and
reduces a block by halves, which calls the text's own combine functions on whole blocks.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stax.ir.source import Config, Source

Array = npt.NDArray[Any]
ROOT = Path(__file__).parents[1]
MOST_PROGRAMS = 24
MOST_ELEMENTS = 1 << 18
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
LIBDEVICE = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "trunc", "rsqrt", "fmod", "pow", "atan2",
)  # fmt: skip


class Failure(Exception):
    """What the interpreter raised, as text."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch as plain data; ``dtypes`` and ``arrays`` belong to the pointers in order."""

    text: str
    entry: str
    grid: tuple[int, ...]
    dtypes: tuple[str, ...]
    arrays: list[Array]
    sizes: tuple[int, ...]
    blocks: tuple[int, ...]


class Interpreter:
    """The child process; one launch at a time."""

    def __init__(self) -> None:
        environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
        environ["PYTHONWARNINGS"] = "ignore"  # numpy's, of Triton
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.triton_interpret"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None and self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.wait(timeout=30)
        self._child.stdout.close()

    def run(
        self,
        source: Source,
        buffers: Mapping[str, Array],
        env: Mapping[str, int] | None = None,
        config: Config | None = None,
    ) -> dict[str, Array]:
        """Every buffer after the launch. Without a config, the default one with blocks large enough for few programs.
        Raises Failure."""
        values = [e.evaluate(env or {}) for e in source.sizes]
        chosen = config or roomy(source, values)
        names = [p.name for p in source.params if p.kind in ("in", "out")]
        launch = Launch(
            text=source.text,
            entry=source.entry,
            grid=grid_of(source, values, chosen),
            dtypes=tuple(p.dtype for p in source.params if p.kind in ("in", "out")),
            arrays=[buffers[n] for n in names],
            sizes=tuple(values),
            blocks=tuple(chosen[p.name] for p in source.params if p.kind == "block"),
        )
        return dict(zip(names, self.launch(launch)))

    def launch(self, launch: Launch) -> list[Array]:
        """The arrays after the launch. Raises Failure."""
        if 0 in launch.grid:
            return launch.arrays
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            pickle.dump(launch, self._child.stdin)
            self._child.stdin.flush()
            answer = pickle.load(self._child.stdout)
        except (OSError, EOFError) as error:
            status = self._child.wait(timeout=30)
            raise Failure(f"the interpreting process ended with status {status}") from error
        if isinstance(answer, str):
            raise Failure(answer)
        return answer


def grid_of(source: Source, sizes: Sequence[int], config: Config) -> tuple[int, ...]:
    """The grid of a launch with these values of the size parameters."""
    names = [p.name for p in source.params if p.kind == "size"]
    env = {**dict(zip(names, sizes)), **dict(config.values)}
    return tuple(e.evaluate(env) for e in source.grid)


def roomy(source: Source, sizes: Sequence[int]) -> Config:
    """The default config with XBLOCK, then YBLOCK, doubled until few programs are left or blocks are large."""
    values = dict(source.default.values)
    blocks = [p.name for p in source.params if p.kind == "block"]
    persistent = re.search(r"R0_BLOCK: tl.constexpr = (\d+)", source.text)
    held = int(persistent.group(1)) if persistent else 1
    for name in ("XBLOCK", "YBLOCK"):
        before = grid_of(source, sizes, Config.of(**values))
        while name in values and held * np.prod([values[b] for b in blocks]) < MOST_ELEMENTS:
            if np.prod(before) <= MOST_PROGRAMS:
                break
            values[name] *= 2
            after = grid_of(source, sizes, Config.of(**values))
            if after == before:
                values[name] //= 2
                break
            before = after
    return Config.of(**values)


# -- the child


def _serve() -> None:
    jobs, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _mend()
    functions: dict[str, Any] = {}
    while True:
        try:
            launch = pickle.load(jobs)
        except EOFError:
            return
        try:
            answer: object = _launched(launch, functions)
        except Exception as error:
            # Everything goes back: the asker decides whether it was expected.
            answer = f"{type(error).__name__}: {error}\n{launch.text}"
        pickle.dump(answer, results)
        results.flush()


def _launched(launch: Launch, functions: dict[str, Any]) -> list[Array]:
    import torch  # only the child needs it

    if launch.text not in functions:
        functions[launch.text] = _function(launch.entry, launch.text)
    tensors = [
        torch.from_numpy(a.copy()).to(getattr(torch, d))
        for a, d in zip(launch.arrays, launch.dtypes)
    ]
    # 8-bit floats are codes for the text, and for a caller that gives codes.
    passed = [t.view(torch.uint8) if d in FLOAT8 else t for t, d in zip(tensors, launch.dtypes)]
    for t, a in zip(passed, launch.arrays):
        if t.dtype == torch.uint8 and a.dtype == np.uint8:
            t.copy_(torch.from_numpy(a.copy()))
    with np.errstate(all="ignore"):
        functions[launch.text][launch.grid](*passed, *launch.sizes, *launch.blocks)
    return [
        p.numpy()
        if a.dtype == np.uint8
        else t.to(torch.float32).numpy()
        if t.dtype == torch.bfloat16 or d in FLOAT8
        else t.numpy()
        for t, p, a, d in zip(tensors, passed, launch.arrays, launch.dtypes)
    ]


def _function(entry: str, text: str) -> Any:
    import linecache  # only the child needs it

    name = f"<{entry}:{hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(text, name, "exec"), module)
    return module[entry]


def _mend() -> None:
    """Give the interpreter what the text needs."""
    import triton.language.extra.libdevice as libdevice  # only the child interprets
    from triton.runtime import interpreter  # only the child interprets
    from triton.runtime.interpreter import InterpreterBuilder, ReduceOps

    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        debug=True, sanitize_overflow=False
    )
    for name in LIBDEVICE:
        setattr(libdevice, name, _elementwise(name))
    libdevice.rint = _elementwise("round")
    InterpreterBuilder.cast_impl = _cast(InterpreterBuilder.cast_impl)
    InterpreterBuilder.create_fp_to_fp = lambda self, src, dst_type, rounding_mode: self.cast_impl(
        src, dst_type
    )
    InterpreterBuilder.create_assert = _asserted
    InterpreterBuilder.create_atomic_rmw = _whole_blocks(InterpreterBuilder.create_atomic_rmw)
    InterpreterBuilder.create_inline_asm = _instruction
    ReduceOps.generic_reduce = _reduce_by_halves
    interpreter._patch_lang_tensor = _with_index(interpreter._patch_lang_tensor)


def _with_index(plain: Any) -> Any:
    """Loop bounds are arrays of one element, which numpy 2.4 no longer converts by itself."""

    def patch(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch


def _elementwise(name: str) -> Any:
    """A libdevice function as torch computes it."""
    import torch  # only the child needs it
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    function = getattr(torch.special if name == "erfc" else torch, name)

    def apply(*args: Any) -> Any:
        arrays = [np.ascontiguousarray(a.handle.data) for a in args]
        data = function(*(torch.from_numpy(a) for a in arrays)).numpy()
        dtype = args[0].type.scalar
        return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))

    return apply


def _cast(plain: Any) -> Any:
    """Conversions to and from the small float types round as torch rounds."""
    import torch  # only the child needs it
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    small = {
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
    }
    bits = {torch.bfloat16: torch.int16}

    def cast(self: Any, src: Any, to: Any) -> Any:
        source, target = src.dtype.scalar, to.scalar
        if source not in small and target not in small:
            return plain(self, src, to)
        tensor = torch.from_numpy(np.ascontiguousarray(src.data).copy())
        if source in small:
            stored = small[source]
            tensor = tensor.view(torch.uint8 if stored.itemsize == 1 else torch.int16)
            tensor = tensor.view(stored).to(torch.float32)
        if target not in small:
            widened = TensorHandle(tensor.numpy(), tl.float32 if source in small else source)
            return widened if target == tl.float32 else plain(self, widened, to)
        if target == tl.float8e5:  # the hardware's conversion stays finite
            tensor = tensor.clamp(-57344, 57344)
        stored = tensor.to(small[target])
        raw = stored.view(bits.get(small[target], torch.uint8)).numpy()
        return TensorHandle(raw.view(np.uint16 if raw.itemsize == 2 else np.uint8), target)

    return cast


def _whole_blocks(plain: Any) -> Any:
    """Atomic operations read their arguments as if they were contiguous; those of a broadcast value are not."""
    from triton.runtime.interpreter import TensorHandle

    def apply(self: Any, op: Any, pointer: Any, *args: Any) -> Any:
        pointer, value, mask = (
            TensorHandle(np.ascontiguousarray(a.data), a.dtype) for a in (pointer, *args[:2])
        )
        return plain(self, op, pointer, value, mask, *args[2:])

    return apply


class _Results(list[Any]):
    """What an instruction gives, as Triton's builder hands it out."""

    get_result = list.__getitem__


def _instruction(
    self: object, text: str, constraints: str, values: list[Any], types: Any, pure: bool, pack: int
) -> _Results:
    """The approximations that the text asks the hardware for, computed in full."""
    from triton.runtime.interpreter import TensorHandle

    instructions = {
        "ex2.approx.ftz.f32": np.exp2,
        "rcp.approx.ftz.f32": np.reciprocal,
    }
    (value,) = values
    return _Results([TensorHandle(instructions[text.split()[0]](value.data), value.dtype)])


def _asserted(self: object, condition: Any, message: str) -> None:
    if not np.all(condition.data):
        raise AssertionError(message)


def _reduce_by_halves(self: Any, input: Any) -> Any:
    """A reduction over a power of two of elements, on whole blocks."""
    import triton.language as tl  # only the child needs it

    axis, arrays = self.axis, [a.handle.data for a in input]
    dtypes = [a.dtype for a in input]
    while arrays[0].shape[axis] > 1:
        halves = [np.split(a, 2, axis=axis) for a in arrays]
        sides = [
            [self.to_tensor(h[k], d) for h, d in zip(halves, dtypes, strict=True)] for k in (0, 1)
        ]
        joined = self.combine_fn.fn(*sides[0], *sides[1])
        parts = joined if isinstance(joined, (tuple, tl.core.tuple)) else (joined,)
        arrays = [p.handle.data for p in parts]
    squeezed = [a if self.keep_dims else np.squeeze(a, axis) for a in arrays]
    return [self.to_tensor(a, d) for a, d in zip(squeezed, dtypes, strict=True)]


if __name__ == "__main__":
    from tests.triton_interpret import _serve as serve  # the classes that pickle names

    serve()

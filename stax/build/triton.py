"""Triton text → cubin, on a machine with or without a GPU. The same job gives the same bytes everywhere: no line
information, no cache, no setting of Triton's from the environment, and the ptxas that Triton bundles."""

# pyright: standard
# Triton has no types.

from __future__ import annotations

import linecache
import re
import subprocess
import tempfile
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import ASTSource, make_backend

from stax.base.errors import BuildTimeout, CompilerFailed
from stax.build.job import Job
from stax.ir.source import Param

PTX_VERSION = 86
# ptxas of CUDA 12.8 for what came before Blackwell, a later one from there on.
FIRST_BLACKWELL = 100
_NVIDIA = Path(triton.__file__).parent / "backends" / "nvidia"
POINTEES = {
    "bool": "i1", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float8_e4m3fn": "u8", "float8_e5m2": "u8",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
}  # fmt: skip
_STRUCT_CODES = {"u64": "Q", "u32": "i", "s64": "q", "s32": "i", "b64": "Q", "b32": "i"}
# Triton's settings and its compiler state belong to the process.
_ONE_AT_A_TIME = threading.Lock()


def compile_triton(job: Job) -> tuple[bytes, dict[str, int | str]]:
    """The cubin and what a launcher must know.

    meta: ``symbol``; ``shared_bytes``; ``num_warps``; ``registers`` and ``spills`` (bytes) a thread; ``arch`` the
    exact architecture of the cubin; ``abi`` struct codes of the parameters in order, of which the last
    ``scratch_params`` are pointers that the launcher passes as 0. Raises CompilerFailed, BuildTimeout.
    """
    with _ONE_AT_A_TIME, _settings():
        ptx, facts = _to_ptx(job)
    cubin, log, arch = _assemble(ptx, job.timeout_s)
    if facts["global_scratch_size"]:
        raise CompilerFailed(
            "the kernel needs scratch memory", found=f"{facts['global_scratch_size']} bytes"
        )
    abi, scratch = _abi(ptx, job.params)
    meta: dict[str, int | str] = {
        "symbol": str(facts["name"]),
        "shared_bytes": int(facts["shared"]),
        "num_warps": int(facts["num_warps"]),
        "arch": arch,
        "abi": abi,
        "scratch_params": scratch,
        **_resources(log),
    }
    return cubin, meta


@contextmanager
def _settings() -> Generator[None]:
    """Every setting of Triton that could reach the bytes, fixed; restored afterwards."""
    with knobs.compilation.scope(), knobs.runtime.scope(), knobs.nvidia.scope():
        knobs.compilation.disable_line_info = True
        knobs.compilation.dump_ir_extract_di_local_variables = False
        knobs.compilation.enable_asan = False
        knobs.compilation.instrumentation_mode = ""
        knobs.runtime.override_arch = None
        knobs.nvidia.dump_nvptx = False
        yield


def _to_ptx(job: Job) -> tuple[str, dict[str, Any]]:
    capability = int(job.target.arch.removeprefix("sm_"))
    target = GPUTarget("cuda", capability, 32)
    backend: Any = make_backend(target)
    facts: dict[str, Any] = {}
    try:
        source = _source(job)
        options = backend.parse_options(_options(job))
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, Language.TRITON)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        functions = backend.get_codegen_implementation(options)
        module: Any = source.make_ir(target, options, functions, backend.get_module_map(), context)
        for name in ("ttir", "ttgir", "llir", "ptx"):
            module = stages[name](module, facts)
    except Exception as error:
        # Broad because Triton raises anything, from TypeError to MLIR's RuntimeError, for a text that it refuses.
        raise CompilerFailed(
            f"triton: {type(error).__name__}", found=str(error), where=job.entry
        ) from error
    return str(module), {"num_warps": options.num_warps, **facts}


def _options(job: Job) -> dict[str, Any]:
    """Rounding as eager's separate kernels round: no contraction to fused multiply-add, no flushing of denormals."""
    config = job.config
    return {
        "num_warps": config.get("num_warps", 4),
        "num_stages": config.get("num_stages", 1),
        "num_ctas": 1,
        "maxnreg": config.get("maxnreg", 0) or None,
        "ptx_version": PTX_VERSION,
        "enable_fp_fusion": False,
        "enable_reflect_ftz": False,
        "debug": "tl.device_assert(" in job.text,
        "sanitize_overflow": False,
        "extern_libs": {"libdevice": str(_NVIDIA / "lib" / "libdevice.10.bc")},
    }


def _source(job: Job) -> ASTSource:
    fn = _function(job.entry, job.text)
    signature = {p.name: _type(p) for p in job.params}
    blocks = {p.name: job.config[p.name] for p in job.params if p.kind == "block"}
    aligned: Mapping[tuple[int], list[list[object]]] = {
        (k,): [["tt.divisibility", 16]] for k, p in enumerate(job.params) if p.divisible16
    }
    return ASTSource(fn=fn, signature=signature, constexprs=blocks, attrs=aligned)


def _type(p: Param) -> str:
    if p.kind == "block":
        return "constexpr"
    return (
        {"int32": "i32", "int64": "i64"}[p.dtype] if p.kind == "size" else f"*{POINTEES[p.dtype]}"
    )


def _function(entry: str, text: str) -> Any:
    """The jitted function of a text. Triton reads a function's source back through its file name: a fixed one."""
    name = f"<{entry}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        module: dict[str, Any] = {"__name__": "stax_kernel"}
        exec(compile(text, name, "exec"), module)
        return module[entry]
    finally:
        del linecache.cache[name]


# -- PTX to machine code


def _assemble(ptx: str, limit_s: float) -> tuple[bytes, str, str]:
    """(cubin, log, architecture). Triton names sm_90a, whose code runs on 9.0 alone; what needs none of its special
    instructions becomes sm_90, which later devices of its major run too."""
    found = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert found, "PTX without a target"
    exact = found.group(1)
    plain = exact.rstrip("a")
    if plain != exact:
        try:
            return *_ptxas(
                ptx.replace(f".target {exact}", f".target {plain}", 1), plain, limit_s
            ), plain
        except CompilerFailed:
            pass  # the exact architecture may take it, or says why not
    return *_ptxas(ptx, exact, limit_s), exact


def _ptxas(ptx: str, arch: str, limit_s: float) -> tuple[bytes, str]:
    """Run ptxas in an empty folder, with names that are the same everywhere. Raises CompilerFailed, BuildTimeout."""
    blackwell = int(re.sub(r"\D", "", arch)) >= FIRST_BLACKWELL
    ptxas = _NVIDIA / "bin" / ("ptxas-blackwell" if blackwell else "ptxas")
    with tempfile.TemporaryDirectory(prefix="stax-ptx-") as folder:
        Path(folder, "kernel.ptx").write_text(ptx, encoding="utf-8")
        command = [
            str(ptxas),
            "-v",
            "--fmad=false",
            f"--gpu-name={arch}",
            "kernel.ptx",
            "-o",
            "kernel.cubin",
        ]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=limit_s,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildTimeout(
                "ptxas ran out of time", expected=f"<= {limit_s} s", where=arch
            ) from error
        if done.returncode != 0:
            raise CompilerFailed(
                f"ptxas: exit status {done.returncode}", found=done.stderr + done.stdout, where=arch
            )
        return Path(folder, "kernel.cubin").read_bytes(), done.stderr + done.stdout


def _resources(log: str) -> dict[str, int | str]:
    """registers and spills from the words of ptxas -v."""
    registers = re.search(r"Used (\d+) registers", log)
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    found: dict[str, int | str] = {"spills": sum(int(n) for n in spilled)}
    if registers:
        found["registers"] = int(registers.group(1))
    return found


def _abi(ptx: str, params: tuple[Param, ...]) -> tuple[str, int]:
    """(struct codes of the kernel's parameters, how many trail the ones we know). Raises CompilerFailed when Triton
    dropped or retyped one of ours."""
    entry = re.search(r"\.visible \.entry \w+\(([^)]*)\)", ptx)
    assert entry, "PTX without an entry"
    found = "".join(_STRUCT_CODES[t] for t in re.findall(r"\.param \.(\w+)", entry.group(1)))
    mine = "".join(
        {"int32": "i", "int64": "q"}[p.dtype] if p.kind == "size" else "Q"
        for p in params
        if p.kind != "block"
    )
    if not found.replace("q", "Q").startswith(mine.replace("q", "Q")):
        raise CompilerFailed(
            "the kernel's parameters are not the expected ones", expected=mine, found=found
        )
    return mine + found[len(mine) :], len(found) - len(mine)

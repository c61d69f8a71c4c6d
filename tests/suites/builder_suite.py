"""What every Builder must do. A test class inherits BuilderSuite and gives a ``workshop``."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psutil
import pytest

from stax.base.observe import Event
from stax.base.target import Target, Toolchain
from stax.build.job import Builder, BuildResult, Built, Failed, Job
from stax.build.toolchain import local_toolchain
from stax.ir.source import Config, Param

CPU = Target("cpu", "x86-64-v2")
SPIN_S = 0.2  # what one spin() of `slow_text` costs g++ 12 on an idle core
TRITON = importlib.util.find_spec("triton") and importlib.util.find_spec("stax.build.triton")

ADD_ONE = """
import triton
import triton.language as tl

@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
"""


@dataclass
class Workshop:
    """A builder with its observer's events. ``processes`` are the roots below which its compilers run."""

    builder: Builder
    events: list[Event]
    processes: Callable[[], Sequence[int]]

    def build(self, *jobs: Job) -> dict[str, BuildResult]:
        """Results by key; each key once."""
        results = list(self.builder.build(jobs))
        by_key = {result.key: result for result in results}
        assert len(by_key) == len(results)
        return by_key

    def one(self, job: Job) -> BuildResult:
        (result,) = self.build(job).values()
        return result

    def count(self, name: str) -> int:
        return sum(event.name == name for event in self.events)

    def compilers(self) -> list[psutil.Process]:
        """The g++ processes at work, cc1plus among them."""
        found: list[psutil.Process] = []
        for pid in self.processes():
            try:
                found += psutil.Process(pid).children(recursive=True)
            except psutil.NoSuchProcess:
                continue
        return [p for p in found if _name(p) in ("cc1plus", "g++")]

    def await_compiler(self, limit_s: float = 60.0) -> psutil.Process:
        """The compiler proper, once it runs."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            for process in self.compilers():
                if _name(process) == "cc1plus":
                    return process
            time.sleep(0.02)
        raise AssertionError(f"no compiler seen in {limit_s:g} s; last events: {self.events[-3:]}")


def worker_of(compiler: psutil.Process) -> psutil.Process:
    """cc1plus ← g++ ← the compiling process."""
    driver = compiler.parent()
    worker = driver.parent() if driver else None
    assert worker is not None
    return worker


@dataclass
class Background:
    """A build in a thread: its results, and the error that ended it."""

    run: Callable[[], object]
    error: list[BaseException] = field(default_factory=list)
    results: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.results.append(self.run())
        except BaseException as error:
            self.error.append(error)

    def result(self, limit_s: float = 120.0) -> object:
        self.thread.join(limit_s)
        assert not self.thread.is_alive(), f"no result within {limit_s:g} s"
        if self.error:
            raise self.error[0]
        return self.results[0]


def cpp_job(text: str, *, timeout_s: float = 120.0, toolchain: Toolchain | None = None) -> Job:
    tools = toolchain or local_toolchain().for_kernel("cpu")
    return Job("cpp", "entry", text, (), Config(), CPU, tools, timeout_s)


def small_text(salt: str, number: int = 0) -> str:
    """A kernel of its own for each (salt, number); builds in 0.1 s."""
    return f'// {salt}\nextern "C" long entry(long x) {{ return x + {number}; }}\n'


def slow_text(salt: str, seconds: float) -> str:
    """A kernel that g++ takes about so long to compile, in little memory."""
    spins = ", ".join(f"spin({i})" for i in range(max(1, round(seconds / SPIN_S))))
    return (
        f"// {salt}\n"
        "constexpr int spin(int n) { int s = n; for (int i = 0; i < 200000; ++i) s ^= i * (n + 1) % 7; return s; }\n"
        f'constexpr int table[] = {{ {spins} }};\nextern "C" int entry(int i) {{ return table[i]; }}\n'
    )


def triton_job() -> Job:
    params = (
        Param("out", "x", "float32", divisible16=True),
        Param("size", "n", "int32"),
        Param("block", "BLOCK"),
    )
    config = Config.of(BLOCK=128, num_warps=4, num_stages=1)
    tools = local_toolchain().for_kernel("cuda")
    return Job("triton", "add_one", ADD_ONE, params, config, Target("cuda", "sm_90"), tools)


def ended(processes: Sequence[psutil.Process], limit_s: float = 10.0) -> bool:
    """Whether they all end soon: what was killed needs a moment to give its memory back."""
    until = time.monotonic() + limit_s
    while any(_name(p) for p in processes if p.is_running()) and time.monotonic() < until:
        time.sleep(0.02)
    return not [p for p in processes if _name(p)]


def _name(process: psutil.Process) -> str:
    """ "" for what has ended, also where nobody has reaped it."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return ""


class BuilderSuite:
    """``salt`` is new for each test, so that no test meets a kernel that another has left in a store or a farm."""

    @pytest.fixture
    def salt(self, request: pytest.FixtureRequest) -> str:
        return f"{request.node.nodeid} {time.time_ns()}"

    def test_cpp_becomes_a_shared_object(self, workshop: Workshop, salt: str):
        result = workshop.one(cpp_job(small_text(salt)))
        assert isinstance(result, Built), result
        assert result.data[:4] == b"\x7fELF" and result.data[16] == 3  # ET_DYN
        assert result.seconds > 0

    @pytest.mark.skipif(not TRITON, reason="needs triton and its builder")
    def test_triton_becomes_a_cubin(self, workshop: Workshop):
        result = workshop.one(triton_job())
        assert isinstance(result, Built), result
        assert (
            result.data[:4] == b"\x7fELF" and int.from_bytes(result.data[18:20], "little") == 190
        )  # EM_CUDA

    def test_the_same_job_gives_the_same_bytes(self, workshop: Workshop, salt: str):
        first, second = cpp_job(small_text(salt)), cpp_job(small_text(salt), timeout_s=99)
        a, b = workshop.one(first), workshop.one(second)
        assert isinstance(a, Built) and isinstance(b, Built)
        assert (a.key, a.data, a.meta) == (b.key, b.data, b.meta)

    def test_every_distinct_key_has_one_result(self, workshop: Workshop, salt: str):
        jobs = [cpp_job(small_text(salt, number % 4)) for number in range(8)]
        results = workshop.build(*jobs)
        assert set(results) == {job.key.digest for job in jobs} and len(results) == 4
        assert workshop.count("build.done") == 4

    def test_no_jobs_no_results(self, workshop: Workshop):
        assert workshop.build() == {}

    def test_a_refused_text_comes_back_with_the_log(self, workshop: Workshop, salt: str):
        text = f'// {salt}\nextern "C" int entry() {{ return undeclared_name; }}\n'
        bad, good = cpp_job(text), cpp_job(small_text(salt))
        results = workshop.build(bad, good)
        refused = results[bad.key.digest]
        assert isinstance(refused, Failed) and refused.kind == "compiler"
        assert "undeclared_name" in refused.log and refused.text == text
        assert isinstance(results[good.key.digest], Built)

    def test_other_tools_are_refused(self, workshop: Workshop, salt: str):
        job = cpp_job(small_text(salt), toolchain=Toolchain(cxx="g++ 99.1"))
        refused = workshop.one(job)
        assert isinstance(refused, Failed) and refused.kind == "toolchain"
        assert "g++ 99.1" in refused.message and job.text == refused.text

    def test_a_compiler_that_never_ends_is_ended(self, workshop: Workshop, salt: str):
        begun = time.monotonic()
        job = cpp_job(slow_text(salt, 500), timeout_s=1.0)
        result = workshop.one(job)
        assert isinstance(result, Failed) and result.kind == "timeout", result
        assert time.monotonic() - begun < 30
        assert ended(workshop.compilers())
        assert isinstance(workshop.one(cpp_job(small_text(salt))), Built)

    def test_a_killed_compiling_process_is_replaced(self, workshop: Workshop, salt: str):
        work = Background(lambda: workshop.one(cpp_job(slow_text(salt, 1.0))))
        compiler = workshop.await_compiler()
        worker_of(compiler).kill()
        assert isinstance(work.result(), Built)
        assert ended([compiler])

    def test_a_killed_compiler_is_tried_again(self, workshop: Workshop, salt: str):
        """As when memory runs out: cc1plus is the largest process, so it is the one to go."""
        work = Background(lambda: workshop.one(cpp_job(slow_text(salt, 1.0))))
        workshop.await_compiler().kill()
        result = work.result()
        assert isinstance(result, Built), result

    def test_closing_early_cancels_what_has_not_begun(self, workshop: Workshop, salt: str):
        jobs = [cpp_job(slow_text(f"{salt}{number}", 0.2)) for number in range(40)]
        iterator = workshop.builder.build(jobs)
        next(iterator)
        iterator.close()  # type: ignore[attr-defined]
        begun = time.monotonic()
        assert isinstance(workshop.one(cpp_job(small_text(salt))), Built)
        assert time.monotonic() - begun < 5, "the forty were built first"

    def test_threads_may_share_a_builder(self, workshop: Workshop, salt: str):
        def build(thread: int) -> set[str]:
            jobs = [cpp_job(small_text(salt, number)) for number in (thread, thread + 1)]
            return {r.key for r in workshop.builder.build(jobs) if isinstance(r, Built)}

        with ThreadPoolExecutor(4) as pool:
            built = list(pool.map(build, range(4)))
        assert [len(keys) for keys in built] == [2, 2, 2, 2]
        assert len(set().union(*built)) == 5

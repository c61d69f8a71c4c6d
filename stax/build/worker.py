"""The child process of a LocalBuilder: a job in, a result out."""

from __future__ import annotations

import sys

from stax.build.compile import compile_job
from stax.build.serve import Answer, serve
from stax.build.toolchain import local_toolchain
from stax.build.wire import pack_result, unpack_job


def main(scratch: str, cxx: str) -> None:
    """Compile until the pipe ends."""

    def prepare() -> Answer:
        toolchain = local_toolchain(cxx)
        return lambda body: pack_result(compile_job(unpack_job(body), cxx=cxx, toolchain=toolchain))

    serve(scratch, prepare)


if __name__ == "__main__":
    main(*sys.argv[1:])

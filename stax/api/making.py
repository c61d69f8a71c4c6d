"""From a callable and example arguments to a published artifact. Imported only when something is compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from stax.api.session import Session
from stax.artifact.keys import Key
from stax.base.observe import Event, fan_out, ignore
from stax.base.options import Options
from stax.base.target import Target
from stax.base.version import VERSION
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.pipeline.kept import publish
from stax.pipeline.kernels import OnStoreError
from stax.pipeline.stages import Product, Workshop, compile_captured
from stax.runtime.request import request_key
from stax.store.forms import Record
from stax.store.records import Records


def key_of(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool,
    options: Options,
    target: Target,
) -> Key:
    """The request key of a call, under this version of Stax."""
    return request_key(
        fn,
        args,
        kwargs,
        dynamic=dynamic,
        options=options,
        target=target,
        stax_version=VERSION,
    )


class Maker:
    """Runs the stages with one session's store, builder and toolchain."""

    def __init__(self, session: Session, records: Records, on_store_error: OnStoreError) -> None:
        self.session = session
        self.records = records
        self.on_store_error = on_store_error

    def make(
        self,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        dynamic: bool,
        options: Options,
        target: Target,
        observe: Callable[[Event], None] = ignore,
    ) -> Product:
        """Trace, lower, schedule, emit, build, assemble. Raises CaptureError, MissingRule, BuildError."""
        observer = fan_out(self.session.observer, observe)
        began = time.perf_counter()
        captured = trace(
            fn, args, dict(kwargs), dynamic=dynamic, target=target, decompositions=decompositions()
        )
        observer(Event("stage.trace", {"seconds": time.perf_counter() - began}))
        shop = Workshop(
            records=self.records,
            builder=self.session.builder,
            toolchain=self.session.toolchain,
            observer=observer,
            on_store_error=self.on_store_error,
            timeout_s=self.session.environment.build_timeout_s,
            watch=self.session.dumps.watch,
            measurer=None if options.tune == "off" else self.session.measurer(target),
        )
        return compile_captured(captured, target, options, shop, origin_of(fn))

    def publish(self, product: Product, key: Key) -> tuple[Record, dict[str, int]]:
        """Publish an artifact under its request key; returns the record and its blobs' sizes. Raises StoreError."""
        record, sizes = publish(self.records, product.artifact, key, product.blobs)
        self.session.observer(
            Event("record.published", {"key": key.digest, "bytes": sum(sizes.values())})
        )
        return record, sizes


def origin_of(fn: Any) -> str:
    """What was compiled, by name; no path, no id."""
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    return f"{named.__module__}:{named.__qualname__}"

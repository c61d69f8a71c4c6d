"""What a compile, warm, pull or load works with, opened from arguments and the environment: store, builder, toolchain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from stax.api.dumps import Dumps
from stax.base.errors import OptionError, StoreError
from stax.base.observe import Event, Observer, fan_out, ignore
from stax.base.options import Environment
from stax.base.target import Target, Toolchain
from stax.build.job import Builder
from stax.store.base import Store
from stax.store.layers import Counters as StoreCounters
from stax.store.open import open_store
from stax.store.records import Records

if TYPE_CHECKING:
    from stax.tune.isolate import IsolatedMeasurer, Measurer

MODES = ("auto", "require-hit", "offline")

# NOTE: named, not imported: stax never depends on the farm, and a local compile does not load Ray.
FARM_BUILDER = "farm.client:RayBuilder"


@dataclass
class Counters:
    """Counts of one session, by event name; ``misses`` are the reasons in order of arrival."""

    counts: dict[str, int]
    bytes: dict[str, int]
    misses: list[str]
    lock: threading.Lock

    @staticmethod
    def new() -> Counters:
        return Counters({}, {}, [], threading.Lock())

    def __call__(self, event: Event) -> None:
        with self.lock:
            count = event.fields.get("count", 1)
            self.counts[event.name] = self.counts.get(event.name, 0) + (
                count if isinstance(count, int) else 1
            )
            size = event.fields.get("bytes", 0)
            if isinstance(size, int) and size and not event.name.startswith("store."):
                self.bytes[event.name] = self.bytes.get(event.name, 0) + size
            if event.name == "miss":
                self.misses.append(str(event.fields.get("reason", "")))


class Session:
    """Opens each part when it is first needed; safe to share between threads. ``farm_only``: a farm that can not take the
    work is an error (FarmError) instead of building here."""

    def __init__(
        self,
        *,
        store: str | Store | None = None,
        builder: Builder | None = None,
        mode: str | None = None,
        observer: Observer | None = None,
        environment: Environment | None = None,
        farm_only: bool = False,
        measurer: Measurer | None = None,
    ) -> None:
        self.environment = environment or Environment.read()
        self.mode = mode or self.environment.mode
        if self.mode not in MODES:
            raise OptionError("bad mode", expected=" | ".join(MODES), found=repr(self.mode))
        self.counters = Counters.new()
        self.store_counters = StoreCounters()
        self.dumps = Dumps(self.environment.debug, self.environment.dump_dir)
        told = (self.counters, self.store_counters, self.dumps.observe, observer or ignore)
        self.observer = fan_out(*told)
        self._store = store
        self._builder = builder
        self._own_builder = builder is None
        self._farm_only = farm_only
        self._given_measurer = measurer
        self._measurers: dict[str, IsolatedMeasurer | None] = {}
        self._fallback: Builder | None = None
        self._records: Records | None = None
        self._toolchain: Toolchain | None = None
        self._lock = threading.RLock()

    @property
    def records(self) -> Records:
        """Records of this session's tier. Raises OptionError for a bad store URL."""
        with self._lock:
            if self._records is None:
                self._records = Records(self._open_store(), self.environment.tier, self.observer)
            return self._records

    @property
    def published(self) -> Records:
        """What other machines see: the records without the local tier, for those who publish."""
        return replace(self.records, store=self.records.store.shared)

    def _open_store(self) -> Store:
        env = self.environment
        if self._store is not None and not isinstance(self._store, str):
            return self._store
        url = "" if self.mode == "offline" else (self._store or env.store)
        return open_store(
            url, cache_dir=env.cache_dir, s3_endpoint=env.s3_endpoint, observer=self.observer
        )

    @property
    def builder(self) -> Builder:
        """The handed-in builder, else the farm that STAX_FARM names, else a pool of local processes."""
        with self._lock:
            if self._builder is None:
                self._builder = self._open_builder()
            return self._builder

    def _open_builder(self) -> Builder:
        env = self.environment
        # NOTE: on use: a machine that only pulls never starts a builder.
        from stax.build.local import LocalBuilder

        local = LocalBuilder(env.jobs, env.build_timeout_s, env.cxx, observe=self.observer)
        if not env.farm:
            return local
        self._fallback = None if self._farm_only else local
        module, _, name = FARM_BUILDER.partition(":")
        make = cast("Callable[..., Builder]", getattr(import_module(module), name))
        return make(
            env.farm,
            self.records.store.url,
            tier=env.tier,
            s3_endpoint=env.s3_endpoint,
            cache_dir=env.cache_dir,
            timeout_s=env.build_timeout_s,
            fallback=self._fallback,
            observe=self.observer,
        )

    @property
    def toolchain(self) -> Toolchain:
        """This machine's compilers; asked once (it runs the C++ compiler)."""
        with self._lock:
            if self._toolchain is None:
                from stax.build.toolchain import local_toolchain  # runs g++: never on a pull

                self._toolchain = local_toolchain(self.environment.cxx)
            return self._toolchain

    def measurer(self, target: Target) -> Measurer | None:
        """The handed-in measurer, else one of this machine's GPUs that has the target's architecture; None without one."""
        if self._given_measurer is not None or target.kind != "cuda":
            return self._given_measurer
        with self._lock:
            if target.arch not in self._measurers:
                # NOTE: on use, as the builder.
                from stax.tune.isolate import open_measurer

                locks = self.environment.cache_dir / "locks"
                self._measurers[target.arch] = open_measurer(target.arch, locks, self.observer)
            return self._measurers[target.arch]

    def degrade(self, error: StoreError) -> None:
        """A cache never fails its caller: count the trouble and go on."""
        self.observer(Event("store.degraded", {"error": str(error)}))

    def close(self) -> None:
        """End the builder and the measurers this session opened itself."""
        with self._lock:
            if self._own_builder and self._builder is not None:
                self._builder.close()
                self._builder = None
            if self._fallback is not None:
                self._fallback.close()
                self._fallback = None
            for measurer in self._measurers.values():
                if measurer is not None:
                    measurer.close()
            self._measurers.clear()

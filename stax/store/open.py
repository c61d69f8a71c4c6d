"""From a URL to a Store with the layers it needs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from stax.base.errors import OptionError
from stax.base.observe import Observer, ignore
from stax.store.base import Store
from stax.store.layers import Breaker, Metered, Retrying, Tiered, Verified

_LOCAL_LEVEL = 1  # zstd level of the local tier: it is written on the way to a first answer


@dataclass(frozen=True)
class Scheme:
    """``opener`` is "module:function" of (url, endpoint); it is imported when a URL first needs it."""

    opener: str
    form: str
    remote: bool


# NOTE: imported on use: boto3 and its first client cost 0.32 s, which users of file:// do not pay.
SCHEMES: Mapping[str, Scheme] = {
    "memory": Scheme("stax.store.memory:open_memory", "memory:", remote=False),
    "file": Scheme("stax.store.file:open_file", "file:///absolute/folder", remote=False),
    "s3": Scheme("stax.store.s3:open_s3", "s3://bucket/prefix[?endpoint=URL]", remote=True),
}


def open_store(
    url: str,
    *,
    cache_dir: Path | str | None = None,
    s3_endpoint: str = "",
    observer: Observer = ignore,
) -> Store:
    """The store that ``url`` names, verified and metered; raises OptionError for a URL of no known form.

    A remote store is retried, not asked again for a while when it is down, and, with ``cache_dir``,
    put behind a local tier in that folder. An empty URL means the local tier alone. ``observer``
    receives every event; give it a :class:`Counters` to have them added up.
    """
    if not url and cache_dir is not None:
        url = _folder_url(cache_dir)
    scheme = SCHEMES.get(url.partition(":")[0])
    if scheme is None or ":" not in url:
        forms = " | ".join(s.form for s in SCHEMES.values())
        raise OptionError("bad store URL", expected=forms, found=repr(url))
    inner = _opener(scheme)(url, s3_endpoint if scheme.remote else "")
    if not scheme.remote:
        return _local(inner, observer)
    remote = _remote(inner, observer)
    if cache_dir is None:
        return remote
    local = _opener(SCHEMES["file"])(_folder_url(cache_dir), "")
    return Tiered(_local(local, observer), remote, observer)


def _local(inner: Store, observer: Observer) -> Store:
    return Metered(Verified(inner, _LOCAL_LEVEL, observer), "local", observer)


def _remote(inner: Store, observer: Observer) -> Store:
    # Seeded by the system: machines that fail together must not come back together.
    retrying = Retrying(inner, random.Random(), observer=observer)
    breaker = Breaker(retrying, observer=observer)
    return Metered(Verified(breaker, observer=observer), "remote", observer)


def _opener(scheme: Scheme) -> Callable[[str, str], Store]:
    module, _, name = scheme.opener.partition(":")
    return cast("Callable[[str, str], Store]", getattr(import_module(module), name))


def _folder_url(folder: Path | str) -> str:
    return Path(folder).expanduser().absolute().as_uri()

"""Names of a store: builds them, checks them, and knows what each family allows.

cas/<sha256>                       blobs, named by the digest of the raw bytes
act/<tier>/<kind>/<key>/<variant>  small immutable records
bundle/<sha256>                    manifests, named by the digest of the raw bytes
tag/<tier>/<name>                  the only mutable objects
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stax.base.errors import Corrupt, OptionError, Refused

# A segment starts with no dot, so neither "." nor ".." nor a hidden file is a name; 128 characters
# keep the longest name (520) under the shortest key limit met (900 bytes, SeaweedFS).
_SEGMENT = r"[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,127}"
_DIGEST = r"[0-9a-f]{64}"
_PREFIX = re.compile(r"([A-Za-z0-9_@-][A-Za-z0-9._@-]*/)*([A-Za-z0-9_@-][A-Za-z0-9._@-]*)?")
_MAX_NAME = 600


@dataclass(frozen=True)
class Family:
    """What the names under one first segment allow. ``addressed``: the name is the digest of the raw bytes."""

    name: str
    pattern: re.Pattern[str]
    max_bytes: int
    addressed: bool
    slashes: int

    @property
    def stored_limit_bytes(self) -> int:
        """Upper bound of the stored form: incompressible bytes grow by less than 1/128 + 1 KiB."""
        return self.max_bytes + self.max_bytes // 128 + 1024


def _family(name: str, segments: list[str], max_bytes: int, addressed: bool) -> Family:
    pattern = re.compile("/".join([name, *segments]))
    return Family(name, pattern, max_bytes, addressed, len(segments))


FAMILIES = {
    f.name: f
    for f in (
        _family("cas", [_DIGEST], 2 << 30, True),
        _family("act", [_SEGMENT] * 4, 4 << 20, False),
        _family("bundle", [_DIGEST], 64 << 20, True),
        _family("tag", [_SEGMENT] * 2, 4096, False),
    )
}


def cas(digest: str) -> str:
    """Name of the blob whose raw bytes have this sha256."""
    return checked(f"cas/{digest}")


def act(tier: str, kind: str, key: str, variant: str) -> str:
    """Name of a record."""
    return checked(f"act/{tier}/{kind}/{key}/{variant}")


def act_prefix(tier: str, kind: str, key: str) -> str:
    """What the names of all variants of a key begin with."""
    return act(tier, kind, key, "x").removesuffix("x")


def bundle(digest: str) -> str:
    """Name of the manifest whose raw bytes have this sha256."""
    return checked(f"bundle/{digest}")


def tag(tier: str, name: str) -> str:
    """Name of a tag."""
    return checked(f"tag/{tier}/{name}")


def is_digest(text: str) -> bool:
    """Whether a text reads as the name of a blob or bundle."""
    return re.fullmatch(_DIGEST, text) is not None


def check_tag(tier: str, name: str) -> None:
    """Raises OptionError for what a person can not call a tag."""
    if not is_name(f"tag/{tier}/{name}") or is_digest(name):
        raise OptionError(
            "bad tag",
            expected="1 to 128 of A-Z a-z 0-9 . _ @ -, that do not start with a dot and are no digest",
            found=repr(name[:200]),
        )


def tag_prefix(tier: str) -> str:
    """What the names of all tags of a tier begin with."""
    return tag(tier, "x").removesuffix("x")


def checked(name: str) -> str:
    """The name itself. Raises Refused when it is none of the four kinds."""
    family(name)
    return name


def family(name: str) -> Family:
    """The family of a name. Raises Refused when it is none of the four kinds."""
    found = FAMILIES.get(name.partition("/")[0])
    if found is None or len(name) > _MAX_NAME or not found.pattern.fullmatch(name):
        raise Refused(
            "bad name",
            expected="cas/<64 hex>, act/<tier>/<kind>/<key>/<variant>, bundle/<64 hex> or tag/<tier>/<name>",
            found=repr(name[:_MAX_NAME]),
            hint="segments are 1 to 128 of A-Z a-z 0-9 . _ @ - and do not start with a dot",
        )
    return found


def is_name(name: str) -> bool:
    """Whether a store may hold this name: how listings drop foreign files."""
    found = FAMILIES.get(name.partition("/")[0])
    return found is not None and len(name) <= _MAX_NAME and bool(found.pattern.fullmatch(name))


def object_family(name: str) -> Family:
    """The family of a name that get, put and heal accept. Raises Refused for a tag."""
    found = family(name)
    if found.name == "tag":
        raise Refused("a tag is not an object", found=repr(name), hint="use get_tag and swap")
    return found


def tag_family(name: str) -> Family:
    """The family of a tag. Raises Refused for any other name."""
    found = family(name)
    if found.name != "tag":
        raise Refused("only tags can be swapped", expected="tag/<tier>/<name>", found=repr(name))
    return found


def check_prefix(prefix: str) -> str:
    """The prefix itself. Raises Refused when no name can begin with it."""
    if len(prefix) > _MAX_NAME or not _PREFIX.fullmatch(prefix):
        raise Refused(
            "bad prefix",
            expected="the beginning of a name",
            found=repr(prefix[:_MAX_NAME]),
            hint="for example act/dev/kernel/",
        )
    return prefix


def is_one_folder(prefix: str) -> bool:
    """Whether all names with this prefix differ only after their last slash."""
    found = FAMILIES.get(prefix.partition("/")[0])
    return found is not None and prefix.count("/") == found.slashes


def check_written(size_bytes: int, limit_bytes: int, where: str) -> None:
    """Raises Refused when the bytes to store are more than their family allows."""
    if size_bytes > limit_bytes:
        raise Refused(
            "too large",
            expected=f"at most {limit_bytes} bytes",
            found=f"{size_bytes} bytes",
            where=where,
        )


def check_read(size_bytes: int, limit_bytes: int, where: str) -> None:
    """Raises Corrupt when the stored bytes are more than any writer of theirs may store."""
    if size_bytes > limit_bytes:
        raise Corrupt(
            "larger than its kind allows",
            expected=f"at most {limit_bytes} bytes",
            found=f"{size_bytes} bytes",
            where=where,
        )

"""The waiting jobs: first come, first served within a client, and clients take turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator

Lane = OrderedDict[str, None]


class FairQueue:
    """Names in lanes, one a (client, needs). Every operation is O(1) in the number of names."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, dict[str, Lane]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, client: str, needs: str, name: str, *, first: bool = False) -> None:
        """Append, or put ``first`` in its lane: a job that was begun once does not wait again."""
        lane = self._clients.setdefault(client, {}).setdefault(needs, OrderedDict())
        lane[name] = None
        lane.move_to_end(name, last=not first)
        self._count += 1

    def pop(self, offers: Collection[str]) -> str | None:
        """The next name that one of ``offers`` can serve, of the client that has waited longest for a turn."""
        for client, lanes in self._clients.items():
            needs = next((n for n in lanes if n in offers), None)
            if needs is not None:
                name = next(iter(lanes[needs]))
                self.remove(client, needs, name)
                if client in self._clients:
                    self._clients.move_to_end(client)
                return name
        return None

    def remove(self, client: str, needs: str, name: str) -> None:
        """Take out one name that is there."""
        lanes = self._clients[client]
        del lanes[needs][name]
        self._count -= 1
        if not lanes[needs]:
            del lanes[needs]
        if not lanes:
            del self._clients[client]

    def needs(self) -> set[str]:
        """The labels that some waiting job needs."""
        return {needs for lanes in self._clients.values() for needs in lanes}

    def names(self, needs: str) -> Iterator[str]:
        """The waiting names with this label."""
        for lanes in self._clients.values():
            yield from lanes.get(needs, ())

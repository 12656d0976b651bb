"""Programs of ranks played side by side, each node as soon as what it needs is done."""

from __future__ import annotations

from collections import defaultdict

from meshwright.frameworks.chakra.wire import Collective, TraceMessage


class Replay:
    """A collective runs when all members of its group have come to it; messages need both ends."""

    def __init__(self, programs, groups) -> None:
        self.groups = groups
        self.nodes = {(rank, node.number): node for rank, p in enumerate(programs) for node in p}
        self.missing = {key: len(set(node.needs)) for key, node in self.nodes.items()}
        self.users = defaultdict(list)
        self.order = defaultdict(list)
        for (rank, number), node in self.nodes.items():
            for need in node.needs:
                self.users[rank, need].append((rank, number))
            if isinstance(node, Collective):
                self.order[node.group, rank].append((rank, number))
        self.turn = dict.fromkeys(groups, 0)
        self.arrived = defaultdict(set)
        self.sent = defaultdict(int)
        self.left = set(self.nodes)

    def run(self):
        """Play until nothing moves, and return the nodes that never ran."""
        ready = [key for key, count in self.missing.items() if not count]
        while ready:
            for key in self._played(ready.pop()):
                self.left.discard(key)
                for user in self.users[key]:
                    self.missing[user] -= 1
                    if not self.missing[user]:
                        ready.append(user)
        assert not any(self.sent.values()), "one end of a message is missing"
        return [self.nodes[key] for key in self.left]

    def _played(self, key):
        """Return the nodes that run now that this one may."""
        node = self.nodes[key]
        if isinstance(node, Collective):
            return self._met(node.group, key)
        if isinstance(node, TraceMessage):
            return self._matched(node, key)
        return [key]

    def _met(self, group, key):
        """Return the collectives of a group whose members are all there, in their order."""
        self.arrived[group].add(key)
        found = []
        while all(self._next(group, rank) in self.arrived[group] for rank in self.groups[group]):
            together = [self._next(group, rank) for rank in self.groups[group]]
            alike = {(n.kind, n.num_bytes, n.group_size) for n in map(self.nodes.get, together)}
            assert len(alike) == 1
            self.arrived[group] -= set(together)
            self.turn[group] += 1
            found += together
        return found

    def _next(self, group, rank):
        listed, turn = self.order[group, rank], self.turn[group]
        return listed[turn] if turn < len(listed) else None

    def _matched(self, node, key):
        """Return both ends of a message once both are there."""
        ends = (node.source, node.destination, node.tag, node.num_bytes)
        other = self.sent.pop(ends, None)
        if other is None:
            self.sent[ends] = key
            return []
        assert self.nodes[other].is_send != node.is_send
        return [key, other]

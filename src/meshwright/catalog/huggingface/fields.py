"""A configuration after its fields were checked one by one: typed values, all faults at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.huggingface.harmless import FIXED, is_harmless
from meshwright.catalog.huggingface.keys import Key, shown


class Fields:
    """The fields of one configuration, read by the keys of its family.

    Reading collects faults and never stops at the first; ``finish`` raises them all.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        keys: Mapping[str, Key],
        *,
        family: str,
        origin: str = "",
        prefix: str = "",
        harmless: Iterable[str] = (),
    ) -> None:
        self.family = family
        self.origin = origin
        self.prefix = prefix
        self.faults: list[Fault] = []
        self.defaults: dict[str, Any] = {}
        """Fields that are not stated, and the documented default; None: derived, or absent."""
        self._values: dict[str, Any] = {}
        self._stated: dict[str, str] = {}
        self._read_all(config, keys)
        self._refuse_unknown(config, keys, frozenset(harmless))

    def _read_all(self, config: Mapping[str, Any], keys: Mapping[str, Key]) -> None:
        """Read each key; those that repeat another field come last."""
        for name, key in sorted(keys.items(), key=lambda item: bool(item[1].same_as)):
            stated = [other for other in (name, *key.also) if other in config]
            if not stated:
                self._take_default(name, key)
                continue
            value, self._stated[name] = config[stated[0]], stated[0]
            complaint = key.complaint(value)
            if complaint:
                self.fault(stated[0], complaint)
            elif value is None and key.same_as:
                self._take_default(name, key)
            elif key.kind == "section":
                self._read_section(name, value, key)
            else:
                self._values[name] = value
            for other in stated[1:]:
                if config[other] != value:
                    self.fault(other, f"is {shown(config[other])}, but {stated[0]} is {value!r}")

    def _take_default(self, name: str, key: Key) -> None:
        if key.is_required:
            also = f" (or {', '.join(key.also)})" if key.also else ""
            self.fault(name, f"missing{also}; {self.family} needs {key.expected}")
        elif key.same_as:
            if key.same_as in self._values:
                self._values[name] = self.defaults[name] = self._values[key.same_as]
        elif key.kind == "section":
            self._read_section(name, {}, key)
        else:
            self._values[name] = self.defaults[name] = key.default

    def _read_section(self, name: str, config: Mapping[str, Any], key: Key) -> None:
        """Read a nested section; its values are found as ``section.field``."""
        inner = Fields(config, key.section, family=self.family, prefix=f"{self.prefix}{name}.")
        self.faults += inner.faults
        self._values |= {f"{name}.{part}": value for part, value in inner._values.items()}
        self.defaults |= {f"{name}.{part}": value for part, value in inner.defaults.items()}

    def _refuse_unknown(
        self, config: Mapping[str, Any], keys: Mapping[str, Key], harmless: frozenset[str]
    ) -> None:
        known = {name for key, value in keys.items() for name in (key, *value.also)}
        for name in config:
            if name in known or name in harmless:
                continue
            if not isinstance(name, str):
                self.fault(shown(name), "the name of a field must be a text")
            elif name in FIXED:
                self._require_fixed(name, config[name])
            elif not is_harmless(name):
                self.fault(
                    name,
                    f"unknown to {self.family}, and it might change the structure",
                    nearest(name, known) if known else "",
                )

    def _require_fixed(self, name: str, value: Any) -> None:
        """Record a fault where a field that the family does not read would change it."""
        if not any(type(value) is type(known) and value == known for known in FIXED[name]):
            allowed = " or ".join(repr(known) for known in FIXED[name])
            self.fault(name, f"found {shown(value)}; for {self.family} only {allowed} is modelled")

    def fault(self, name: str, message: str, fix: str = "") -> None:
        """Record one thing wrong with a field."""
        self.faults.append(Fault(f"{self.prefix}{self.stated(name)}", message, fix))

    def stated(self, name: str) -> str:
        """Return the name under which the configuration states a field."""
        return self._stated.get(name, name)

    def require(self, holds: bool, name: str, message: str, fix: str = "") -> None:
        """Record a fault where a rule between fields does not hold."""
        if not holds:
            self.fault(name, message, fix)

    def finish(self) -> None:
        """Raise all faults found so far."""
        if self.faults:
            raise SpecError(self.faults, origin=self.origin)

    def count(self, name: str) -> int:
        """Return a whole number that is there."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def count_or_none(self, name: str) -> int | None:
        """Return a whole number, or None where the configuration has none."""
        return None if self._values[name] is None else self.count(name)

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        return bool(self._values[name])

    def text(self, name: str) -> str:
        """Return a text."""
        return str(self._values[name])

    def counts_or_none(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, or None."""
        value = self._values[name]
        return None if value is None else list(value)

    def texts_or_none(self, name: str) -> list[str] | None:
        """Return a list of texts, or None."""
        value = self._values[name]
        return None if value is None else list(value)

    def divides(self, divisor: str, name: str) -> None:
        """Record a fault where one field is no multiple of another."""
        whole, part = self.count(name), self.count(divisor)
        self.require(
            whole % part == 0,
            name,
            f"{whole} is not divisible by {self.stated(divisor)} {part}",
            f"the nearest multiple is {max(1, round(whole / part)) * part}",
        )

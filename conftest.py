"""Settings of all tests: examples have no deadline, as machines under load are slow."""

from contextlib import suppress

with suppress(ImportError):  # tests of frameworks and in a browser do without it
    from hypothesis import settings

    settings.register_profile("meshwright", deadline=None)
    settings.load_profile("meshwright")

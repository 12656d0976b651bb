"""Settings of all tests: examples have no deadline, as machines under load are slow.

A law is tried on 25 drawn examples by day, and on 500 by night.
"""

from contextlib import suppress

with suppress(ImportError):  # tests of frameworks and in a browser do without it
    from hypothesis import settings

    settings.register_profile("meshwright", deadline=None, max_examples=25)
    settings.register_profile("nightly", deadline=None, max_examples=500)
    settings.load_profile("meshwright")

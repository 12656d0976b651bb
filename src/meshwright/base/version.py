"""Which version of the package answers."""


def version() -> str:
    """Return the version of this package."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("meshwright")
    except PackageNotFoundError:
        return "source"

"""Wrap functions of the method, so that a trace, a dump or a walk sees from outside what they compute."""
from contextlib import contextmanager


@contextmanager
def watching(owner, name: str, heard):
    """Within the block, every call of owner.name is followed by heard(result, *arguments). Results do not change."""
    function = getattr(owner, name)

    def watched(*arguments, **named):
        result = function(*arguments, **named)
        heard(result, *arguments, **named)
        return result

    setattr(owner, name, watched)
    try:
        yield
    finally:
        setattr(owner, name, function)

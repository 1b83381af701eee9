"""How a trace, a dump or a walk sees what the method computes: from outside, by wrapping its functions."""
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

"""Every place of a JSON value, and the value with another one there."""


def places_in(value, place=()):
    """Yield the place of *value*, which is *place*, and of every value in it.

    A place is a tuple of keys and indices, from the outside to the inside.
    """
    yield place
    parts = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    for key, part in parts:
        yield from places_in(part, (*place, key))


def put(value, place, new):
    """*value* with *new* at *place*; what is around it is copied."""
    if not place:
        return new
    copy = value.copy()
    copy[place[0]] = put(copy[place[0]], place[1:], new)
    return copy

"""Float operations of the compiled module, written in NumPy with the same bits."""

import numpy as np


def exponential(x):
    """e^x by the polynomial of elementary.hpp, as soft caps use it."""
    f = np.float32
    clamped = np.clip(x, f(-87), f(87))
    # Adding and subtracting 1.5 * 2^23 rounds to an integer; ln 2 is split into two parts.
    n = (clamped * f(1.44269504) + f(12582912)) - f(12582912)
    r = (clamped - n * f(0.693359375)) + n * f(2.12194440e-4)
    p = f(1.9875691500e-4)
    for term in (
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    ):
        p = p * r + f(term)
    return np.ldexp(p * r * r + r + f(1), n.astype(np.int32))


def power(x):
    """2^x by the polynomial of elementary.hpp, at least 2^-100."""
    f = np.float32
    clamped = np.maximum(x, f(-100))
    n = np.rint(clamped)
    r = clamped - n
    p = f(1.326472731e-3)
    for term in (9.671512991e-3, 5.550733581e-2, 2.402224243e-1, 6.931470037e-1, 1.0):
        p = p * r + f(term)
    return np.ldexp(p, n.astype(np.int32))


def power_or_zero(x):
    """2^x as :func:`power`, but 0 below 2^-100."""
    return np.where(x < -100, np.float32(0), power(x))


def in_lanes(x):
    """The sum of 64 numbers in the order in which the C++ class `Sixteen` adds them."""
    lanes = ((x[:16] + x[16:32]) + x[32:48]) + x[48:]
    for n in (8, 4, 2, 1):
        lanes = lanes[:n] + lanes[n:]
    return lanes[0]

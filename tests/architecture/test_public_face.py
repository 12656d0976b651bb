"""The public face stays small; each new name in it is a design question."""

import meshwright

PUBLIC_NAMES = 25


def test_the_public_face_is_small():
    assert len(meshwright.__all__) <= PUBLIC_NAMES

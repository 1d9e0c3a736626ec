"""Finding operators: a name that is unknown."""

import pytest

from tilewright.seeds.catalogue import UnknownOperator, families, load_operator


def test_an_unknown_family_is_told_what_there_is():
    with pytest.raises(UnknownOperator, match=f"known family .*{families()[0]}"):
        load_operator("nothing/row")

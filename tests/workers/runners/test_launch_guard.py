"""What ``launch`` may do beside its kernels, and that writes beside its tensors are seen. No kernel runs here."""

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


from tilewright.workers.runners.triton.launch_guard import (  # noqa: E402
    KEPT,
    POISON,
    Canaries,
    ForeignWork,
    LaunchGuard,
    OutsideWrite,
    poisons,
)

FOREIGN = {
    "cast": lambda x: x.to(torch.float16),
    "product": lambda x: x.transpose(0, 1).dot(x),
    "sum": lambda x: x.sum(),
    "copy by reshape": lambda x: x.transpose(0, 1).reshape(-1),
    "write by index": lambda x: x.view(-1).__setitem__(0, x[1, 1]),
    "branch on data": lambda x: 1 if x[0, 0] > 0 else 2,
    "truth of a value": lambda x: bool(x[0, 0]),
    "zeros of a value": lambda x: torch.zeros_like(x) + 1,
}
ALLOWED = {
    "views": lambda x: x.view(-1)[3:9].reshape(2, 3).transpose(0, 1).unsqueeze(0).squeeze(0),
    "fresh": lambda x: (torch.empty(3, 5), torch.empty_like(x), torch.zeros((2, 2), dtype=torch.int32)),
    "reset": lambda x: torch.empty(4, 4).zero_(),
    "nothing": lambda x: torch.empty(0, 7),
}


@pytest.mark.parametrize("canaries", [None, Canaries()], ids=["ahead", "on a device"])
@pytest.mark.parametrize("work", FOREIGN.values(), ids=FOREIGN)
def test_foreign_work_raises(work, canaries):
    with pytest.raises(ForeignWork, match="work outside the kernel"), LaunchGuard(canaries):
        work(torch.ones(4, 4))


@pytest.mark.parametrize("work", ALLOWED.values(), ids=ALLOWED)
def test_tensors_and_views_are_allowed(work):
    x = torch.ones(4, 4)
    plain = work(x)
    with LaunchGuard(canaries := Canaries()):
        guarded = work(x)
    canaries.inspect()
    pairs = [*zip(plain, guarded, strict=True)] if isinstance(plain, tuple) else [(plain, guarded)]
    for one, other in pairs:
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def test_fresh_memory_is_not_a_number_and_zeros_are_zero():
    with LaunchGuard(Canaries(0xFF)):
        fresh, zeros = torch.empty(8), torch.zeros(8)
    assert bool(fresh.isnan().all()) and not bool(zeros.any())


@pytest.mark.parametrize("place", [-1, 8, 8 + 4000, -4000])
def test_a_write_beside_a_tensor_is_seen(place):
    canaries = Canaries()
    made = canaries.copy(torch.arange(8, dtype=torch.float32))
    canaries.inspect()
    assert made.tolist() == list(range(8))
    made.as_strided((1,), (1,), made.storage_offset() + place).fill_(0.0)
    with pytest.raises(OutsideWrite):
        canaries.inspect()


@pytest.mark.parametrize("write", [str, repr, "{}".format, "{:.1f}".format])
def test_a_tensor_has_no_text_under_the_guard(write):
    tensor = torch.ones(())
    with pytest.raises(ForeignWork, match="work outside the kernel"), LaunchGuard():
        write(tensor)
    assert "1." in write(tensor)


def test_memory_is_nan_and_something_else_in_turn():
    """What tells fresh memory by its looks meets another kind of it in the next call."""
    drawn = [poisons(4) for _ in range(64)]
    assert all(sorted((a == POISON, b == POISON)) == [False, True] for four in drawn for a, b in pairwise(four))
    assert {four[0] == POISON for four in drawn} == {True, False}
    others = {fill for four in drawn for fill in four}
    assert KEPT in others and len(others) > 20 and all(KEPT <= fill <= POISON for fill in others)
    assert {poisons(1)[0] for _ in range(64)} > {POISON} and KEPT not in {poisons(1)[0] for _ in range(64)}


def test_kept_memory_holds_an_earlier_answer_at_other_places():
    answer = torch.arange(12, dtype=torch.float32).view(3, 4)
    with LaunchGuard(Canaries(KEPT, [torch.ones(2), answer])):
        alike, other, zeros = torch.empty(3, 4), torch.empty(4, 3), torch.zeros(3, 4)
    assert sorted(alike.view(-1).tolist()) == answer.view(-1).tolist() and not (alike == answer).any()
    with LaunchGuard(canaries := Canaries(0)):
        scratch = torch.empty(2)
    assert [made.data_ptr() for made in canaries.made] == [scratch.data_ptr()]
    assert not zeros.any() and len(set(other.view(-1).view(torch.uint8).tolist())) == 1

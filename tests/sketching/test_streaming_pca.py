"""The streaming PCA: exact eigenpairs of the decayed sum, orthonormal for long, replayable."""

import pytest
import torch

from fedsketch.sketching.streaming_pca import StreamingPCA

Batches = list[torch.Tensor]


def batches(d: int, sizes: list[int], seed: int = 0) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    # Directions of different energy, so that eigenvectors are well separated.
    scale = 0.8 ** torch.arange(d, dtype=torch.float64)
    return [torch.randn(m, d, generator=generator, dtype=torch.float64) * scale for m in sizes]


def accumulated(given: Batches, decay: float) -> torch.Tensor:
    total = torch.zeros(given[0].shape[1], given[0].shape[1], dtype=torch.float64)
    for rows in given:
        total = decay * total + rows.T @ rows
    return total


def represented(pca: StreamingPCA) -> torch.Tensor:
    basis = pca.basis.double()
    return basis @ torch.diag(pca.eigenvalues) @ basis.T


def deviation(basis: torch.Tensor) -> float:
    return float((basis.double().T @ basis.double() - torch.eye(basis.shape[1])).abs().max())


@pytest.mark.parametrize("sizes", [[1] * 30, [3, 1, 7, 2] * 3, [40, 1, 12]])
@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_the_core_update_equals_a_dense_eigendecomposition(sizes: list[int], decay: float) -> None:
    given = batches(12, sizes)
    pca = StreamingPCA(12, 12, decay, dtype=torch.float64)
    for rows in given:
        pca.update(rows)
    dense = accumulated(given, decay)
    assert torch.allclose(represented(pca), dense, atol=1e-10 * float(dense.trace()))
    expected = torch.linalg.eigvalsh(dense).flip(0)
    assert torch.allclose(pca.eigenvalues, expected, atol=1e-10 * float(expected[0]))
    assert deviation(pca.basis) < 1e-12


def test_float32_directions_are_near_the_dense_ones() -> None:
    given = batches(50, [1] * 40)
    pca = StreamingPCA(50, 50, 0.95)
    for rows in given:
        pca.update(rows[0])
    dense = accumulated(given, 0.95)
    assert pca.basis.dtype == torch.float32
    assert pca.eigenvalues.dtype == torch.float64
    assert float((represented(pca) - dense).norm() / dense.norm()) < 1e-5


def test_truncation_keeps_the_top_of_each_step() -> None:
    """With room for k the state after each step is the best rank k of decay C + g g^T."""
    pca = StreamingPCA(20, 4, 0.9, dtype=torch.float64)
    for rows in batches(20, [1, 2, 1, 5, 1, 1, 3]):
        target = 0.9 * represented(pca) + rows.T @ rows
        values, vectors = torch.linalg.eigh(target)
        pca.update(rows)
        best = vectors[:, -4:] @ torch.diag(values[-4:]) @ vectors[:, -4:].T
        assert torch.allclose(represented(pca), best, atol=1e-10)
        assert (pca.eigenvalues.diff() <= 0).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_first_update_is_the_vector_itself(sign: float) -> None:
    """Up to its sign, which is the one that makes the largest entry positive."""
    vector = torch.randn(30)
    vector[7] = 10.0
    pca = StreamingPCA(30, 4)
    pca.update(sign * vector)
    assert pca.rank == 1
    assert torch.allclose(pca.basis[:, 0], vector / vector.norm(), atol=1e-6)
    assert float(pca.eigenvalues[0]) == pytest.approx(float(vector.norm()) ** 2, rel=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("nudge", [-1e-7, 0.0, 1e-7])
def test_of_equally_large_entries_the_first_is_positive(sign: float, nudge: float) -> None:
    """Such as of a gradient for two classes. Which of them is larger by a rounding error decides nothing."""
    half = torch.rand(15) - 0.5
    half[[4, 9]] = torch.tensor([-1.0, 1.0 + nudge])
    vector = sign * torch.cat([half, -half])
    pca = StreamingPCA(30, 4)
    pca.update(vector)
    assert pca.basis[4, 0] > 0.1
    assert torch.allclose(pca.basis[:, 0], -sign * vector / vector.norm(), atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "arithmetic"),
    [(torch.float32, None), (torch.float64, None), (torch.float32, torch.float64)],
)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
def test_vectors_inside_the_span_add_no_direction(
    dtype: torch.dtype, arithmetic: torch.dtype | None, scale: float
) -> None:
    given = scale * torch.randn(3, 500, generator=torch.Generator().manual_seed(1), dtype=dtype)
    pca = StreamingPCA(500, 10, dtype=dtype, arithmetic=arithmetic)
    pca.update(given)
    for _ in range(20):
        pca.update(given[0] - 2.0 * given[2])
        pca.update(torch.stack([given[1], given[1]]))
    assert pca.rank == 3
    assert deviation(pca.basis) < 1e-6


def test_nothing_seen_only_forgets() -> None:
    pca = StreamingPCA(10, 4, 0.5)
    pca.update(torch.zeros(10))
    assert pca.rank == 0
    pca.update(torch.ones(10))
    pca.update(torch.zeros(2, 10))
    assert pca.eigenvalues.tolist() == pytest.approx([5.0])


def test_a_tiny_new_part_is_orthogonal_all_the_same() -> None:
    """Where cancellation is worst: a vector that is almost known."""
    generator = torch.Generator().manual_seed(2)
    pca = StreamingPCA(2000, 20)
    pca.update(torch.randn(8, 2000, generator=generator))
    for exponent in range(1, 6):
        known = pca.basis @ torch.randn(pca.rank, generator=generator)
        pca.update(known + 10.0**-exponent * torch.randn(2000, generator=generator) / 45)
    assert pca.rank > 10
    assert deviation(pca.basis) < 1e-5


def test_directions_stay_orthonormal_over_500_updates() -> None:
    generator = torch.Generator().manual_seed(3)
    pca = StreamingPCA(3000, 32, 0.98)
    worst = 0.0
    for _ in range(500):
        pca.update(torch.randn(3000, generator=generator))
        worst = max(worst, deviation(pca.basis))
    assert pca.rank == 32
    assert worst < 1e-5


def test_lost_orthogonality_is_restored_from_time_to_time() -> None:
    pca = StreamingPCA(500, 6)
    pca.update(torch.randn(6, 500, generator=torch.Generator().manual_seed(3)))
    state = pca.state_dict()
    skewed = state["directions"] + 1e-4 * state["directions"].flip(0)
    pca.load_state_dict({**state, "directions": skewed, "updates": 126})
    pca.update(torch.zeros(500))
    assert deviation(pca.basis) > 1e-5
    pca.update(torch.zeros(500))
    assert deviation(pca.basis) < 1e-6


def test_a_planted_direction_is_found() -> None:
    generator = torch.Generator().manual_seed(4)
    planted = torch.nn.functional.normalize(torch.randn(1000, generator=generator), dim=0)
    pca = StreamingPCA(1000, 8, 0.95)
    for _ in range(60):
        pca.update(20.0 * planted + torch.randn(1000, generator=generator))
    assert abs(float(planted @ pca.basis[:, 0])) > 0.95


def test_a_basis_that_was_handed_out_never_changes() -> None:
    pca = StreamingPCA(40, 4)
    pca.update(torch.randn(4, 40))
    basis, values = pca.basis, pca.eigenvalues
    copies = basis.clone(), values.clone()
    for _ in range(40):
        pca.update(torch.randn(40))
    assert torch.equal(basis, copies[0])
    assert torch.equal(values, copies[1])


def test_wider_arithmetic_survives_another_order_of_summation() -> None:
    """What another processor or number of threads changes: the last bits of products. A state that rests in float32
    forgets them.

    Nearly always: a float64 error of 1e-15 moves a float32 entry to its neighbour with a chance of 1e-8 or so in each
    update, which moves others in the updates after it. So a tenth of the entries may differ; with float32 products most
    do."""
    given = [rows.float() for rows in batches(300, [1, 1, 3] * 3)]
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    straight, shuffled = (StreamingPCA(300, 8, 0.95, arithmetic=torch.float64) for _ in range(2))
    narrow = StreamingPCA(300, 8, 0.95)
    for rows in given:
        straight.update(rows)
        shuffled.update(rows[:, order])
        narrow.update(rows[:, order])
    assert straight.basis.dtype == torch.float32
    assert float((straight.basis[order] != shuffled.basis).double().mean()) < 0.1
    assert torch.allclose(straight.eigenvalues, shuffled.eigenvalues, rtol=1e-6)
    assert float((straight.basis[order] != narrow.basis).double().mean()) > 0.5


def test_replay_is_bit_equal_and_resumes_from_a_saved_state() -> None:
    given = [rows.float() for rows in batches(300, [1, 1, 3] * 14)]
    unbroken, again, resumed = (StreamingPCA(300, 8, 0.95) for _ in range(3))
    for rows in given:
        unbroken.update(rows)
        again.update(rows)
    assert unbroken.fingerprint() == again.fingerprint()
    assert torch.equal(unbroken.basis, again.basis)
    first = StreamingPCA(300, 8, 0.95)
    for rows in given[:20]:
        first.update(rows)
    resumed.load_state_dict(first.state_dict())
    for rows in given[20:]:
        resumed.update(rows)
    assert resumed.fingerprint() == unbroken.fingerprint()
    assert first.fingerprint() != unbroken.fingerprint()


def test_what_does_not_fit_is_refused() -> None:
    pca = StreamingPCA(10, 3)
    with pytest.raises(ValueError, match="vectors of 10 numbers"):
        pca.update(torch.zeros(11))
    with pytest.raises(ValueError, match="not finite"):
        pca.update(torch.full((10,), float("nan")))
    other = StreamingPCA(10, 5)
    other.update(torch.randn(5, 10))
    with pytest.raises(ValueError, match="settings of the saved run"):
        pca.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="max_rank"):
        StreamingPCA(10, 11)


def test_directions_that_nobody_holds_are_updated_in_their_own_memory() -> None:
    torch.manual_seed(5)
    pca, other = (StreamingPCA(300, 4, 0.9, arithmetic=torch.float64) for _ in range(2))
    for vector in torch.randn(6, 300):
        pca.update(vector)
        other.update(vector)
        basis = other.basis  # which makes the next update take new memory
    where = pca.state_dict()["directions"].data_ptr()
    pca.load_state_dict(other.state_dict())
    held = pca._directions.data_ptr()
    for vector in torch.randn(3, 300):
        pca.update(vector)
        other.update(vector)
        assert pca._directions.data_ptr() == held != where
        assert other._directions.data_ptr() != basis.data_ptr()
        basis = other.basis
    assert pca.fingerprint() == other.fingerprint()

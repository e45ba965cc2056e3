"""verl's DataProto keeps rows together through every cut and join that the trainer makes."""

import numpy as np
import torch


def sample(rows=8):
    from verl import DataProto

    tensors = {"ids": torch.arange(rows * 3).reshape(rows, 3)}
    return DataProto.from_dict(tensors, non_tensors={"row": np.arange(rows, dtype=object)}, meta_info={"step": 1})


def is_aligned(data):
    """Whether the row number that travels beside the tensors is still that of its tensor."""
    return data.batch["ids"][:, 0].tolist() == [3 * int(row) for row in data.non_tensor_batch["row"]]


def test_chunks_join_to_the_whole():
    from verl import DataProto

    whole = sample()
    parts = whole.chunk(4)
    assert [len(part) for part in parts] == [2] * 4
    assert all(is_aligned(part) for part in parts)
    joined = DataProto.concat(parts)
    assert torch.equal(joined.batch["ids"], whole.batch["ids"])
    assert joined.non_tensor_batch["row"].tolist() == list(range(8))


def test_reordering_moves_everything_alike():
    data = sample()
    order = torch.tensor([5, 1, 7, 0, 2, 3, 6, 4])
    data.reorder(order)
    assert data.non_tensor_batch["row"].tolist() == order.tolist()
    assert is_aligned(data)


def test_repeating_keeps_the_copies_of_a_row_together():
    data = sample(rows=2).repeat(repeat_times=3, interleave=True)
    assert data.non_tensor_batch["row"].tolist() == [0, 0, 0, 1, 1, 1]
    assert is_aligned(data)


def test_union_adds_columns_and_refuses_another_value_of_one():
    import pytest
    from verl import DataProto

    data = sample()
    data.union(DataProto.from_dict({"more": torch.ones(8, 1)}))
    assert set(data.batch.keys()) == {"ids", "more"}
    with pytest.raises(AssertionError, match="not the same object"):
        data.union(DataProto.from_dict({"ids": torch.zeros(8, 3, dtype=torch.int64)}))


def test_saved_and_loaded_is_the_same(tmp_path):
    from verl import DataProto

    data = sample()
    data.save_to_disk(tmp_path / "batch")
    back = DataProto.load_from_disk(tmp_path / "batch")
    assert torch.equal(back.batch["ids"], data.batch["ids"])
    assert is_aligned(back)
    assert back.meta_info == {"step": 1}

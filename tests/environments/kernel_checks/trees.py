"""Draft trees, and what verification accepts of them."""

from __future__ import annotations

import sgl_kernel
import torch
from harness import check, raises


class Tree:
    """Outputs of the tree builder for a batch of trees of ``n`` nodes."""

    def __init__(
        self, parents: list[list[int]], selected: list[list[int]], lengths: list[int], topk: int, depth: int
    ):
        batch, self.n = len(selected), len(selected[0]) + 1
        self.mask = torch.ones(batch * self.n * self.n, dtype=torch.bool)
        self.positions = torch.zeros(batch * self.n, dtype=torch.long)
        self.rows, self.child, self.sibling = (torch.full((batch, self.n), -1) for _ in range(3))
        sgl_kernel.build_tree_kernel_efficient_cpu(
            torch.tensor(parents), torch.tensor(selected), torch.tensor(lengths), self.mask, self.positions,
            self.rows, self.child, self.sibling, topk, depth, self.n, 1,
        )  # fmt: skip

    def verify(
        self, tokens: list[list[int]], target: list[list[int]], most: int
    ) -> tuple[list[int], list[list[int]], list[int]]:
        predicts = torch.full((self.rows.numel(),), -7, dtype=torch.int32)
        accepted = torch.full((len(tokens), most), -1, dtype=torch.int32)
        counts = torch.zeros(len(tokens), dtype=torch.int32)
        sgl_kernel.verify_tree_greedy_cpu(
            predicts=predicts,
            accept_index=accepted,
            accept_token_num=counts,
            candidates=torch.tensor(tokens),
            retrive_index=self.rows,
            retrive_next_token=self.child,
            retrive_next_sibling=self.sibling,
            target_predict=torch.tensor(target),
        )
        return predicts.tolist(), accepted.tolist(), counts.tolist()


def chains(batch: int) -> Tree:
    """topk 1: node i's parent is node i - 1."""
    return Tree([[-1, 0, 1]] * batch, [[0, 1, 2]] * batch, list(range(10, 10 + batch)), topk=1, depth=3)


@check
def tree_of_a_chain() -> None:
    tree = chains(2)
    lower = torch.ones(4, 4, dtype=torch.bool).tril()
    assert torch.equal(tree.mask.view(2, 4, 4), torch.stack([lower, lower]))
    assert tree.positions.tolist() == [10, 11, 12, 13, 11, 12, 13, 14]
    assert tree.rows.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert tree.child.tolist() == [[1, 2, 3, -1]] * 2
    assert tree.sibling.tolist() == [[-1] * 4] * 2


def fork() -> Tree:
    """topk 2. Candidates 0, 1 hang on the root; group 1 (2, 3) on candidate 0, group 2 (4, 5) on 1."""
    return Tree([[-1, 0, 1]], [[0, 1, 2, 4]], [20], topk=2, depth=2)


@check
def tree_with_branches() -> None:
    tree = fork()
    assert tree.mask.view(5, 5).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]
    assert tree.positions.tolist() == [20, 21, 21, 22, 22]
    assert tree.child.tolist() == [[1, 3, 4, -1, -1]]
    assert tree.sibling.tolist() == [[-1, 2, -1, -1, -1]]


@check
def tree_leaves_out_orphans() -> None:
    tree = Tree([[-1, 0, 1]], [[0, 2, 4]], [20], topk=2, depth=2)  # candidate 1, parent of 4, is missing
    assert tree.child.tolist() == [[1, 2, -1, -1]]
    assert 3 not in tree.child.flatten().tolist() and 3 not in tree.sibling.flatten().tolist()


@check
def tree_refuses_other_masks() -> None:
    one = torch.zeros(1, 2, dtype=torch.long)
    call = sgl_kernel.build_tree_kernel_efficient_cpu
    raises(
        NotImplementedError,
        lambda: call(one, one[:, :1], one[0, :1], one, one[0], one, one, one, 1, 1, 2, 0),
    )


@check
def verify_accepts_the_longest_match() -> None:
    tokens = [[5, 6, 7, 8], [5, 6, 7, 8]]
    target = [[6, 7, 9, 1], [9, 7, 8, 1]]  # first: two drafts right; second: none
    predicts, accepted, counts = chains(2).verify(tokens, target, 4)
    assert counts == [2, 0]
    assert accepted == [[0, 1, 2, -1], [4, -1, -1, -1]]
    assert predicts == [6, 7, 9, -7, 9, -7, -7, -7]


@check
def verify_accepts_a_whole_chain() -> None:
    predicts, accepted, counts = chains(1).verify([[5, 6, 7, 8]], [[6, 7, 8, 9]], 4)
    assert (predicts, accepted, counts) == ([6, 7, 8, 9], [[0, 1, 2, 3]], [3])


@check
def verify_takes_the_right_branch() -> None:
    tokens, target = [[5, 6, 7, 8, 9]], [[7, 0, 9, 0, 3]]  # root -> second child -> its child
    predicts, accepted, counts = fork().verify(tokens, target, 3)
    assert (accepted, counts) == ([[0, 2, 4]], [2])
    assert [predicts[row] for row in (0, 2, 4)] == [7, 9, 3]

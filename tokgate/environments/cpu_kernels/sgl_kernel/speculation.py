"""EAGLE's token trees: build one per request from the draft's choices, walk it with the target's."""

import torch
from torch import Tensor

QLEN_ONLY = 1  # sglang's TreeMaskMode.QLEN_ONLY, the one that SGLang uses on CPU


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Link the selected draft tokens into a tree; node 0 is the last token that was accepted.

    Call site: ``kernels/ops/speculative/spec_tree.py``, ``build_tree_kernel_efficient_func``.

    Args:
        parent_list: ``[B, *]``: candidate number of the parent of each group of ``topk`` candidates.
        selected_index: ``[B, n - 1]``: candidate numbers of the nodes 1 to n - 1; a candidate's group
            is its number divided by ``topk``, group 0 hangs on the root.
        seq_lens: ``[B]``, tokens before the tree.
        tree_mask: out, flat bool, an ``n x n`` matrix per request: a node sees itself and its ancestors.
        positions: out, flat ``[B * n]``: sequence position, i.e. ``seq_lens`` plus depth in the tree.
        retrieve_index: out, ``[B, n]``: the node's row in flat per-batch tensors.
        retrieve_next_token: out, ``[B, n]``: first child, or -1.
        retrieve_next_sibling: out, ``[B, n]``: next child of the same parent, or -1.
        draft_token_num: ``n``.
    """
    if int(tree_mask_mode) != QLEN_ONLY:
        raise NotImplementedError(f"CPU stand-in: tree mask mode {tree_mask_mode}")
    n = draft_token_num
    masks = tree_mask.view(-1)
    for b, (length, numbers, parents) in enumerate(
        zip(seq_lens.tolist(), selected_index.tolist(), parent_list.tolist(), strict=True)
    ):
        node_of = {number: node for node, number in reversed(list(enumerate(numbers, start=1)))}
        first_child, next_sibling = [-1] * n, [-1] * n
        ancestors, node_depth = [[0]] + [[]] * (n - 1), [0] * n
        parent = [0] * n
        for node, number in enumerate(numbers, start=1):
            group = number // topk
            # As on CUDA, a node whose parent was not selected stays out of the tree.
            parent[node] = 0 if group == 0 else node_of.get(parents[group], -1)
        for node in range(n - 1, 0, -1):
            if parent[node] >= 0:
                next_sibling[node], first_child[parent[node]] = first_child[parent[node]], node
        for node in range(1, n):
            chain, at = [0, node], parent[node]
            levels = 1
            while at > 0 and levels < depth:
                chain.append(at)
                at, levels = parent[at], levels + 1
            ancestors[node], node_depth[node] = chain, levels
        mask = torch.zeros(n, n, dtype=torch.bool)
        for node, seen in enumerate(ancestors):
            mask[node, seen] = True
        masks[b * n * n : (b + 1) * n * n] = mask.view(-1)
        positions[b * n : (b + 1) * n] = length + torch.tensor(node_depth)
        retrieve_index[b] = torch.arange(b * n, (b + 1) * n)
        retrieve_next_token[b] = torch.tensor(first_child)
        retrieve_next_sibling[b] = torch.tensor(next_sibling)


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow, from each root, the children that equal the target's greedy choice.

    Call site: ``kernels/ops/speculative/spec_tree.py``, ``verify_tree_greedy_func`` (keywords spelt as
    there).

    Args:
        predicts: out, flat: at each accepted node's row the target's next token, the bonus token last.
        accept_index: out, ``[B, steps + 1]``: rows of the accepted nodes, root first; the rest untouched.
        accept_token_num: out, ``[B]``: accepted draft tokens, the root not counted.
        candidates: ``[B, n]``: token of each node.
        retrive_index, retrive_next_token, retrive_next_sibling: the tree, as built above.
        target_predict: ``[B, n]``: the target's greedy next token after each node.
    """
    target = target_predict.reshape(-1).tolist()
    trees = zip(
        candidates.tolist(),
        retrive_index.tolist(),
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
        strict=True,
    )
    most = accept_index.shape[1]
    for b, (tokens, rows, first_child, next_sibling) in enumerate(trees):
        accepted, node = [rows[0]], 0
        while len(accepted) < most:
            wanted, node = target[accepted[-1]], first_child[node]
            while node != -1 and tokens[node] != wanted:
                node = next_sibling[node]
            if node == -1:
                break
            accepted.append(rows[node])
        accept_index[b, : len(accepted)] = torch.tensor(accepted)
        accept_token_num[b] = len(accepted) - 1
        predicts[accepted] = torch.tensor([target[row] for row in accepted], dtype=predicts.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, stride: int
) -> None:
    """Each request's last accepted token: entry ``accept_lens - 1`` of its ``stride`` entries.

    Call site: ``kernels/ops/speculative/eagle.py``, ``fill_bonus_tokens_func``.
    """
    at = torch.arange(accept_lens.numel()) * stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[at])


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """The accepted nodes' cache slots, packed to the front; entries of -1 are skipped.

    Call site: ``kernels/ops/speculative/eagle.py``, ``fill_accept_out_cache_loc_func``.
    """
    rows = accept_index.reshape(-1)
    rows = rows[rows >= 0].long()
    accept_out_cache_loc[: rows.numel()] = out_cache_loc[rows]


def rotate_input_ids_cpu(*args: object) -> None:
    """Imported by SGLang at start, called for drafts of several layers only, which are refused."""
    raise NotImplementedError("CPU stand-in: multi-layer EAGLE")

"""Stored blocks are believed as they were stored: one that was edited since is refused, with what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.blocks.conftest import VirtualBench
from tokgate.errors import SampleFault
from tokgate.gate.blocks.plan import BlockPlan
from tokgate.gate.blocks.runner import BlockRunner

Take = Callable[[], BlockRunner]


@pytest.fixture
def take(plan: BlockPlan, tmp_path: Path) -> Take:
    """Takes up the folder, which holds three blocks."""
    bench = VirtualBench(lambda arm, block: 100.0 + block, folder=tmp_path)
    runner = BlockRunner(plan, bench, tmp_path, clock=bench.clock)
    for _ in range(3):
        bench.now_s += 60
        runner.measure()
    # Orders and Samples of a block tell when it was measured; so short a test would tell the same of all.
    for number in range(3):
        _rewrite(tmp_path / "blocks" / f"000{number}.json", began_at=f"2026-01-01T00:0{number}:00+00:00")
    return lambda: BlockRunner(plan, bench, tmp_path, clock=bench.clock)


def _rewrite(path: Path, **changed: object) -> None:
    """As another tokgate would have written it, digest and all."""
    from tokgate.gate.blocks import seal

    block = {key: value for key, value in json.loads(path.read_text()).items() if key != seal.DIGEST}
    block |= changed
    files = [path.parents[1] / name for name in block.pop(seal.SAMPLES)]
    path.write_text(json.dumps(seal.sealed(block, path.parents[1], files)))


def _samples(folder: Path, number: int) -> list[Path]:
    arm = json.loads((folder / "blocks" / f"{number:04d}.json").read_text())["arms"]["B"]
    return [folder / name for name in arm["workloads"]["chat-bs1"]["runs"]]


def _a_digit(folder: Path) -> Path:
    path = _samples(folder, 1)[0]
    text = path.read_text()
    assert '"output_tok_s":101.0' in text
    path.write_text(text.replace('"output_tok_s":101.0', '"output_tok_s":107.0'))
    return path


def _another_blocks(folder: Path) -> Path:
    path = _samples(folder, 1)[0]
    shutil.copy(_samples(folder, 2)[0], path)
    return path


def _two_swapped(folder: Path) -> Path:
    first, second = _samples(folder, 1)[:2]
    text = first.read_text()
    first.write_text(second.read_text())
    second.write_text(text)
    return first


def _gone(folder: Path) -> Path:
    path = _samples(folder, 1)[0]
    path.unlink()
    return path


def _a_run_called_void(folder: Path) -> Path:
    path = folder / "blocks" / "0001.json"
    block = json.loads(path.read_text())
    runs = block["arms"]["B"]["workloads"]["chat-bs1"]
    runs["void"].append(runs["runs"].pop())
    path.write_text(json.dumps(block))
    return path


def _a_blocks_file_for_anothers(folder: Path) -> Path:
    path = folder / "blocks" / "0001.json"
    shutil.copy(folder / "blocks" / "0002.json", path)
    return path


EDITS = [_a_digit, _another_blocks, _two_swapped, _gone, _a_run_called_void, _a_blocks_file_for_anothers]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_block_is_refused_with_the_file_and_what_to_do(
    take: Take, tmp_path: Path, edit: Callable[[Path], Path]
) -> None:
    edited = edit(tmp_path)
    with pytest.raises(SampleFault) as caught:
        take()
    assert caught.value.headline.startswith(f"{edited}: ")
    stored_in = tmp_path / "blocks" / "0001.json"
    assert f"remove {stored_in}: that block is measured again, the others stay" in caught.value.details[-1]


@pytest.mark.parametrize("edit", EDITS)
def test_what_the_message_says_loses_that_block_alone(
    take: Take, plan: BlockPlan, tmp_path: Path, edit: Callable[[Path], Path]
) -> None:
    before = take().blocks
    edit(tmp_path)
    (tmp_path / "blocks" / "0001.json").unlink()
    runner = take()
    assert runner.blocks == [before[0], before[2]]
    assert "block 1 is gone and is measured again" in runner.remarks
    again = runner.measure()
    assert again.number == 1
    assert again.orders == {"chat-bs1": plan.run_order(1, "chat-bs1")}
    assert runner.measure().number == 3
    # In the order in which they were measured, which is the order in which they were judged.
    assert [block.number for block in take().blocks] == [0, 2, 1, 3]
    assert "block 1 was measured again, after block 2" in take().remarks
    assert len(list((tmp_path / "lost").rglob("*.sample.json"))) >= 9


def test_blocks_as_they_were_stored_are_taken_without_a_word(take: Take, tmp_path: Path) -> None:
    runner = take()
    assert [block.number for block in runner.blocks] == [0, 1, 2]
    assert runner.remarks == runner.blind().remarks()
    assert not (tmp_path / "lost").exists()


def test_blocks_of_before_there_were_digests_are_taken_with_a_remark(take: Take, tmp_path: Path) -> None:
    for number in (0, 1):
        path = tmp_path / "blocks" / f"000{number}.json"
        block = json.loads(path.read_text())
        del block["samples"], block["digest"]
        path.write_text(json.dumps(block))
    _a_digit(tmp_path)
    runner = take()
    assert len(runner.blocks) == 3
    assert (
        "2 of 3 blocks were stored by an older tokgate, without digests: whether their samples were edited since "
        "is not known" in runner.remarks
    )


@pytest.mark.parametrize("key", ["samples", "digest"])
def test_one_digest_deleted_does_not_make_it_an_old_block(take: Take, tmp_path: Path, key: str) -> None:
    path = tmp_path / "blocks" / "0001.json"
    block = json.loads(path.read_text())
    del block[key]
    path.write_text(json.dumps(block))
    with pytest.raises(SampleFault, match="is not as it was stored"):
        take()


def test_the_last_block_gone_is_a_block_not_measured_yet(take: Take, tmp_path: Path) -> None:
    (tmp_path / "blocks" / "0002.json").unlink()
    runner = take()
    assert runner.measure().number == 2
    assert not [remark for remark in runner.remarks if "gone" in remark]

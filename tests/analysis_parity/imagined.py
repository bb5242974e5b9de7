"""A server in this process: tokens as the emulated engine makes them, a prefix cache, and a fault each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokgate.analysis.parity import Output, TopTwo
from tokgate.analysis.parity_case import Case, CaseRequest
from tokgate.emulator import tokens
from tokgate.emulator.sequence import PrefixCache

Change = Callable[[list[int], CaseRequest, int], list[int]]
"""Output, request and its number in the batch -> another output."""


class Imagined:
    """Answers like :class:`tokgate.gate.greedy.GreedyClient`.

    Args:
        change: what is done to an output.
        flip: takes the second-best token where it is less than so many nats behind.
        stale_from: prompt tokens in the prefix cache from which on it holds another prompt's entries.
        swap: requests of a batch get each other's tokens from the second on.
    """

    def __init__(
        self,
        change: Change | None = None,
        *,
        flip: float = 0.0,
        stale_from: int | None = None,
        swap: bool = False,
    ) -> None:
        self._change, self._flip, self._stale_from, self._swap = change, flip, stale_from, swap
        self._cache = PrefixCache(True)
        self.asked = 0

    def flush(self) -> None:
        self._cache.clear()

    def answer(self, case: Case, *, candidates: bool = False) -> list[Output]:
        self.asked += 1
        chains = []
        for request in case.requests:
            prompt = request.prompt_ids
            cached = self._cache.match(prompt) if not case.together else 0
            stale = self._stale_from is not None and cached >= self._stale_from
            chains.append(tokens.Chain([prompt[0] + 1, *prompt[1:]] if stale else prompt))
            self._cache.add(prompt)
        outputs = []
        if self._swap and case.together:
            pairs = list(zip(chains[::2], chains[1::2], strict=False))
            chains = [chain for a, b in pairs for chain in (b, a)] + chains[2 * len(pairs) :]
        for number, (request, chain) in enumerate(zip(case.requests, chains, strict=True)):
            ids, top = self._generate(chain, request.new_tokens)
            if self._change is not None:
                ids = self._change(ids, request, number)
            outputs.append(Output(tuple(ids), top if candidates else None))
        return outputs

    def rescore(self, request: CaseRequest, output: Output) -> Mapping[int, TopTwo]:
        chain = tokens.Chain(request.prompt_ids)
        found = {}
        for i, token in enumerate(output.ids):
            found[i] = _top(chain, as_prompt=True)
            chain.add(token)
        return found

    def _generate(self, chain: tokens.Chain, count: int) -> tuple[list[int], dict[int, TopTwo]]:
        ids, top = [], {}
        for i in range(count):
            top[i] = _top(chain)
            token = top[i].ids[1] if top[i].gap < self._flip else top[i].ids[0]
            chain.add(token)
            ids.append(token)
        return ids, top


def _top(chain: tokens.Chain, *, as_prompt: bool = False) -> TopTwo:
    state = chain.state
    ranked = tokens.logprobs_of(tokens.next_token(state), state, 2, as_prompt=as_prompt)[1]
    return TopTwo((ranked[0][1], ranked[1][1]), (ranked[0][0], ranked[1][0]))

"""CPU per delta in `Frontend.feed`, with a sink that drops. Run it: python measure_feed.py"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from frontend_fakes import EPOCH, capacity, embedded_tokenizer, served

from vivace.frontend.engine_status import EngineView
from vivace.frontend.frontend import Frontend
from vivace.protocol.messages import Delta, Deltas, Ready, SamplingParams

REQUESTS, STEPS = 64, 200


class Dropping:
    def push(self, piece: object) -> None:
        pass


def microseconds(**sampling: object) -> float:
    """CPU time per delta over `REQUESTS` streams of `STEPS` tokens."""
    tokenizer = embedded_tokenizer()
    model = served(vocabulary=tokenizer.vocabulary, context=8192)
    frontend = Frontend(model, tokenizer, [EngineView(lambda message: None)])
    frontend.feed(Ready(epoch=EPOCH, capacity=capacity(context=8192)))
    text = tokenizer.encode(
        "It was a bright cold day in April, and the clocks struck thirteen. " * 20
    )
    keys = []
    for _ in range(REQUESTS):
        params = SamplingParams(max_new_tokens=STEPS, **sampling)  # type: ignore[arg-type]
        request = frontend.request([1, 2, 3], params)
        frontend.start(request, Dropping())
        keys.append(request.key)
    messages = [
        Deltas(
            epoch=EPOCH,
            deltas=[Delta(key=key, index=i, tokens=[text[i % len(text)]]) for key in keys],
        )
        for i in range(STEPS)
    ]
    begin = time.process_time()
    for message in messages:
        frontend.feed(message)
    spent = time.process_time() - begin
    frontend.close()
    return spent / (REQUESTS * STEPS) * 1e6


if __name__ == "__main__":
    for name, sampling in (
        ("plain", {}),
        ("two stop strings", {"stop": ("\n\nUser:", "###")}),
    ):
        best = min(microseconds(**sampling) for _ in range(5))
        print(f"{name}: {best:.2f} us per delta")

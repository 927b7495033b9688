#!/bin/sh
# A small model on the processor.
export VIVACE_API_KEY=change-me
vivace serve \
    --device cpu \
    --host 127.0.0.1 --port 8080 \
    --dtype float32 \
    --context-length 4096 \
    --max-running-requests 8 \
    --mem-fraction-static 0.5

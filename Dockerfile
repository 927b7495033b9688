# Vivace on a CPU. `make image` fetches what this file installs and calls docker: the build itself needs no network
# beyond the base image. Python in the image has to be of the version that fetched (BASE). Without a daemon:
# `make wheelhouse`, then `buildah build --format docker --tag vivace --build-arg BASE=...`.
#
#   docker run --rm -p 30000:30000 -e VIVACE_API_KEY=... vivace
#   docker run --rm --network host vivace --host 127.0.0.1
#   docker run --rm -p 30000:30000 -e VIVACE_API_KEY=... -v /models:/models:ro vivace --model-path /models/Qwen3-0.6B
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
RUN --mount=type=bind,source=build/wheelhouse,target=/wheelhouse \
    pip install --no-cache-dir --no-index --no-deps --no-compile /wheelhouse/*.whl
RUN useradd --create-home --uid 1000 vivace
USER vivace
WORKDIR /home/vivace
EXPOSE 30000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:30000/health', timeout=5)"]
# Another address than 127.0.0.1 needs a key; the server says so when there is none.
ENTRYPOINT ["vivace", "serve", "--port", "30000"]
CMD ["--host", "0.0.0.0"]

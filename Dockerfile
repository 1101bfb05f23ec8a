# lapae on a CPU:  docker build -t lapae .   docker run --rm -v "$PWD:/data" lapae train customers.csv
FROM python:3.12-slim

# An index of torch's CPU wheels saves gigabytes of CUDA: docker build --build-arg PIP_EXTRA_INDEX_URL=… -t lapae .
ARG PIP_EXTRA_INDEX_URL
COPY requirements/run.txt /src/
RUN pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: -r /src/run.txt && \
    pip install --no-cache-dir torch==2.13.0
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir "/src[export,parquet]" && useradd --create-home lapae
USER lapae
WORKDIR /data
# the explorer is reached from outside with: docker run -p 8765:8765 … explore RUN --host 0.0.0.0 --no-open
EXPOSE 8765
ENTRYPOINT ["lapae"]
CMD ["--help"]

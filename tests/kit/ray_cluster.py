"""A Ray cluster of two machines that are both this one, until standard input ends:
`python ray_cluster.py DEVICES` prints its address."""

from __future__ import annotations

import sys


def main() -> None:
    from ray.cluster_utils import Cluster  # type: ignore[import-not-found]

    own = {"num_cpus": int(sys.argv[1]), "object_store_memory": 80 << 20}
    cluster = Cluster()
    cluster.add_node(node_ip_address="127.0.0.2", include_dashboard=False, **own)
    cluster.add_node(node_ip_address="127.0.0.3", **own)
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()

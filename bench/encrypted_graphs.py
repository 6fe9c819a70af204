"""Encrypted inference of deep networks, measured: python bench/encrypted_graphs.py MODEL DATASET [IMAGES] [CHECKED]

MODEL is a file or an example, DATASET names its data. IMAGES test images are encrypted, evaluated and decrypted; for
CHECKED of them the margin of the plain network is compared with the estimate of the error. Times are CPU seconds of one
thread. The plan looks at training images only.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from time import process_time

import numpy as np
import torch

import polybound as pb
from polybound.deploy import Client, GraphPlan, PublicPlan, Server, plan_encryption


def gigabytes() -> float:
    """Memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e9


def main(name: str, dataset: str, count: int = 20, checked: int = 200) -> None:
    torch.set_num_threads(1)
    model = pb.load(name) if Path(name).exists() else pb.example(name)
    train, test = pb.data.load(dataset, "train"), pb.data.load(dataset, "test")
    start = process_time()
    plan = plan_encryption(model, train.domain, train.class_names, images=train.x[:64].double().numpy())
    assert isinstance(plan, GraphPlan)
    print(json.dumps(plan.facts()))
    print(f"plan {process_time() - start:.1f} s", flush=True)
    x = test.x[:checked].double().reshape(checked, -1).numpy()
    with torch.no_grad():
        plain = model.graph().double()(torch.from_numpy(x))

    before, start = gigabytes(), process_time()
    server = Server(plan)
    print(f"weights encoded in {process_time() - start:.1f} s: {gigabytes() - before:.2f} GB", flush=True)
    client, start = Client(PublicPlan.from_json(plan.public.to_json())), process_time()
    sent = client.keys()
    made = process_time() - start
    keys = server.load_keys(sent)
    print(f"keys {len(sent) / 1e6:.1f} MB in {made:.1f} s, loaded in {process_time() - start - made:.1f} s", flush=True)
    rows = []
    for number in range(count):
        start = process_time()
        request = client.encrypt(x[number])
        middle = process_time()
        reply = server.classify(request, keys)
        end = process_time()
        logits = client.decrypt(reply)
        error = float(np.abs(logits - plain[number].numpy()).max())
        same = bool(logits.argmax() == plain[number].argmax())
        rows.append((middle - start + process_time() - end, end - middle, error, same))
        print(f"{number}: server {end - middle:.2f} s, error {error:.2g}, {'same' if same else 'other'}", flush=True)
    client_s, server_s, errors, _ = (np.array(column) for column in zip(*rows, strict=True))
    print(
        f"{sum(row[3] for row in rows)} of {count} the same class; server median {np.median(server_s):.2f} s "
        f"(predicted {plan.seconds:.2f}), client {np.median(client_s) * 1e3:.0f} ms; largest error {errors.max():.2g}; "
        f"up {len(request) / 1e6:.2f} MB, down {len(reply) / 1e6:.2f} MB; process {gigabytes():.2f} GB",
        flush=True,
    )
    top = plain[:checked].topk(2, 1).values
    margin = (top[:, 0] - top[:, 1]).numpy()
    estimate = np.concatenate([plan.errors_at(part) for part in np.array_split(x, -(-checked // 20))])
    print(
        f"{int((margin > 2 * estimate).sum())} of {checked}: the margin is above twice the image's estimate; estimates "
        f"{estimate.min():.2g} to {estimate.max():.2g}; ratio of error and estimate at most "
        f"{max(row[2] / e for row, e in zip(rows, estimate, strict=False)):.2g}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:5]))

"""Encrypted inference: time of one thread, sizes, errors and classes, beside TenSEAL's own route on the same image.

    python bench/mnist_network.py mnist.safetensors && python bench/encrypted.py mnist.safetensors

fills the tables of docs/encrypted.md between its markers.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import tenseal as ts

import polybound as pb
from polybound.deploy import BatchClient, BatchServer, Client, Server, plan_batches, plan_encryption

DOCS = Path(__file__).parents[1] / "docs" / "encrypted.md"
KB = 1000


def timed(times: list[float], work: Any, *given: Any) -> Any:
    """What the work gives; the CPU seconds that it took are noted."""
    start = process_time()
    result = work(*given)
    times.append(process_time() - start)
    return result


class Chained:
    """TenSEAL's own vectors: a `dot` for each row, products of encrypted numbers, a plain sum."""

    def __init__(self, polynomial: Any) -> None:
        self.polynomial = polynomial
        bits = [40, 27, 27, 27, 27, 40]
        self.context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=bits)
        self.context.global_scale = 2.0**27
        self.context.generate_galois_keys()
        self.rows = [[row.tolist() for row in W] for W in polynomial.W]

    def encrypt(self, image: Any) -> Any:
        return ts.ckks_vector(self.context, image.tolist())

    def classify(self, image: Any) -> list[Any]:
        p = self.polynomial
        h = [
            [image.dot(row).add([float(c)]) for row, c in zip(rows, b, strict=True)]
            for rows, b in zip(self.rows, p.b, strict=True)
        ]
        y = [(h[0][r] * h[1][r]) * (h[2][r] * h[3][r]) for r in range(p.rank)]
        logits = []
        for row, bias in zip(p.C, p.beta, strict=True):
            total = y[0] * [float(row[0])]
            for r in range(1, p.rank):
                total = total + y[r] * [float(row[r])]
            logits.append(total.add([float(bias)]))
        return logits


def one_image(name: str, model: Any, data: Any, images: int, every: int) -> dict[str, Any]:
    """Times, errors and classes of single images; each `every`-th also by TenSEAL's own route, if that is not 0."""
    plan = plan_encryption(model, data.domain, data.class_names)
    server, client = Server(plan), Client(plan.public)
    keys_content = client.keys()
    keys = server.load_keys(keys_content)
    x = data.x[:images].flatten(1).double().numpy()
    exact, plain = plan.polynomial(x), model(data.x[:images]).argmax(1).numpy()
    times: dict[str, list[float]] = {"encrypt": [], "server": [], "decrypt": [], "tenseal": []}
    errors, same, chained_errors = [], 0, []
    chained = Chained(plan.polynomial) if every else None
    for i, image in enumerate(x):
        request = timed(times["encrypt"], client.encrypt, image)
        reply = timed(times["server"], server.classify, request, keys)
        logits = timed(times["decrypt"], client.decrypt, reply)
        errors.append(float(np.abs(logits - exact[i]).max()))
        same += int(logits.argmax() == plain[i])
        if chained is not None and i % every == 0:
            theirs = timed(times["tenseal"], chained.classify, chained.encrypt(image))
            found = [value.decrypt()[0] for value in theirs]
            chained_errors.append(float(np.abs(np.array(found) - exact[i]).max()))
        if i % 100 == 99:
            print(f"{name}: {i + 1} images, {same} the same class, largest error {max(errors):.2g}", flush=True)
    with_labels = float((model(data.x).argmax(1) == data.y).double().mean())
    return {
        "name": name, "images": images, "same": same, "accuracy": with_labels,
        "error": max(errors), "estimate": plan.error, "estimate_at_images": plan.error_at(x),
        "parameters": vars(plan.parameters), "rotation_keys": len(plan.steps) + 1,
        "upload": len(request), "keys": len(keys_content), "reply": len(reply),
        "tenseal_error": max(chained_errors, default=None),
    } | {f"{key}_ms": 1000 * statistics.median(found) for key, found in times.items() if found}  # fmt: skip


def batch(model: Any, data: Any, images: int, repeats: int) -> dict[str, Any]:
    """The time of a whole batch, an image; compressed and not."""
    plan = plan_batches(model, data.domain)
    server, client = BatchServer(plan), BatchClient(plan.parameters, plan.polynomial.features)
    keys_content = client.keys()
    keys = server.load_keys(keys_content)
    x = data.x[:images].flatten(1).double().numpy()
    exact = plan.polynomial(x)
    found: dict[str, Any] = {"images": images, "parameters": vars(plan.parameters), "keys": len(keys_content)}
    found |= {"estimate": plan.error, "estimate_at_images": plan.error_at(x)}
    for compressed in (False, True):
        encrypting: list[float] = []
        request = timed(encrypting, client.encrypt, x, compressed)
        times: list[float] = []
        for _ in range(repeats):
            reply = timed(times, server.classify, request, keys)
        logits = client.decrypt(reply, images)
        found["compressed" if compressed else "plain"] = {
            "server_ms": 1000 * statistics.median(times) / images,
            "client_ms": 1000 * encrypting[0] / images,
            "upload": sum(map(len, request)) / images,
            "reply": sum(map(len, reply)) / images,
            "error": float(np.abs(logits - exact).max()),
            "same": int((logits.argmax(1) == exact.argmax(1)).sum()),
        }
    return found


def table(results: dict[str, Any]) -> str:
    """The results in Markdown."""
    first, bounded, mnist, many = (results[key] for key in ("pn-4", "pn-4-bound-1", "mnist", "batch"))
    ratio = first["tenseal_ms"] / first["server_ms"]
    plain, small = many["plain"], many["compressed"]
    rows = [
        ("PN-4, one image, server", f"{first['server_ms']:.0f} ms", "290 ms (LoLa-Small, 96.92 % on MNIST)"),
        (f"MNIST network ({100 * mnist['accuracy']:.2f} %), one image, server", f"{mnist['server_ms']:.0f} ms",
         "2.0 s (LoLa, 98.95 %)"),
        ("PN-4, batch, server, an image", f"{plain['server_ms']:.2f} ms ({small['server_ms']:.2f} ms compressed)",
         "0.5 ms (nGraph-HE2)"),
        ("PN-4 by TenSEAL's own `dot`, same images, same run", f"{ratio:.0f} times faster",
         f"{first['tenseal_ms'] / 1000:.1f} s"),
        ("upload, keys, reply of one image",
         f"{first['upload'] / KB:.0f} kB, {first['keys'] / KB**2:.1f} MB, {first['reply'] / KB:.0f} kB",
         "476 kB, -, 70 kB (TenSEAL's tutorial)"),
        ("same class as plain: PN-4, PN-4 with bound 1, MNIST network",
         ", ".join(f"{r['same']:,} of {r['images']:,}" for r in (first, bounded, mnist)), ""),
    ]  # fmt: skip
    lines = ["| one thread, CPU time | here | best found elsewhere |", "| --- | --- | --- |"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    header = (
        "network",
        "ring: moduli (bits)",
        "client",
        "server",
        "largest error",
        "estimate, images",
        "estimate, domain",
    )
    lines += ["", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    for r in (first, bounded, mnist):
        bits = ", ".join(map(str, r["parameters"]["bits"]))
        lines.append(
            f"| {r['name']} | {r['parameters']['ring']}: {bits} | {r['encrypt_ms'] + r['decrypt_ms']:.1f} ms | "
            f"{r['server_ms']:.0f} ms | {r['error']:.2g} | {r['estimate_at_images']:.2g} | {r['estimate']:.2g} |"
        )
    p = many["parameters"]
    lines.append(
        f"| pn-4, batch of {many['images']:,} | {p['ring']}: {', '.join(map(str, p['bits']))} | "
        f"{plain['client_ms']:.1f} ms | {plain['server_ms']:.2f} ms | {plain['error']:.2g} | "
        f"{many['estimate_at_images']:.2g} | {many['estimate']:.2g} |"
    )
    lines += ["", f"Batch: {plain['upload'] / KB:.0f} kB an image up ({small['upload'] / KB:.0f} kB compressed), "
              f"{plain['reply'] / KB:.2f} kB down; {plain['same']:,} of {many['images']:,} the same class. "
              f"Machine: {results['machine']}."]  # fmt: skip
    return "\n".join(lines)


def machine() -> str:
    """The processor's name."""
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return f"{found[1] if found else platform.processor()}, one thread, shared with other work"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mnist", type=Path, help="the network that bench/mnist_network.py trained")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tenseal", type=int, default=3, help="images that TenSEAL's own route gets")
    parser.add_argument("--json", type=Path, help="write all figures there as well")
    parser.add_argument("--no-docs", action="store_true", help="leave docs/encrypted.md as it is")
    args = parser.parse_args()
    fashion, digits = pb.data.load("fashion-mnist", "test"), pb.data.load("mnist", "test")
    every = -(-args.images // args.tenseal) if args.tenseal else 0
    results: dict[str, Any] = {"machine": machine()}
    for name, model, data in [
        ("pn-4", pb.example("pn-4"), fashion),
        ("pn-4-bound-1", pb.example("pn-4-bound-1"), fashion),
        ("mnist", pb.load(args.mnist), digits),
    ]:
        results[name] = one_image(name, model, data, args.images, every if name == "pn-4" else 0)
    results["batch"] = batch(pb.example("pn-4"), fashion, args.batch, args.repeats)
    print(json.dumps(results, indent=2))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    text = table(results)
    print(text)
    if not args.no_docs:
        old = DOCS.read_text(encoding="utf-8")
        new = re.sub(
            r"(<!-- measured -->\n).*?(<!-- end -->)", lambda m: m[1] + text + "\n" + m[2], old, flags=re.DOTALL
        )
        DOCS.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()

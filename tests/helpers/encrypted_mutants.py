"""Hostile messages: SEAL's objects taken apart, changed and put together again, and HTTP requests of all kinds."""

import struct

import zstandard

HEADER = struct.Struct("<HBBBBHQ")
PLAIN, ZSTD = 0, 2


def objects(message):
    """The objects of a message, each with its header."""
    found = []
    while message:
        size = HEADER.unpack(message[: HEADER.size])[-1]
        found.append(message[:size])
        message = message[size:]
    return found


def unpacked(content):
    """The members of an object."""
    body = content[HEADER.size :]
    compressed = HEADER.unpack(content[: HEADER.size])[4] == ZSTD
    return zstandard.ZstdDecompressor().decompressobj().decompress(body) if compressed else body


def packed(body, compression=ZSTD):
    """An object with these members, whatever they are."""
    if compression == ZSTD:
        body = zstandard.ZstdCompressor().compress(body)
    return HEADER.pack(0xA15E, HEADER.size, 4, 3, compression, 0, HEADER.size + len(body)) + body


def replaced(message, place, change):
    """The message with the members of one object changed."""
    parts = objects(message)
    parts[place] = packed(change(unpacked(parts[place])))
    return b"".join(parts)


def fewer_parts(body):
    """Keys of one place whose last part is gone, and not counted."""
    (parts,) = struct.unpack_from("<Q", body, 40)
    size = (len(body) - 48) // parts
    return body[:40] + struct.pack("<Q", parts - 1) + body[48:-size]


def fewer_parts_of_the_first_rotation(body):
    """The same for the first place of rotation keys that has any."""
    at = 40
    while not any(body[at : at + 8]):
        at += 8
    (parts,) = struct.unpack_from("<Q", body, at)
    size = HEADER.unpack_from(body, at + 8)[-1]
    return (
        body[:at]
        + struct.pack("<Q", parts - 1)
        + body[at + 8 : at + 8 + size * (parts - 1)]
        + body[at + 8 + size * parts :]
    )


def damaged_seed(body):
    """The header of the seed at the end is no header."""
    at = len(body) - 64 - 1 - HEADER.size
    return body[:at] + b"\xff" * 5 + body[at + 5 :]


def huge(message, place, size):
    """The message with one object that is small and unpacks to `size` zeros after its own first 40 bytes."""
    parts = objects(message)
    start = unpacked(parts[place])[:40]
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    pieces = [compressor.compress(start)]
    zeros = bytes(2**20)
    pieces += [compressor.compress(zeros) for _ in range(size >> 20)]
    body = b"".join([*pieces, compressor.flush()])
    parts[place] = HEADER.pack(0xA15E, HEADER.size, 4, 3, ZSTD, 0, HEADER.size + len(body)) + body
    return b"".join(parts)


def all_zero(message):
    """A request whose ciphertexts have both polynomials, all zero."""
    found = []
    for one in objects(message):
        body = unpacked(one)
        (words,) = struct.unpack_from("<Q", body, 89)
        inner = HEADER.pack(0xA15E, HEADER.size, 4, 3, PLAIN, 0, HEADER.size + 8 + 16 * words)
        found.append(packed(body[:73] + inner + struct.pack("<Q", 2 * words) + bytes(16 * words)))
    return b"".join(found)


NUMBERS = [0, 1, 2, 3, 4, 7, 16, 255, 8192, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]


def _structural(rng, body):
    """A change where it hurts: counts, headers, identities; found by the magic number of inner headers."""
    body = bytearray(body)
    headers, at = [], 0
    while len(headers) < 40 and (at := body.find(b"\x5e\xa1\x10", at)) >= 0:
        headers.append(at)
        at += 3
    choice = rng.integers(6)
    if choice == 0 and headers:
        at = int(rng.choice(headers))
        body[at + int(rng.integers(16))] = int(rng.integers(256))
    elif choice == 1 and headers:
        at = int(rng.choice(headers))
        struct.pack_into(
            "<Q", body, at + 8, int(rng.integers(2**63)) if rng.random() < 0.3 else NUMBERS[rng.integers(15)]
        )
    elif choice == 2:
        at = min(int(rng.integers(16)) * 8, max(0, len(body) - 8))
        if len(body) >= 8:
            struct.pack_into("<Q", body, at, NUMBERS[rng.integers(15)])
    elif choice == 3:
        at = int(rng.integers(max(1, min(130, len(body)))))
        body[at : at + 1] = rng.bytes(1)
    elif choice == 4:
        end = len(body) - int(rng.integers(min(100, len(body))))
        body[max(0, end - 1) : end] = rng.bytes(1)
    else:
        at = int(rng.integers(len(body) + 1))
        length = int(rng.integers(1, 5000))
        body[at : at + length] = rng.bytes(length) if rng.random() < 0.5 else bytes(length if rng.random() < 0.5 else 0)
    return bytes(body)


def mutant(rng, message):
    """The message, changed somewhere: its bytes, an object's members, the order, the sizes."""
    choice = rng.integers(10)
    changed = bytearray(message)
    if choice == 0:
        for _ in range(rng.integers(1, 5)):
            changed[rng.integers(len(changed))] = int(rng.integers(256))
    elif choice == 1:
        changed[rng.integers(min(64, len(changed)))] = int(rng.integers(256))
    elif choice == 2:
        del changed[rng.integers(len(changed)) :]
    elif choice == 3:
        parts = objects(message)
        order = rng.integers(len(parts), size=rng.integers(len(parts) + 2))
        return b"".join(parts[i] for i in order)
    else:
        parts = objects(message)
        place = int(rng.integers(len(parts)))
        body = unpacked(parts[place])
        for _ in range(rng.integers(1, 3)):
            body = _structural(rng, body)
        if choice == 4:
            body = bytes(int(rng.integers(2**22)))
        parts[place] = packed(
            body, int(rng.choice([PLAIN, ZSTD, ZSTD, ZSTD, 1, 3])) if choice == 5 else ZSTD * (choice % 2)
        )
        return b"".join(parts)
    return bytes(changed)


LENGTHS = [
    "²",
    "-1",
    "+5",
    "5, 5",
    "5, 6",
    "0x10",
    "1e3",
    "9" * 30,
    "9" * 5000,
    "",
    " ",
    "\xff",
    "1_0",
    str(2**63),
    "0",
]
HOSTS = [
    "",
    "evil.example",
    "127.0.0.1.evil.example",
    "a b",
    "[::1",
    "localhost:x",
    "\xe9",
    "x" * 3000,
    "127.0.0.1@evil",
]


def head(rng, method, path, headers):
    """The head of a request, something about it changed."""
    lines = [[name, value] for name, value in headers.items()]
    choice = rng.integers(9)
    version = "HTTP/1.1"
    if choice == 0:
        method = str(rng.choice(["GET", "PUT", "HEAD", "OPTIONS", "BREW", "", "P\0ST", "CONNECT"]))
    elif choice == 1:
        path = str(
            rng.choice(
                ["/", "//", "/keys/", "/classify/", "/../plan", "*", "http://evil/plan", "/%00", "/" + "a" * 70000]
            )
        )
    elif choice == 2:
        lines = [[n, str(rng.choice(LENGTHS))] if n == "Content-Length" else [n, v] for n, v in lines]
    elif choice == 3:
        lines = [[n, str(rng.choice(HOSTS))] if n == "Host" else [n, v] for n, v in lines]
    elif choice == 4:
        lines.append(
            [["Transfer-Encoding", "chunked"], ["Content-Length", "7"], ["Expect", "100-continue"], ["Host", "b"]][
                rng.integers(4)
            ]
        )
    elif choice == 5:
        del lines[rng.integers(len(lines))]
    elif choice == 6:
        version = str(rng.choice(["HTTP/1.0", "HTTP/2", "HTTP/9.9", "", "ICY"]))
    elif choice == 7:
        lines += [[f"X-{i}", "y" * 100] for i in range(rng.integers(2000))]
    else:
        place = int(rng.integers(len(lines)))
        lines[place][rng.integers(2)] = rng.bytes(int(rng.integers(1, 40))).decode("latin1")
    return "\r\n".join([f"{method} {path} {version}", *(f"{n}: {v}" for n, v in lines), "", ""]).encode(
        "latin1", "replace"
    )

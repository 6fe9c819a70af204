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


def bodies(stream):
    """The bodies of all HTTP messages of one direction of a connection that have any."""
    found = []
    while stream:
        head, _, stream = stream.partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
        if length:
            found.append(stream[:length])
        stream = stream[length:]
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
    """Keys without a part of the first place that has any; the parts are counted."""
    at = 40
    while not any(body[at : at + 8]):
        at += 8
    (parts,) = struct.unpack_from("<Q", body, at)
    start, size = at + 8, HEADER.unpack_from(body, at + 8)[-1]
    kept = body[start : start + size * (parts - 1)]
    return body[:at] + struct.pack("<Q", parts - 1) + kept + body[start + size * parts :]


def damaged_seed(body):
    """The header of the seed at the end is no header."""
    at = len(body) - 64 - 1 - HEADER.size
    return body[:at] + b"\xff" * 5 + body[at + 5 :]


def huge(message, place, size):
    """The message with one object that is small and unpacks to `size` zeros after its own first 40 bytes."""
    parts = objects(message)
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    pieces = [compressor.compress(unpacked(parts[place])[:40])]
    pieces += [compressor.compress(bytes(2**20)) for _ in range(size >> 20)]
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
    choice, number = rng.integers(6), NUMBERS[rng.integers(15)]
    if choice < 2 and headers:
        at = int(rng.choice(headers))
        if choice == 0:
            body[at + int(rng.integers(16))] = int(rng.integers(256))
        else:
            struct.pack_into("<Q", body, at + 8, int(rng.integers(2**63)) if rng.random() < 0.3 else number)
    elif choice == 2 and len(body) >= 8:
        struct.pack_into("<Q", body, min(int(rng.integers(16)) * 8, len(body) - 8), number)
    elif choice == 3:
        at = int(rng.integers(max(1, min(130, len(body)))))
        body[at : at + 1] = rng.bytes(1)
    elif choice == 4:
        end = len(body) - int(rng.integers(max(1, min(100, len(body)))))
        body[max(0, end - 1) : end] = rng.bytes(1)
    else:
        at, length = int(rng.integers(len(body) + 1)), int(rng.integers(1, 5000))
        body[at : at + length] = [rng.bytes(length), bytes(length), b""][rng.integers(3)]
    return bytes(body)


def mutant(rng, message):
    """The message, changed somewhere: its bytes, an object's members, the order, the sizes."""
    choice = rng.integers(10)
    if choice < 3:
        changed = bytearray(message)
        if choice == 2:
            del changed[rng.integers(len(changed)) :]
        for _ in range([rng.integers(1, 5), 1, 0][choice]):
            changed[rng.integers(len(changed) if choice == 0 else min(64, len(changed)))] = int(rng.integers(256))
        return bytes(changed)
    parts = objects(message)
    if choice == 3:
        order = rng.integers(len(parts), size=rng.integers(len(parts) + 2))
        return b"".join(parts[i] for i in order)
    place = int(rng.integers(len(parts)))
    body = unpacked(parts[place])
    for _ in range(rng.integers(1, 3)):
        body = _structural(rng, body)
    if choice == 4:
        body = bytes(int(rng.integers(2**22)))
    compression = int(rng.choice([PLAIN, ZSTD, ZSTD, ZSTD, 1, 3])) if choice == 5 else ZSTD * (choice % 2)
    parts[place] = packed(body, compression)
    return b"".join(parts)


METHODS = ["GET", "PUT", "HEAD", "OPTIONS", "BREW", "", "P\0ST", "CONNECT"]
PATHS = ["/", "//", "/keys/", "/classify/", "/../plan", "*", "http://evil/plan", "/%00", "/" + "a" * 70000]
VERSIONS = ["HTTP/1.0", "HTTP/2", "HTTP/9.9", "", "ICY"]
LENGTHS = ["", " ", "0", "²", "-1", "+5", "5, 5", "5, 6", "0x10", "1e3", "1_0", "\xff"]
HOSTS = ["", "evil.example", "127.0.0.1.evil.example", "a b", "[::1", "localhost:x", "\xe9", "127.0.0.1@evil"]
LENGTHS, HOSTS = [*LENGTHS, "9" * 30, "9" * 5000, str(2**63)], [*HOSTS, "x" * 3000]
ODD = {"Content-Length": LENGTHS, "Host": HOSTS}
MORE = [("Transfer-Encoding", "chunked"), ("Content-Length", "7"), ("Expect", "100-continue"), ("Host", "b")]


def head(rng, method, path, headers):
    """The head of a request, something about it changed."""
    lines, version, choice = [list(header) for header in headers.items()], "HTTP/1.1", rng.integers(9)
    if choice == 0:
        method = str(rng.choice(METHODS))
    elif choice == 1:
        path = str(rng.choice(PATHS))
    elif choice in (2, 3):
        odd = ["Content-Length", "Host"][choice - 2]
        lines = [[name, str(rng.choice(ODD[odd])) if name == odd else value] for name, value in lines]
    elif choice == 4:
        lines.append(MORE[rng.integers(4)])
    elif choice == 5:
        del lines[rng.integers(len(lines))]
    elif choice == 6:
        version = str(rng.choice(VERSIONS))
    elif choice == 7:
        lines += [[f"X-{i}", "y" * 100] for i in range(rng.integers(2000))]
    else:
        lines[rng.integers(len(lines))][rng.integers(2)] = rng.bytes(int(rng.integers(1, 40))).decode("latin1")
    top = [f"{method} {path} {version}", *(f"{name}: {value}" for name, value in lines), "", ""]
    return "\r\n".join(top).encode("latin1", "replace")

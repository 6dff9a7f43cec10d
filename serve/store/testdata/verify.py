"""Verifies the audit trail of an SQLite store, after the text in ../chain.go, and
prints its head: python3 verify.py STORE. It needs Python's standard library alone."""
import hashlib, sqlite3, struct, sys

db = sqlite3.connect(sys.argv[1])


def text(*values):
    return b"".join(struct.pack(">I", len(v.encode())) + v.encode() for v in values)


def floats(*values):
    return b"".join(bytes.fromhex("7ff8000000000000") if v is None else struct.pack(">d", v) for v in values)


lines = []
for seq, id, time, source, name, image, detector, model, cls, confidence, score, p, threshold, ood, sha in db.execute(
        "SELECT seq, id, time, source, name, image, detector, model, class, confidence, score, p_value, threshold, ood, hash FROM verdicts"):
    lines.append((seq, b"v" + struct.pack(">q", seq) + text(id) + struct.pack(">q", time) + text(source, name, image, detector, model, cls)
                  + floats(confidence, score, p, threshold) + bytes([ood]), sha))
for seq, id, time, by, decision, cls, sha in db.execute("SELECT seq, id, time, reviewer, decision, class, hash FROM reviews"):
    lines.append((seq, b"r" + struct.pack(">q", seq) + text(id) + struct.pack(">q", time) + text(by, decision, cls), sha))

last = bytes(32)
for number, (seq, data, sha) in enumerate(sorted(lines), 1):
    last = hashlib.sha256(last + data).digest()
    if seq != number or last != sha:
        sys.exit(f"line {number} is not as it was")
if db.execute("SELECT seq, hash FROM head").fetchone() != (len(lines), last):
    sys.exit("the head names another line")
print(f"{len(lines)}:{last.hex()}")

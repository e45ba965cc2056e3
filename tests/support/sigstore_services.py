"""A Sigstore for tests: certificate authority (Fulcio), certificate log and signature log (Rekor), on loopback.

The public services cannot be reached from a test, and would keep what it signs for ever. Certificates, timestamps of
the certificate log (RFC 6962), entries, promises, inclusion proofs and checkpoints are made as the real ones make them;
that real clients take them, cosign and the sigstore library, is what shows it. Of a token only the claims are read: who
may have which token is the identity provider's business.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import http.server
import json
import struct
import threading

import jwt
import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER = "https://token.actions.githubusercontent.com"
WORKFLOW = "team/verl/.github/workflows/publish.yml@refs/tags/v1"
IDENTITY = f"https://github.com/{WORKFLOW}"
CLAIMS = {"iss": ISSUER, "job_workflow_ref": WORKFLOW}
_ISSUED_BY = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")  # Fulcio's extensions: the issuer, as raw bytes,
_ISSUED_BY_V2 = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")  # and as a UTF8String
_SCTS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_DER, _PEM = serialization.Encoding.DER, serialization.Encoding.PEM
_SPKI = serialization.PublicFormat.SubjectPublicKeyInfo
_SHA256 = ec.ECDSA(hashes.SHA256())
_ORIGIN = "rekor.test - 1"


def token(*, workflow=WORKFLOW, issuer=ISSUER, audience="sigstore", seconds=600):
    """What GitHub gives a job that may ask for it."""
    now = int(datetime.datetime.now(datetime.UTC).timestamp())
    said = {"iss": issuer, "sub": "repo:team/verl:ref:refs/tags/v1", "aud": audience, "job_workflow_ref": workflow}
    return jwt.encode(said | {"iat": now, "nbf": now - 5, "exp": now + seconds}, "a secret of the provider's " * 2)


def spki(key):
    return key.public_key().public_bytes(_DER, _SPKI)


def pem(key):
    return key.public_key().public_bytes(_PEM, _SPKI)


def b64(data):
    return base64.b64encode(data).decode()


class Services:
    """One Sigstore; `refuse` maps a path to the status that an ill service answers, or to 0: it says nothing."""

    def __init__(self):
        self.fulcio, self.ct, self.rekor = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        self.root_key = ec.generate_private_key(ec.SECP256R1())
        self.born = datetime.datetime.now(datetime.UTC).replace(microsecond=0) - datetime.timedelta(hours=1)
        self.root = self._authority("root", self.root_key, "root", self.root_key)
        self.authority = self._authority("fulcio", self.fulcio, "root", self.root_key)
        self.entries = [
            b"\0what others signed"
        ] * 3  # cosign refuses a proof without hashes, as only the first entry has
        self.certified = 0
        self.refuse: dict[str, int] = {}
        self.leaving = threading.Event()
        self.url = "http://127.0.0.1:9"  # where nothing answers, before it is entered

    def __enter__(self):
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.services = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.leaving.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # -- who is trusted, and where the services are

    def trusted_root(self):
        since = {"start": self.born.isoformat().replace("+00:00", "Z")}

        def log(key):
            public = {"rawBytes": b64(spki(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": since}
            known = {"keyId": b64(hashlib.sha256(spki(key)).digest())}
            return {"baseUrl": self.url, "hashAlgorithm": "SHA2_256", "publicKey": public, "logId": known}

        chain = [{"rawBytes": b64(x.public_bytes(_DER))} for x in (self.authority, self.root)]
        authority = {"subject": {"organization": "test", "commonName": "fulcio"}, "uri": self.url, "validFor": since}
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.rekor)],
            "certificateAuthorities": [authority | {"certChain": {"certificates": chain}}],
            "ctlogs": [log(self.ct)],
            "timestampAuthorities": [],
        }

    def signing_config(self):
        since = {"start": self.born.isoformat().replace("+00:00", "Z")}
        here = [{"url": self.url, "majorApiVersion": 1, "validFor": since, "operator": "test"}]
        any_one = {"selector": "ANY"}
        return {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": here, "oidcUrls": [], "rekorTlogUrls": here, "tsaUrls": [],
            "rekorTlogConfig": any_one, "tsaConfig": any_one,
        }  # fmt: skip

    def write(self, folder):
        """(trusted root, signing config) as files."""
        paths = folder / "trusted_root.json", folder / "signing_config.json"
        for path, document in zip(paths, (self.trusted_root(), self.signing_config()), strict=True):
            path.write_text(json.dumps(document))
        return paths

    def cosigns(self, folder):
        """Environment in which cosign trusts this Sigstore."""
        files = {"SIGSTORE_ROOT_FILE": self.chain(), "SIGSTORE_CT_LOG_PUBLIC_KEY_FILE": pem(self.ct),
                 "SIGSTORE_REKOR_PUBLIC_KEY": pem(self.rekor)}  # fmt: skip
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return {name: str(folder / name) for name in files}

    def chain(self):
        return b"".join(x.public_bytes(_PEM) for x in (self.authority, self.root))

    # -- Fulcio

    def _authority(self, name, key, by, by_key):
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), by, key.public_key())
        end = self.born + datetime.timedelta(days=3650)
        usage = _usage(key_cert_sign=True, crl_sign=True)
        return (
            builder.not_valid_before(self.born).not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=1 if name == "root" else 0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by_key.public_key()), critical=False)
            .sign(by_key, hashes.SHA256())
        )  # fmt: skip

    def _builder(self, subject, by, public_key):
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by)])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
        return builder.public_key(public_key).serial_number(x509.random_serial_number())

    def certificate(self, public_key, claims, *, at=None, also=()):
        """A certificate of ten minutes for who the claims say, and whom `also` names; noted in the certificate log."""
        self.certified += 1
        at = at or datetime.datetime.now(datetime.UTC).replace(microsecond=0) - datetime.timedelta(seconds=5)
        issuer = claims["iss"].encode()
        text = b"\x0c" + _length(issuer) + issuer
        names = [x509.UniformResourceIdentifier(x) for x in (f"https://github.com/{claims['job_workflow_ref']}", *also)]
        builder = (
            self._builder(x509.Name([]), "fulcio", public_key)
            .not_valid_before(at).not_valid_after(at + datetime.timedelta(minutes=10))
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.fulcio.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.UnrecognizedExtension(_ISSUED_BY, issuer), critical=False)
            .add_extension(x509.UnrecognizedExtension(_ISSUED_BY_V2, text), critical=False)
        )  # fmt: skip
        before = builder.sign(self.fulcio, hashes.SHA256())
        noted = x509.UnrecognizedExtension(_SCTS, self._noted(before.tbs_certificate_bytes, at))
        return builder.add_extension(noted, critical=False).sign(self.fulcio, hashes.SHA256())

    def _noted(self, tbs, at):
        """The certificate log's timestamp, as a list of one (RFC 6962, 3.2 and 3.3)."""
        when = struct.pack("!Q", int(at.timestamp()) * 1000)
        entry = hashlib.sha256(spki(self.fulcio)).digest() + struct.pack("!I", len(tbs))[1:] + tbs
        signature = self.ct.sign(b"\0\0" + when + struct.pack("!H", 1) + entry + b"\0\0", _SHA256)
        known = b"\0" + hashlib.sha256(spki(self.ct)).digest() + when + b"\0\0"
        one = known + b"\x04\x03" + struct.pack("!H", len(signature)) + signature
        rows = struct.pack("!H", len(one)) + one
        rows = struct.pack("!H", len(rows)) + rows
        return b"\x04" + _length(rows) + rows

    def bundle(self, statement, *, claims=None, kind="application/vnd.in-toto+json", entered=None, **certificate):
        """A statement signed without a key, as the JSON object of a bundle.

        Args:
            statement: its bytes.
            claims: of the token.
            kind: type of the payload.
            entered: time of the log entry.
            certificate: as of `certificate`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.certificate(key.public_key(), claims or CLAIMS, **certificate)
        signed = b" ".join((b"DSSEv1", str(len(kind)).encode(), kind.encode(), str(len(statement)).encode(), statement))
        signature = b64(key.sign(signed, _SHA256))
        envelope = {"payload": b64(statement), "payloadType": kind, "signatures": [{"sig": signature}]}
        content = {"envelope": json.dumps(envelope), "verifiers": [b64(certificate.public_bytes(_PEM))]}
        proposed = {"apiVersion": "0.0.1", "kind": "dsse", "spec": {"proposedContent": content}}
        (entry,) = self.add(proposed, at=entered).values()
        proof = entry["verification"]["inclusionProof"]
        noted = {
            "logIndex": str(entry["logIndex"]),
            "logId": {"keyId": b64(bytes.fromhex(entry["logID"]))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(entry["integratedTime"]),
            "inclusionPromise": {"signedEntryTimestamp": entry["verification"]["signedEntryTimestamp"]},
            "inclusionProof": {
                "logIndex": str(proof["logIndex"]), "treeSize": str(proof["treeSize"]),
                "rootHash": b64(bytes.fromhex(proof["rootHash"])),
                "hashes": [b64(bytes.fromhex(x)) for x in proof["hashes"]],
                "checkpoint": {"envelope": proof["checkpoint"]},
            },
            "canonicalizedBody": entry["body"],
        }  # fmt: skip
        material = {"certificate": {"rawBytes": b64(certificate.public_bytes(_DER))}, "tlogEntries": [noted]}
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": material,
            "dsseEnvelope": envelope,
        }

    # -- Rekor

    def add(self, proposed, *, at=None):
        """An entry of the log, as its answer has it."""
        body = rfc8785.dumps(_canonical(proposed))
        self.entries.append(b"\0" + body)
        number, size = len(self.entries) - 1, len(self.entries)
        known = hashlib.sha256(spki(self.rekor)).digest()
        when = int((at or datetime.datetime.now(datetime.UTC)).timestamp())
        entry = {"body": b64(body), "integratedTime": when, "logID": known.hex(), "logIndex": number}
        top = _top(self.entries)
        note = f"{_ORIGIN}\n{size}\n{b64(top)}\n"
        signed = b64(known[:4] + self.rekor.sign(note.encode(), _SHA256))
        proof = {
            "checkpoint": f"{note}\n\u2014 {_ORIGIN.split(maxsplit=1)[0]} {signed}\n",
            "hashes": [x.hex() for x in _path(number, self.entries)],
            "logIndex": number, "rootHash": top.hex(), "treeSize": size,
        }  # fmt: skip
        promise = b64(self.rekor.sign(rfc8785.dumps(entry), _SHA256))
        verification = {"inclusionProof": proof, "signedEntryTimestamp": promise}
        leaf = hashlib.sha256(self.entries[-1]).hexdigest()
        return {f"{1:016x}{leaf}": entry | {"verification": verification}}


def _usage(**true):
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    return x509.KeyUsage(**{name: true.get(name, False) for name in names})


def _length(data):
    """A DER length."""
    size = len(data)
    if size < 128:
        return bytes([size])
    return b"\x81" + bytes([size]) if size < 256 else b"\x82" + struct.pack("!H", size)


def _canonical(proposed):
    """What the log keeps of a proposed entry."""
    if proposed["kind"] != "dsse":
        return proposed
    content = proposed["spec"]["proposedContent"]
    envelope = json.loads(content["envelope"])
    payload = base64.b64decode(envelope["payload"])
    (verifier,) = content["verifiers"]
    return {"apiVersion": "0.0.1", "kind": "dsse", "spec": {
        "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(content["envelope"].encode()).hexdigest()},
        "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
        "signatures": [{"signature": x["sig"], "verifier": verifier} for x in envelope["signatures"]],
    }}  # fmt: skip


def _split(size):
    return 1 << (size - 1).bit_length() - 1


def _top(leaves):
    """Root of a Merkle tree (RFC 6962, 2.1)."""
    if len(leaves) == 1:
        return hashlib.sha256(leaves[0]).digest()
    middle = _split(len(leaves))
    return hashlib.sha256(b"\1" + _top(leaves[:middle]) + _top(leaves[middle:])).digest()


def _path(number, leaves):
    """Audit path of a leaf (RFC 6962, 2.1.1)."""
    if len(leaves) == 1:
        return []
    middle = _split(len(leaves))
    if number < middle:
        return [*_path(number, leaves[:middle]), _top(leaves[middle:])]
    return [*_path(number - middle, leaves[middle:]), _top(leaves[:middle])]


def _public_key(asked):
    """The key to be certified: the sigstore library sends a request for a certificate, cosign 3 the key."""
    if request := asked.get("certificateSigningRequest"):
        return x509.load_pem_x509_csr(base64.b64decode(request)).public_key()
    return serialization.load_pem_public_key(asked["publicKeyRequest"]["publicKey"]["content"].encode())


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for the `services` of its server."""

    def do_GET(self):
        """Give a token, as GitHub does to its jobs."""
        status = self.server.services.refuse.get(self.path)
        if status == 0:
            self.server.services.leaving.wait()
        elif status:
            self._answer("\udcff refused", status)
        else:
            said = "Authorization" in self.headers and "audience=sigstore" in self.path
            self._answer({"value": token()} if said else {}, 200 if said else 403)

    def do_POST(self):
        services = self.server.services
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = services.refuse.get(self.path)
        if status == 0:
            services.leaving.wait()
        elif status:
            self._answer({"code": status, "message": "not today"}, status)
        elif self.path == "/api/v2/signingCert":
            chain = self._chain(_public_key(body))
            self._answer({"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}, 200)
        elif self.path == "/api/v1/signingCert":  # cosign 2
            key = serialization.load_pem_public_key(base64.b64decode(body["publicKey"]["content"]))
            self._answer("".join(self._chain(key)), 201)
        else:
            entry = services.add(body)
            self._answer(entry, 201, ETag=next(iter(entry)))

    def _chain(self, public_key):
        raw = self.headers["Authorization"].removeprefix("Bearer ")
        claims = jwt.decode(raw, options={"verify_signature": False})
        services = self.server.services
        chain = (services.certificate(public_key, claims), services.authority, services.root)
        return [x.public_bytes(_PEM).decode() for x in chain]

    def _answer(self, document, status, **headers):
        kind = "application/pem-certificate-chain" if isinstance(document, str) else "application/json"
        data = (
            document.encode("utf-8", "surrogateescape") if isinstance(document, str) else json.dumps(document).encode()
        )
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

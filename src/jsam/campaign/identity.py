"""Certificates and keys for a federation on one machine: an authority, the SuperLink's certificate, clients' keys.

For real deployments use your own authority, or the commands of docs/how-to/flower.md; these live for a week.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from jsam.files import keep_private, make_folder, write_atomically

_LIFE = datetime.timedelta(days=7)


class Certificates:
    """Files in a folder: ca.crt, server.crt, server.key, and for each client NAME and NAME.pub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    def private_key(self, name: str) -> Path:
        return self.folder / name

    def public_key(self, name: str) -> Path:
        return self.folder / f"{name}.pub"

    @classmethod
    def make(cls, folder: Path, clients: Iterable[str] = ()) -> Certificates:
        """A new authority, a certificate for 127.0.0.1 and localhost, and a key pair for each client."""
        made = cls(folder)
        make_folder(made.folder)
        keep_private(made.folder, "certificates")
        authority_key = ec.generate_private_key(ec.SECP384R1())
        authority = _certificate("jsam local authority", authority_key, None)
        server_key = ec.generate_private_key(ec.SECP384R1())
        server = _certificate("localhost", server_key, (authority, authority_key))
        write_atomically(made.authority, authority.public_bytes(serialization.Encoding.PEM))
        write_atomically(made.folder / "server.crt", server.public_bytes(serialization.Encoding.PEM))
        write_atomically(made.folder / "server.key", _private(server_key, serialization.PrivateFormat.PKCS8))
        for name in clients:  # as `ssh-keygen -t ecdsa -b 384` makes them
            key = ec.generate_private_key(ec.SECP384R1())
            write_atomically(made.private_key(name), _private(key, serialization.PrivateFormat.OpenSSH))
            public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
            write_atomically(made.public_key(name), public + b"\n")
        return made

    def superlink_options(self) -> list[str]:
        options = ["--ssl-ca-certfile", str(self.authority), "--ssl-certfile", str(self.folder / "server.crt")]
        return [*options, "--ssl-keyfile", str(self.folder / "server.key"), "--enable-supernode-auth"]

    def supernode_options(self, name: str) -> list[str]:
        key = str(self.private_key(name))
        return ["--root-certificates", str(self.authority), "--auth-supernode-private-key", key]


def public_key_text(data: bytes) -> str:
    """One form for one key, whether it comes as PEM (from Flower) or as OpenSSH's line; empty if it is none."""
    load = serialization.load_pem_public_key if b"-----BEGIN" in data else serialization.load_ssh_public_key
    try:
        key = load(data)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
) -> x509.Certificate:
    """Signed by the issuer, or, without one, an authority signed by itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signer = key if issuer is None else issuer[1]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer is not None:
        names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

"""Certificates for tests, made with the program openssl: an authority, a server, a client."""

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

MAKE_S = 60.0
DAYS = "2"


class Signed(NamedTuple):
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Certificates(NamedTuple):
    """One authority, and who has a certificate of it; ``stranger`` has one of nobody."""

    authority: Path
    server: Signed
    client: Signed
    stranger: Signed

    def trusting(self, shown: Signed | None = None) -> ssl.SSLContext:
        """What a client uses that trusts the authority; ``shown`` is what it shows of itself."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        return context

    def table(self) -> dict[str, str]:
        """The server's part of the table [nats]."""
        return {"tls_cert": str(self.server.certificate), "tls_key": str(self.server.key)}


def make(folder: Path) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on the path (a package of that name in most systems)")
    authority = _self_signed(folder, "authority")
    return Certificates(
        authority.certificate,
        _signed(folder, "server", authority),
        _signed(folder, "client", authority),
        _self_signed(folder, "stranger"),
    )


def _openssl(*arguments: str | Path) -> None:
    made = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=MAKE_S
    )
    assert made.returncode == 0, made.stderr


def _self_signed(folder: Path, name: str) -> Signed:
    signed = Signed(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", DAYS, "-subj", f"/CN={name}"),
        *("-keyout", signed.key, "-out", signed.certificate),
    )
    return signed


def _signed(folder: Path, name: str, authority: Signed) -> Signed:
    signed = Signed(folder / f"{name}.pem", folder / f"{name}.key")
    asked, names = folder / f"{name}.csr", folder / f"{name}.names"
    names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    _openssl(
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
        *("-keyout", signed.key, "-out", asked),
    )
    _openssl(
        *("x509", "-req", "-in", asked, "-days", DAYS, "-extfile", names),
        *("-CA", authority.certificate, "-CAkey", authority.key, "-CAcreateserial"),
        *("-out", signed.certificate),
    )
    return signed

"""TLS: INFO in the clear, then the handshake, then everything as ever."""

import ssl

import pytest

from tests.conformance.nats import certificates
from tests.conformance.nats.certificates import Certificates
from tests.conformance.nats.conftest import NatsServer, Started
from tests.conformance.nats.raw_client import FULL, VIOLATION, RawClient, error, pub, sub

pytestmark = pytest.mark.process


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def encrypted(start: Started, made: Certificates) -> NatsServer:
    return start(**made.table())


@pytest.fixture
def verifying(start: Started, made: Certificates) -> NatsServer:
    return start(**made.table(), tls_ca=str(made.authority), tls_verify=True)


def test_info_says_that_tls_is_required(encrypted: NatsServer, made: Certificates) -> None:
    with encrypted.connect(tls=made.trusting()) as client:
        assert client.info["tls_required"] is True
        assert not client.info.get("tls_verify")


def test_after_the_handshake_all_is_as_ever(
    encrypted: NatsServer, made: Certificates, subject: str
) -> None:
    payload = bytes(range(256)) * 1_000
    with (
        encrypted.connect(tls=made.trusting()) as one,
        encrypted.connect(tls=made.trusting()) as two,
    ):
        one.until_pong(sub(subject))
        two.until_pong(pub(subject, payload, "reply") * 20)
        assert [message.payload for message in one.read_messages(20)] == [payload] * 20


def test_there_is_one_info_and_it_is_in_the_clear(
    encrypted: NatsServer, made: Certificates
) -> None:
    with encrypted.connect(None, tls=made.trusting()) as client:
        assert client.is_quiet()
        client.send(b'CONNECT {"verbose":false,"pedantic":false,"tls_required":true}\r\nPING\r\n')
        assert client.read_line() == b"PONG"


def test_who_goes_on_in_the_clear_is_closed_without_a_word(encrypted: NatsServer) -> None:
    with encrypted.connect() as client:
        assert client.until_closed(b"PING\r\n") == b""


def test_who_says_nothing_is_closed_in_time(encrypted: NatsServer) -> None:
    with encrypted.connect(None) as client:
        assert client.until_closed() == b""


def test_a_client_that_trusts_nobody_does_not_connect(encrypted: NatsServer, subject: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        encrypted.connect(tls=ssl.create_default_context())


def test_a_client_s_certificate_is_not_needed_where_nobody_asks(
    encrypted: NatsServer, made: Certificates
) -> None:
    with encrypted.connect(tls=made.trusting(made.client)) as client:
        assert client.until_pong() == b""


def test_what_a_client_says_before_it_closes_is_handed_on(
    encrypted: NatsServer, made: Certificates
) -> None:
    with encrypted.connect(tls=made.trusting()) as reader:
        reader.until_pong(sub("last.words"))
        with encrypted.connect(tls=made.trusting()) as writer:
            writer.until_pong()
            writer.send(pub("last.words", b"x" * 100) * 20_000)
        assert len(reader.read_messages(20_000)) == 20_000


def test_a_handshake_is_no_good_where_tls_is_not_configured(
    server: NatsServer, made: Certificates
) -> None:
    with pytest.raises(ssl.SSLError):
        server.connect(tls=made.trusting())


def test_a_client_with_a_certificate_is_served_where_they_are_verified(
    verifying: NatsServer, made: Certificates, subject: str
) -> None:
    with verifying.connect(tls=made.trusting(made.client)) as client:
        assert client.info["tls_required"] is True
        assert client.info["tls_verify"] is True
        assert len(client.messages_until_pong(sub(subject) + pub(subject))) == 1


def _is_refused(server: NatsServer, context: ssl.SSLContext) -> bool:
    """The client may see the end of its handshake before it is refused."""
    try:
        with server.connect(tls=context) as client:
            return client.until_closed(b"PING\r\n") == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_a_client_without_one_is_refused(verifying: NatsServer, made: Certificates) -> None:
    assert _is_refused(verifying, made.trusting())


def test_a_client_with_one_of_nobody_is_refused(verifying: NatsServer, made: Certificates) -> None:
    assert _is_refused(verifying, made.trusting(made.stranger))


def test_credentials_are_asked_for_within_tls(start: Started, made: Certificates) -> None:
    guarded = start(**made.table(), token="secret", auth_timeout=1.0)
    with guarded.connect({**FULL, "auth_token": "secret"}, tls=made.trusting()) as client:
        assert client.info["tls_required"] and client.info["auth_required"]
        assert client.until_pong() == b""
    with guarded.connect(tls=made.trusting()) as client:
        assert client.until_closed(b"PING\r\n") == VIOLATION
    with guarded.connect(None, tls=made.trusting()) as client:
        assert client.until_closed() == error("Authentication Timeout")


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01\x00\x05junk!", b"\0" * 300, b"GET / HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_handshake_harms_nobody(
    encrypted: NatsServer, made: Certificates, junk: bytes
) -> None:
    with encrypted.connect(tls=made.trusting()) as well:
        with RawClient(encrypted.url, None) as client:
            client.send(junk)
            client.shut()
            client.until_closed()
        assert well.until_pong() == b""

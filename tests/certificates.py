"""Certificates of the tests' own servers."""

from datetime import timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from nanoloop.session.entry import utc_now


def certified(folder, *names):
    """A key and a certificate for 127.0.0.1 and these names that vouches for itself, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = utc_now()
    certificate = x509.CertificateBuilder(
        name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1)
    )
    here = x509.SubjectAlternativeName(
        [x509.IPAddress(ip_address("127.0.0.1")), *map(x509.DNSName, names)]
    )
    signed = certificate.add_extension(here, critical=False).sign(key, hashes.SHA256())
    plain = (PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, *plain))
    (folder / "cert.pem").write_bytes(signed.public_bytes(Encoding.PEM))

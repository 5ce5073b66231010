"""Addresses of processes: host and port as text, and where a socket listens."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct

_SIOCGIFADDR = 0x8915


def split(text: str) -> tuple[str, int | None]:
    """Host and port of "host", "host:port", "::1" or "[::1]:port"; no port where none is written. Raises ValueError."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        if rest and not rest.startswith(":"):
            raise ValueError(text)
        port = rest[1:]
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16)):
        raise ValueError(text)
    return host, int(port) if port else None


def join(host: str, port: int) -> str:
    """ "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_literal(host: str) -> bool:
    """Whether this is an address, not a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def resolve(host: str, port: int = 0) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """The socket addresses that a name stands for on this machine. Raises OSError where it is unknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # of a name with an empty or an overlong part
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not a host's name") from error
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach that host. A name that is unknown is not loopback."""
    try:
        return all(ipaddress.ip_address(address[0].partition("%")[0]).is_loopback for _, address in resolve(host))
    except OSError:
        return False


def listen(host: str, port: int, backlog: int = 1024) -> socket.socket:
    """A socket that listens there. Raises OSError where the address is not this machine's or the port is in use."""
    problem: OSError | None = None
    for family, address in resolve(host, port):
        server = socket.socket(family, socket.SOCK_STREAM)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a run may begin right after another ended
            server.bind(address)
            server.listen(backlog)
            return server
        except OSError as error:
            server.close()
            problem = error
    assert problem is not None  # getaddrinfo finds one address or raises
    raise problem


def free_port(host: str) -> int:
    """A port that was free a moment ago."""
    with listen(host, 0) as probe:
        return probe.getsockname()[1]


def own_addresses() -> list[str]:
    """IPv4 addresses by which other machines may reach this one, as far as the system says."""
    found = []
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError, ImportError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            import fcntl  # not on every system

            request = struct.pack("256s", os.fsencode(name)[:15])
            found.append(socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]))
    return [address for address in found if not is_loopback(address)]

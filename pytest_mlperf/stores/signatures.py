"""Sign and verify results files with SSH keys, by OpenSSH's ssh-keygen.

https://man.openbsd.org/ssh-keygen#Y and #ALLOWED_SIGNERS.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.stores.atomic import write_whole
from pytest_mlperf.stores.foreign import content_of

NAMESPACE = "pytest-mlperf"
"""Purpose of the signatures: ssh-keygen rejects those made for another one."""

SIGNATURE_SUFFIX = ".sig"

SIGNING_TIMEOUT_SECONDS = 60.0


def signature_of(path: Path) -> Path:
    """Return the path of a file's signature."""
    return path.with_name(path.name + SIGNATURE_SUFFIX)


def sign(path: Path, key: Path) -> Path:
    """Sign a file with an SSH key or an agent; raise MlperfError if the key cannot be used."""
    command = ["-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE]
    done = _keygen(command, content_of(path, "results file"))
    if done.returncode or not done.stdout:
        raise MlperfError(
            f"{path}: not signed: ssh-keygen cannot use {key}: {_complaint(done)}; name a private "
            "key without passphrase, or a public one whose private key an agent has (ssh-add)"
        )
    signature = signature_of(path)
    write_whole(signature, done.stdout)
    return signature


def verified(path: Path, content: bytes, allowed: Path) -> str:
    """Return the signer of `content`; raise MlperfError unless the signer is in `allowed`."""
    signature = signature_of(path)
    content_of(allowed, "file of allowed signers")
    if not signature.exists():
        raise MlperfError(f"{path}: not signed: {signature.name} is missing")
    # ssh-keygen reads the signature twice: a copy cannot change in between.
    with tempfile.NamedTemporaryFile(suffix=SIGNATURE_SUFFIX) as copy:
        copy.write(content_of(signature, "signature"))
        copy.flush()
        by = ("-s", copy.name, "-f", str(allowed))
        listed = _keygen(["-Y", "find-principals", *by], b"")
        names = listed.stdout.decode("utf-8", "replace").splitlines()
        if listed.returncode or not names:
            raise MlperfError(f"{path}: its signer is not in {allowed}: {_complaint(listed)}")
        for name in names:
            checked = _keygen(["-Y", "verify", *by, "-I", name, "-n", NAMESPACE], content)
            if checked.returncode == 0:
                return visible(name)
    raise MlperfError(f"{path}: its signature is invalid: {_complaint(checked)}")


def _keygen(arguments: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            input=content,
            capture_output=True,
            env=environment,
            timeout=SIGNING_TIMEOUT_SECONDS,
            start_new_session=True,  # without a terminal
            check=False,
        )
    except FileNotFoundError:
        raise EnvironmentFault("ssh-keygen is not installed; install OpenSSH's client") from None
    except subprocess.TimeoutExpired:
        raise MlperfError(
            f"ssh-keygen did not answer within {SIGNING_TIMEOUT_SECONDS:.0f} s"
        ) from None


def _complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").split("\n")
    return visible(next(filter(None, map(str.strip, lines)), f"exit code {done.returncode}"))

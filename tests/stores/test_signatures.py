"""Test signed results: accepted only unchanged, from an allowed signer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.stores.results import write_results
from pytest_mlperf.stores.signatures import sign, signature_of, verified
from tests.reports import verdicts
from tests.reports.verdicts import result, session

pytestmark = pytest.mark.process


def new_key(path: Path, passphrase: str = "") -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with keys of Ann and Bob, and a file that allows Ann."""
    folder = tmp_path_factory.mktemp("keys")
    ann = new_key(folder / "ann")
    new_key(folder / "bob")
    public = ann.with_suffix(".pub").read_text()
    (folder / "allowed").write_text(f'ann@example.org namespaces="pytest-mlperf" {public}')
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "results.json"
    write_results(path, session(result(verdicts.OK)))
    return path


def test_the_signer_is_named_and_later_changes_are_refused(
    file: Path, keys: Path, tmp_path: Path
) -> None:
    """A key that wants a passphrase is not waited for."""
    assert sign(file, keys / "ann") == signature_of(file)
    assert verified(file, file.read_bytes(), keys / "allowed") == "ann@example.org"

    file.write_text(file.read_text("utf-8").replace('"seconds"', '"seconds" '), "utf-8")
    with pytest.raises(MlperfError, match="its signature is invalid"):
        verified(file, file.read_bytes(), keys / "allowed")

    signature_of(file).unlink()
    key = new_key(tmp_path / "locked", "secret")

    with pytest.raises(MlperfError, match=r"not signed: ssh-keygen cannot use .*ssh-add"):
        sign(file, key)
    assert not signature_of(file).exists()


def test_another_signer_and_a_signature_for_another_use_are_refused(file: Path, keys: Path) -> None:
    sign(file, keys / "bob")
    with pytest.raises(MlperfError, match=r"its signer is not in .*allowed: "):
        verified(file, file.read_bytes(), keys / "allowed")

    signature_of(file).unlink()
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(keys / "ann"), "-n", "git", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(MlperfError, match="its signature is invalid"):
        verified(file, file.read_bytes(), keys / "allowed")


def test_merge_takes_and_makes_signed_results(
    file: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed, merged = ("--verify", str(keys / "allowed")), tmp_path / "all.json"

    assert main(["merge", str(file), *allowed]) == 2
    assert "results.json.sig is missing" in capsys.readouterr().err

    sign(file, keys / "ann")
    made = ["-o", str(merged), "--sign", str(keys / "ann")]
    assert main(["merge", str(file), *allowed, *made]) == 0
    assert "results.json: signed by ann@example.org" in capsys.readouterr().out
    assert verified(merged, merged.read_bytes(), keys / "allowed") == "ann@example.org"

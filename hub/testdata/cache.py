# SPDX-License-Identifier: Apache-2.0
"""Downloads, reads and locks a cache by huggingface_hub, for TestPython of the package's test:

    go test ./hub -run TestPython -python PYTHON             (with -rewrite it writes layout.txt)

write REPO PATTERN…    downloads the files of a model that match
read REPO PATTERN…     prints the files of a snapshot without the network, as JSON, with what scan_cache_dir finds wrong
hold FILE              takes a lock, says so, and gives it up when its input ends
try FILE               says whether another process has a lock
upload REPO FOLDER     makes a repository and uploads a folder, for TestUploadRequests
"""
import json
import pathlib
import sys

import huggingface_hub
from huggingface_hub.utils import WeakFileLock, disable_progress_bars


def snapshot(repo, patterns, offline):
    path = huggingface_hub.snapshot_download(repo, allow_patterns=patterns, local_files_only=offline)
    return pathlib.Path(path)


def read(repo, patterns):
    top = snapshot(repo, patterns, True)
    files = {}
    for path in sorted(p for p in top.rglob("*") if p.is_file()):
        name = path.relative_to(top).as_posix()
        one = huggingface_hub.hf_hub_download(repo, name, local_files_only=True)
        assert pathlib.Path(one) == path, (one, path)
        files[name] = path.read_text()
    scan = huggingface_hub.scan_cache_dir()
    json.dump({"commit": top.name, "files": files, "warnings": [str(w) for w in scan.warnings],
               "repos": [r.repo_id for r in scan.repos]}, sys.stdout)


def hold(file):
    with WeakFileLock(file):
        print("held", flush=True)
        sys.stdin.read()


def attempt(file):
    try:
        with WeakFileLock(file, timeout=0.3):
            print("free")
    except Exception as e:
        print("taken" if type(e).__name__ == "Timeout" else repr(e))


disable_progress_bars()
what, first, *rest = sys.argv[1:]
if what == "write":
    snapshot(first, rest, False)
elif what == "read":
    read(first, rest)
elif what == "upload":
    api = huggingface_hub.HfApi()
    api.create_repo(first, exist_ok=True)
    api.upload_folder(repo_id=first, folder_path=rest[0])
elif what == "hold":
    hold(first)
else:
    attempt(first)

"""Starts examples/clm with the real torchrun (and HuggingFace's accelerate launch, if it is installed) in every
rendezvous mode, without a variable of Lockstep's, and compares the weights with those of one rank, byte by byte.

    go build -o out/clm ./examples/clm
    VENV/bin/python tests/parity/check_torchrun.py out/clm [MODE ...]

It takes two to four minutes. Modes that kill do so with SIGKILL, a rank each of two attempts, with --max-restarts 2: the job
must go on from its checkpoint and end with the same weights. The last line is `ok`.
"""
import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(sys.argv[1]).resolve()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--no_python"]
FLAGS = [
    "--train_file", f"{ROOT}/docs/numerics.md", "--train_file", f"{ROOT}/docs/ARCHITECTURE.md", "--validation_file", f"{ROOT}/docs/checkpoints.md",
    "--n_layer", "2", "--n_embd", "64", "--n_head", "2", "--vocab_size", "400", "--block_size", "32", "--max_new_tokens", "0",
    "--per_device_train_batch_size", "2", "--global_train_batch_size", "16", "--logging_steps", "20", "--eval_steps", "1000",
    "--save_steps", "20", "--log_level", "info",
]
SHORT, LONG = ["--max_steps", "40"], ["--max_steps", "600"]
PATIENCE = 180  # seconds for a run


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def modes():
    """Name, command lines (one for each agent), variables, whether ranks are killed."""
    two = ["--nnodes", "2"]
    unshared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def c10d(*more):
        return [*TORCHRUN, *more, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port()}", "--rdzv-id", "job"]

    def static(host="127.0.0.1", agents=1):
        address = ["--master-addr", host, "--master-port", str(port())]
        if agents == 1:
            return [[*TORCHRUN, *address]]
        return [[*TORCHRUN, *two, "--node-rank", str(n), *address] for n in range(agents)]

    standalone = [[*TORCHRUN, "--standalone"]]
    yield "no flags", [TORCHRUN], {}, False
    yield "standalone", standalone, {}, False
    yield "standalone, unshared", standalone, unshared, False
    yield "standalone, token", standalone, {"LOCKSTEP_JOB_TOKEN": "a token of all ranks"}, False
    yield "c10d", [c10d()], {}, False
    yield "c10d, unshared", [c10d()], unshared, False
    yield "static", static(), {}, False
    for name, env in ("", {}), (", unshared", unshared):
        line = c10d(*two)
        yield f"c10d, 2 agents{name}", [line, line], env, False
    yield "static, 2 agents", static(agents=2), {}, False
    yield "static by name, 2 agents", static(socket.gethostname(), 2), {}, False
    # What PyTorch served before libuv's server, and still has.
    older = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=False)
    yield "by hand, older server", [[
        "env", f"RANK={n}", f"LOCAL_RANK={n}", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
        f"MASTER_PORT={older.port}", "TORCHELASTIC_RUN_ID=job", "TORCHELASTIC_USE_AGENT_STORE=True"] for n in range(2)], {}, False
    if importlib.util.find_spec("accelerate"):
        yield "accelerate launch", [[
            sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
            "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(port()), "--no_python"]], {}, False
    restarts = ["--max-restarts", "2"]
    yield "standalone, killed", [[*TORCHRUN, "--standalone", *restarts]], {}, True
    yield "standalone, unshared, killed", [[*TORCHRUN, "--standalone", *restarts]], unshared, True
    yield "static, killed", [line + restarts for line in static()], {}, True
    line = c10d(*two, *restarts)
    yield "c10d, 2 agents, killed", [line, line], {}, True
    line = c10d(*two, *restarts)
    yield "c10d, 2 agents, unshared, killed", [line, line], unshared, True
    yield "static, 2 agents, killed", [line + restarts for line in static(agents=2)], {}, True


def steps(out):
    return max((int(p.name[11:]) for p in out.glob("checkpoint-*") if p.name[11:].isdigit()), default=0)


def kill(out, rank, after):
    """Kills the process of a rank once the run has a checkpoint from that step on."""
    deadline = time.time() + PATIENCE
    while steps(out) < after and time.time() < deadline:
        time.sleep(0.02)
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words, env = (p / "cmdline").read_bytes().split(b"\0"), (p / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == str(PROGRAM).encode() and str(out).encode() in words and f"RANK={rank}".encode() in env:
            os.kill(int(p.name), signal.SIGKILL)
            return
    raise SystemExit(f"no rank {rank} to kill")


def run(out, lines, env, killed):
    """Runs a job and returns what its agents printed."""
    argv = [str(PROGRAM), *FLAGS, *(LONG if killed else SHORT), "--output_dir", str(out)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    logs = [tempfile.TemporaryFile("w+") for _ in lines]
    agents = [subprocess.Popen([*line, *argv], env=clean | env, stdout=log, stderr=subprocess.STDOUT)
              for line, log in zip(lines, logs)]
    if killed:
        kill(out, 2 * len(lines) - 1, 40)
        time.sleep(1)
        kill(out, 0, 200)
    codes = [a.wait(PATIENCE) for a in agents]
    text = ""
    for log in logs:
        log.seek(0)
        text += log.read()
    if any(codes):
        print(text)
        raise SystemExit(f"exit codes {codes}")
    return text


def main():
    print("torch", torch.__version__)
    wanted, failed = sys.argv[2:], 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        weights = {}
        for killed, flags in (False, SHORT), (True, LONG):
            out = scratch / f"one-{killed}"
            subprocess.run([str(PROGRAM), *FLAGS, *flags, "--output_dir", str(out)], check=True, capture_output=True)
            weights[killed] = (out / "model.safetensors").read_bytes()
        for n, (name, lines, env, killed) in enumerate(modes()):
            if wanted and name not in wanted:
                continue
            out, began = scratch / str(n), time.time()
            text = run(out, lines, env, killed)
            joined, resumed = text.count("joined the job"), text.count("msg=resumed checkpoint")
            same = (out / "model.safetensors").read_bytes() == weights[killed]
            good = same and joined == (3 if killed else 1) and resumed == (2 if killed else 0)
            failed += not good
            print(f"{name:32} {'same weights' if same else 'OTHER WEIGHTS'}  joined {joined}, resumed {resumed}"
                  f"  {time.time() - began:.0f} s{'' if good else '  WRONG'}", flush=True)
    if failed:
        raise SystemExit(f"{failed} wrong")
    print("ok")


if __name__ == "__main__":
    main()

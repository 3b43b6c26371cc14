#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do the real clients and servers of trackers take what the reporters send?

    check_trackers.py PROGRAM [wandb | mlflow | trackio | opentelemetry | plugs ...]

PROGRAM is a built examples/regression. It trains 30 steps and resumes to 40, with each tracker. The packages of the
trackers (pip install wandb mlflow trackio prometheus_client opentelemetry-proto) are those of this Python. No network
is used but the loopback interface.
"""
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

BIN = os.path.dirname(sys.executable)
KEY = "a" * 40
CLEAN = {k: v for k, v in os.environ.items() if not re.match(r"WANDB_|MLFLOW_|TRACKIO_|TENSORBOARD_|OTEL_", k)}


def train(program, out, tracker, **variables):
    """Trains, resumes, and returns the log. The home folder is empty, so that no netrc counts."""
    log = ""
    for steps, more in (("30", []), ("40", ["--resume_from_checkpoint", "last"])):
        r = subprocess.run(
            [program, "--output_dir", out, "--max_steps", steps, "--logging_steps", "5", "--logging_strategy", "steps",
             "--save_strategy", "steps", "--save_steps", "15", "--eval_strategy", "steps", "--eval_steps", "15",
             "--report_to", tracker, "--run_name", "first"] + more,
            env={**CLEAN, "HOME": out, **variables}, capture_output=True, text=True, timeout=300)
        assert r.returncode == 0, r.stderr
        log += r.stderr
    assert KEY not in log
    return log


class WandbServer(http.server.BaseHTTPRequestHandler):
    """As much of the server of Weights & Biases as wandb-core needs to upload a run."""
    protocol_version = "HTTP/1.1"
    runs, summaries, configs = {}, {}, {}
    dead = False

    def handle(self):
        try:
            super().handle()
        except ConnectionResetError:  # wandb-core ends so
            pass

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.dead:
            self.close_connection = True
            return
        answer = self.answer(body)
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST

    def answer(self, body):
        stream = re.match(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream", self.path)
        if stream:
            files = json.loads(body).get("files") or {}
            if chunk := files.get("wandb-history.jsonl"):
                self.runs[stream[3]][chunk["offset"]:] = chunk["content"]
            if chunk := files.get("wandb-summary.json"):
                self.summaries[stream[3]] = chunk["content"][-1]
            return {"exitcode": None, "limits": {}}
        if self.path != "/graphql":
            return {}
        query = json.loads(body)
        text, variables = query["query"], query.get("variables") or {}
        if "__type" in text:
            return {"data": {n: {"fields": [], "inputFields": []} for n in
                             ("QueryType", "MutationType", "ServerInfoType", "TypeInfo")}}
        if "upsertBucket" not in text and "bucket(" not in text:
            viewer = {"id": "V", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
            url = f"http://{self.headers['Host']}/up"
            files = [{"name": n, "uploadUrl": url} for n in variables.get("files") or []]
            return {"data": {"viewer": viewer, "serverInfo": {"cliVersionInfo": {}, "features": []},
                             "createRunFiles": {"runID": "R", "uploadHeaders": [], "files": files}}}
        name = variables.get("name")
        known = name in self.runs
        lines = self.runs.get(name, [])
        project = {"id": "P", "name": variables.get("project"), "entity": {"id": "E", "name": "me"}}
        if "upsertBucket" in text and variables.get("config"):
            self.configs[name] = variables["config"]
        config = self.configs.get(name, "{}")
        # wandb-core resumes only runs that have this
        telemetry = json.loads(config).get("_wandb", {}).get("value", {}).get("t")
        bucket = {"id": "R", "name": name, "displayName": variables.get("displayName"), "description": None,
                  "config": config, "sweepName": None, "historyLineCount": len(lines),
                  "project": project, "summaryMetrics": self.summaries.get(name, "{}"), "logLineCount": 0,
                  "eventsLineCount": 0, "historyTail": json.dumps(lines[-1:]), "eventsTail": "[]", "tags": [],
                  "wandbConfig": json.dumps({"t": telemetry} if telemetry else {})}
        if "upsertBucket" in text:
            self.runs.setdefault(name, [])
            return {"data": {"upsertBucket": {"inserted": not known, "bucket": bucket}}}
        return {"data": {"model": {**project, "bucket": bucket if known else None}}}


def check_wandb(program):
    """wandb sync uploads offline runs; a run that is sent by HTTP has the same rows."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), WandbServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}"}
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as home:
        log = train(program, out, "wandb")
        parts = sorted(os.path.join(out, "wandb", d) for d in os.listdir(os.path.join(out, "wandb")))
        assert len(parts) == 2 and all("wandb sync " + p in log for p in parts), log
        r = subprocess.run([os.path.join(BIN, "wandb"), "sync"] + parts, env={**CLEAN, **here, "HOME": home}, cwd=home,
                           capture_output=True, text=True, timeout=300)
        assert r.returncode == 0 and r.stderr.count("Finished syncing") == 2, r.stderr
        offline = next(iter(WandbServer.runs.values()))
        assert len(WandbServer.runs) == 1, WandbServer.runs.keys()
        WandbServer.runs.clear()
        WandbServer.summaries.clear()
        with tempfile.TemporaryDirectory() as again:
            train(program, again, "wandb", **here)
        online = next(iter(WandbServer.runs.values()))
    rows = [[json.loads(r) for r in lines] for lines in (offline, online)]
    for o in rows[0] + rows[1]:
        for key in [k for k in o if re.search("_per_second|runtime|_timestamp|memory", k)]:
            del o[key]
    assert rows[0] == rows[1], rows
    assert [r["_step"] for r in rows[0]] == list(range(len(rows[0]))), rows[0]
    assert rows[0][-1]["train/global_step"] == 40
    return f"{len(offline)} rows of one run in 2 parts, by wandb sync and by HTTP alike"


def ask(url, data=None, **headers):
    """Returns the JSON that a server answers."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    return json.load(urllib.request.urlopen(request, timeout=60))


def serve(command, path, home, **variables):
    """Starts a server with {port} in its command, and waits until it answers a path."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    log = open(os.path.join(home, "server.log"), "w")
    server = subprocess.Popen([c.format(port=port) for c in command], env={**CLEAN, "HOME": home, **variables},
                              cwd=home, stdout=log, stderr=log, start_new_session=True)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5)
            return server, f"http://127.0.0.1:{port}"
        except OSError:
            assert server.poll() is None, open(log.name).read()
            time.sleep(0.5)
    raise AssertionError("the server does not answer")


def stop(server):
    os.killpg(server.pid, signal.SIGTERM)
    server.wait(60)


def records(out):
    """Returns the numbers of log.jsonl by key and step."""
    lines = [json.loads(line) for line in open(os.path.join(out, "log.jsonl"))]
    return {(k, r["step"]): v for r in lines for k, v in r.items() if k != "step" and isinstance(v, (int, float))}


def check_mlflow(program):
    """MLflow's server has every number of the run that was resumed, under one run."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as home:
        server, url = serve([os.path.join(BIN, "mlflow"), "server", "--port", "{port}", "--workers", "1",
                             "--backend-store-uri", f"sqlite:///{home}/db", "--artifacts-destination", home],
                            "/health", home)
        try:
            api = url + "/api/2.0/mlflow/"
            ask(api + "experiments/search", {"max_results": 1})  # the first request takes long
            log = train(program, out, "mlflow,jsonl", MLFLOW_TRACKING_URI=url, MLFLOW_EXPERIMENT_NAME="mine")
            assert "WARN a reporter" not in log, log
            ids = [e["experiment_id"] for e in ask(api + "experiments/search", {"max_results": 9})["experiments"]]
            runs = ask(api + "runs/search", {"experiment_ids": ids})["runs"]
            assert len(runs) == 1 and runs[0]["info"]["status"] == "FINISHED", runs
            run, points = runs[0]["info"]["run_id"], {}
            for key in {k for k, _ in records(out)}:
                query = f"metrics/get-history?run_id={run}&metric_key={key}"
                for m in ask(api + query)["metrics"]:
                    points[key, int(m.get("step", 0))] = m["value"]
            assert points == records(out), (points, records(out))
            return f"{len(points)} points and {len(runs[0]['data']['params'])} parameters of one run"
        finally:
            stop(server)


def check_trackio(program):
    """trackio's server has every row of the run that was resumed, under one run."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as home:
        server, url = serve(["env", "GRADIO_SERVER_PORT={port}", os.path.join(BIN, "trackio"), "show"], "/version",
                            home, TRACKIO_DIR=home, TRACKIO_WRITE_TOKEN=KEY, BROWSER="true")
        try:
            log = train(program, out, "trackio,jsonl", TRACKIO_SERVER_URL=url + "?write_token=" + KEY)
            assert "WARN a reporter" not in log, log
            runs = ask(url + "/api/get_runs_for_project", {"project": "huggingface"})["data"]
            assert [r["name"] for r in runs] == ["first"], runs
            rows = ask(url + "/api/get_logs", {"project": "huggingface", "run": "first"})["data"]
            got = {(k, r["step"]): r[k] for r in rows for k in ("train/loss", "eval/loss", "train/grad_norm") if k in r}
            want = {("eval/loss" if k == "eval_loss" else "train/" + k, s): v
                    for (k, s), v in records(out).items() if k in ("loss", "eval_loss", "grad_norm")}
            assert got == want, (got, want)
            return f"{len(rows)} rows of one run"
        finally:
            stop(server)


def check_opentelemetry(program):
    """OpenTelemetry's own messages take each request, and have every number of the run that was resumed."""
    from google.protobuf import json_format
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

    received = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/metrics", self.path
            received.append(json_format.Parse(body, metrics_service_pb2.ExportMetricsServiceRequest()))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"partialSuccess":{}}')

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as out:
        log = train(program, out, "opentelemetry,jsonl", OTEL_SERVICE_NAME="mine",
                    OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
        assert "WARN a reporter" not in log, log
        got, runs = {}, set()
        for of in (r for request in received for r in request.resource_metrics):
            resource = {a.key: a.value.string_value for a in of.resource.attributes}
            runs.add((resource["service.name"], resource["service.instance.id"]))
            for m in (m for scope in of.scope_metrics for m in scope.metrics):
                for p in m.gauge.data_points:
                    got.setdefault(m.name.removeprefix("lockstep."), {})[p.time_unix_nano] = p.as_double
        want = {}
        for (k, _), v in records(out).items():
            want.setdefault(k, []).append(v)
    steps = got.pop("step")
    assert len(runs) == 1 and ("mine" in next(iter(runs))) and max(steps.values()) == 40, (runs, steps)
    for k in ("loss", "grad_norm", "eval_loss"):
        assert [got[k][t] for t in sorted(got[k])] == want[k], (k, got[k], want[k])
    return f"{sum(map(len, got.values()))} points of {len(got)} gauges of one run"


def check_plugs(program):
    """A run with all reporters goes on when the servers die, and its endpoint has what Prometheus reads."""
    from prometheus_client.parser import text_string_to_metric_families
    fake = http.server.ThreadingHTTPServer(("127.0.0.1", 0), WandbServer)
    threading.Thread(target=fake.serve_forever, daemon=True).start()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as home:
        mlflow, at_mlflow = serve([os.path.join(BIN, "mlflow"), "server", "--port", "{port}", "--workers", "1",
                                   "--backend-store-uri", f"sqlite:///{home}/db"], "/health", home)
        ask(at_mlflow + "/api/2.0/mlflow/experiments/search", {"max_results": 1})
        trackio, at_trackio = serve(["env", "GRADIO_SERVER_PORT={port}", os.path.join(BIN, "trackio"), "show"],
                                    "/version", home, TRACKIO_DIR=home, TRACKIO_WRITE_TOKEN=KEY, BROWSER="true")
        run = subprocess.Popen(
            [program, "--output_dir", out, "--max_steps", "1000000", "--max_train_seconds", "25", "--logging_steps",
             "2000", "--logging_strategy", "steps", "--eval_strategy", "steps", "--eval_steps", "1000000",
             "--save_strategy", "no", "--load_best_model_at_end=false", "--report_to",
             "wandb,mlflow,trackio,opentelemetry,prometheus,tensorboard,jsonl"],
            env={**CLEAN, "HOME": out, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{fake.server_port}",
                 "MLFLOW_TRACKING_URI": at_mlflow, "TRACKIO_SERVER_URL": at_trackio, "TRACKIO_WRITE_TOKEN": KEY,
                 "OTEL_EXPORTER_PROMETHEUS_PORT": str(port), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            scraped = ""
            while "lockstep_loss" not in scraped or not WandbServer.summaries:
                assert run.poll() is None, run.communicate()
                time.sleep(1)
                try:
                    scraped = urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=5).read().decode()
                except OSError:
                    pass
            gauges = {f.name: f.samples[0].value for f in text_string_to_metric_families(scraped)}
            assert gauges["lockstep_step"] > 0 and 0 < gauges["lockstep_loss"] < 10, gauges
        finally:
            os.killpg(mlflow.pid, signal.SIGKILL)
            os.killpg(trackio.pid, signal.SIGKILL)
            WandbServer.dead = True
        log = run.communicate(timeout=120)[1]
        assert run.returncode == 0, log
        warnings = [line for line in log.splitlines() if " WARN " in line]
        for name in ("wandb", "mlflow", "trackio", "opentelemetry"):
            assert any("cannot send" in w and "reporter " + name in w for w in warnings), warnings
        assert KEY not in log
        last = int(re.findall(r"^step (\d+)", log, re.M)[-1])
        folder = os.listdir(os.path.join(out, "wandb"))[0]
        assert last == max(s for _, s in records(out)), last
        return f"{last} steps, {len(gauges)} gauges, {len(warnings)} warnings, all records in {folder} and log.jsonl"


def main():
    checks = {"wandb": check_wandb, "mlflow": check_mlflow, "trackio": check_trackio,
              "opentelemetry": check_opentelemetry, "plugs": check_plugs}
    for name in sys.argv[2:] or checks:
        print(name + ":", checks[name](os.path.abspath(sys.argv[1])), flush=True)
    print("ok")


main()

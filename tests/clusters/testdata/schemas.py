# SPDX-License-Identifier: Apache-2.0
"""Writes schemas.json: of the OpenAPI schemas of the manifests' kinds, the parts that the manifests use.

    python schemas.py JOBSETS TRAINJOBS TRAININGRUNTIMES

The three files are custom resource definitions:
  kubernetes-sigs/jobset, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml, commit 08dfbdfd6827
  kubeflow/trainer, manifests/base/crds/trainer.kubeflow.org_{trainjobs,trainingruntimes}.yaml, commit 8c0f5059bd51
The schema of a Job is the one inside a JobSet. A Service's is written here, after core/v1's ServiceSpec.
A field that no schema has ends the script. Required fields stay, so that a manifest that lacks one fails.
"""
import json, pathlib, sys, yaml

here = pathlib.Path(__file__).parent
kinds = {}
for path in sys.argv[1:]:
    crd = yaml.safe_load(open(path))
    kinds[crd["spec"]["names"]["kind"]] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
text = {"type": "string"}
job = kinds["JobSet"]["properties"]["spec"]["properties"]["replicatedJobs"]["items"]["properties"]["template"]
kinds["Job"] = {"type": "object", "properties": {"spec": job["properties"]["spec"]}, "required": ["spec"]}
kinds["Service"] = {"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object", "properties": {
    "clusterIP": text, "publishNotReadyAddresses": {"type": "boolean"},
    "selector": {"type": "object", "additionalProperties": text}}}}}
meta = {"type": "object", "properties": {"name": text, "labels": {"type": "object", "additionalProperties": text}}}

def prune(schema, values, where):
    out = {k: schema[k] for k in ("type", "required", "enum", "minimum", "pattern") if k in schema}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": "int-or-string"}
    if "additionalProperties" in schema:
        out["additionalProperties"] = prune(schema["additionalProperties"], [], where)
    used = {}
    for v in values:
        for k, x in (v.items() if isinstance(v, dict) else []):
            used.setdefault(k, []).append(x)
    if "additionalProperties" not in schema and schema.get("type") == "object":
        known = dict(schema.get("properties", {}))
        if "metadata" in known or where.count(".") == 0:
            known["metadata"] = meta
        out["properties"] = {k: prune(known[k], used[k], f"{where}.{k}") for k in sorted(used)}
    if "items" in schema:
        out["items"] = prune(schema["items"], [x for v in values for x in v], where + "[]")
    return out

documents = {}
for path in sorted((here / "../../../examples/clusters/kubernetes").glob("*.yaml")):
    for d in yaml.safe_load_all(path.read_text()):
        documents.setdefault(d["kind"], []).append(d)
for kind, list_ in documents.items():
    kinds[kind]["properties"].update(apiVersion=dict(text, enum=[list_[0]["apiVersion"]]), kind=text)
    kinds[kind]["required"] = sorted({"apiVersion", "kind", "metadata", *kinds[kind].get("required", [])})
schemas = {kind: prune(kinds[kind], list_, kind) for kind, list_ in sorted(documents.items())}
(here / "schemas.json").write_text(json.dumps(schemas, indent=1) + "\n")

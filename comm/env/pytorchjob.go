// SPDX-License-Identifier: Apache-2.0

package env

// pytorchJobLauncher is Kubeflow's PyTorchJob (training operator v1), which numbers pods:
// torchrun's names without a place on the host, inside Kubernetes.
var pytorchJobLauncher = launcher{
	kind: PyTorchJob,
	sign: func(l Lookup) (string, string) {
		if !isPyTorchJob(l) {
			return "", ""
		}
		return VarRank, ""
	},
	read: func(r *reader) {
		r.need(fieldRank, &r.e.Rank, VarRank)
		r.need(fieldWorldSize, &r.e.WorldSize, VarWorldSize)
		r.podPerRank()
		r.master("the operator sets it on every pod")
	},
}

func isPyTorchJob(l Lookup) bool {
	return has(l, "KUBERNETES_SERVICE_HOST") != "" && has(l, VarRank) != "" &&
		has(l, VarLocalRank, VarLocalWorldSize, VarLaunchID, VarRunID) == ""
}

// podPerRank places a rank that has its pod for itself.
func (r *reader) podPerRank() {
	const rule = "one rank in each pod"
	r.alone(rule)
	r.set(fieldNodeRank, &r.e.NodeRank, r.e.Rank, rule)
	r.set(fieldNodes, &r.e.Nodes, r.e.WorldSize, rule)
}
